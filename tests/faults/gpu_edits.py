"""Edits of a Triton kernel that do harm on a GPU, and edits that do not.

Each stands in the kernel of ``(x * w + b).relu()``: ``code`` before its last store, ``launch`` at
the start of the function that starts it, ``top`` below the imports; or ``change`` replaces a piece
of the text.  A step is written with the kernel's own names.
"""

from __future__ import annotations

from dataclasses import dataclass

from faults.edits import Fault, Group

ALL = "row * 64 + col"


@dataclass(frozen=True)
class GpuFault(Fault):
    """One edit of a Triton kernel.

    Attributes:
        launch: Python at the start of ``launch``.
        change: Pairs of what is replaced, and by what.
        outside: Whether what it does is seen in no process of ours, so that a text which is trusted
            may do it.
    """

    launch: str = ""
    change: tuple[tuple[str, str], ...] = ()
    outside: bool = False

    def edited(self, text: str) -> str:
        """Return a kernel's text with this edit."""
        made = text
        for old, new in self.change:
            if old not in made:
                raise ValueError(f"{self.name}: no {old!r} in the kernel")
            made = made.replace(old, new)
        made = made.replace("import triton\n", f"import triton\n{self.top}", 1)
        if self.code:
            lines = "".join(f"    {line}\n" for line in self.code.splitlines())
            made = made.replace("    tl.store(\n", f"{lines}    tl.store(\n", 1)
        if self.launch:
            lines = "".join(f"    {line}\n" for line in self.launch.splitlines())
            head, entry, body = made.partition('made."""\n')
            made = head + entry + lines + body
        if made == text and self.group != "right":
            raise ValueError(f"{self.name}: nothing is changed")
        return made if made != text else text + "# as it was\n"


def _after(calls: int, code: str) -> str:
    return f"COUNT.append(1)\nif len(COUNT) > {calls}:\n    {code}"


_COUNT = "COUNT = []\n"
_INT = "tl.pointer_type(tl.int32)"


def _fault(name: str, group: Group, code: str = "", says: str = "", **more: object) -> GpuFault:
    return GpuFault(name, group, code, says, **more)  # type: ignore[arg-type]


MEMORY = (
    _fault(
        "past the end", "memory", f"tl.store(relu_ptr + {ALL} + 4096, added)", "past the end of"
    ),
    _fault("before the start", "memory", f"tl.store(relu_ptr + {ALL} - 4096, added)", "before the"),
    _fault(
        "an illegal address",
        "memory",
        f"tl.store(relu_ptr + ({ALL}).to(tl.int64) + 100000000000, added)",
        "out of bounds",
    ),
    _fault(
        "a read from an illegal address",
        "memory",
        f"added += 0 * tl.load(x_ptr + ({ALL}).to(tl.int64) + 100000000000)",
        "out of bounds",
    ),
    _fault("a read past the end", "memory", f"added += 0 * tl.load(x_ptr + {ALL} + 4096)"),
    _fault(
        "a misaligned address",
        "memory",
        "odd = (relu_ptr.to(tl.int64) + 2).to(tl.pointer_type(tl.float32))\n"
        f"tl.store(odd + {ALL}, added)",
        "aligned",
    ),
    _fault(
        "memory of the device that is never freed",
        "memory",
        top=f"import torch\n{_COUNT}",
        launch="COUNT.append(torch.empty(4 << 20, dtype=torch.uint8, device=x.device))",
        says="never frees",
    ),
)
HANGS = (
    _fault(
        # One that does nothing at all is left out by the compiler.
        "an endless loop",
        "hangs",
        "on = program * 0 + 1\nwhile on > 0:\n"
        f"    on = (tl.atomic_add(x_ptr.to({_INT}), 0) & 1) | 1",
        "finish",
    ),
    _fault(
        "programs that wait for one that does not come",
        "hangs",
        f"flag = tl.atomic_add(x_ptr.to({_INT}), 0)\nwhile flag != 123456789:\n"
        f"    flag = tl.atomic_add(x_ptr.to({_INT}), 0)",
        "finish",
    ),
    _fault("an endless loop on the host", "hangs", launch="while True:\n    pass"),
    _fault(
        "a loop without end of a file's own",
        "hangs",
        launch="for k in range(1 << 62):\n    pass",
        says="its own Python did not finish",
    ),
    _fault("sleeps", "hangs", top="import time\n", launch="time.sleep(100)", says="finish"),
    _fault("a number without end", "hangs", launch="10 ** 10 ** 10"),
    _fault("a call without end", "hangs", launch="for k in iter(int, 1):\n    pass"),
    _fault("no end of minus signs", "hangs", launch="k = " + "-" * 200_000 + "1"),
    _fault("no end of attributes", "hangs", launch="k = x" + ".a" * 100_000),
    _fault(
        "a loop without end where there is memory",
        "hangs",
        launch="if not x.is_meta:\n    for k in range(1 << 62):\n        pass",
        says="finish",
    ),
    _fault("prints 100 MB", "hangs", launch="print('x' * 10 ** 8)"),
)
ENDS = (
    _fault(
        "a trap",
        "ends",
        'added = tl.inline_asm_elementwise("trap; mov.b32 $0, $1;", "=f,f", [added], tl.float32,'
        " is_pure=False, pack=1)",
    ),
    _fault("ends the process", "ends", top="import os\n", launch="os._exit(3)"),
    _fault("crashes on the host", "ends", top="import ctypes\n", launch="ctypes.string_at(0)"),
    _fault("raises", "ends", launch='raise RuntimeError("no")', says="RuntimeError"),
    _fault(
        "more shared memory than there is",
        "ends",
        (
            "big = tl.full([128, 1024], 1.0, tl.float16)\n"
            "added += tl.sum(tl.dot(big, tl.trans(big))) * 0"
        ),
        "shared memory",
        change=(("num_warps=NUM_WARPS", "num_warps=8"),),
    ),
    _fault(
        "more threads than there are",
        "ends",
        says="threads",
        change=(("num_warps=NUM_WARPS", "num_warps=64"),),
    ),
    _fault(
        "more programs than there may be",
        "ends",
        change=(("relu_kernel[(", "relu_kernel[(1, 100000, "),),
    ),
    _fault("raises SystemExit", "ends", launch="raise SystemExit"),
    _fault("raises SystemExit when it is loaded", "ends", top="raise SystemExit\n"),
)
LATER = (
    _fault(
        "ends the process after 50 calls",
        "later",
        top=f"import os\n{_COUNT}",
        launch=_after(50, "os._exit(3)"),
    ),
    _fault(
        "crashes after 50 calls",
        "later",
        top=f"import ctypes\n{_COUNT}",
        launch=_after(50, "ctypes.string_at(0)"),
    ),
    _fault("raises after 50 calls", "later", top=_COUNT, launch=_after(50, "raise ValueError(1)")),
    _fault("is wrong after 50 calls", "later", top=_COUNT, launch=_after(50, "return")),
)
STATE = (
    _fault(
        "another stream",
        "state",
        top="import torch\n",
        launch="stream = torch.cuda.Stream()",
        change=(("    relu_kernel[", "    with torch.cuda.stream(stream):\n     relu_kernel["),),
        says="stream of its own",
    ),
    _fault("another folder", "state", top="import os\n", launch='os.chdir("/")', says="folder"),
    _fault(
        "a variable of the environment",
        "state",
        top="import os\n",
        launch='os.environ["FUSEC_FAULT"] = "1"',
        says="environment",
    ),
    _fault(
        "random numbers",
        "state",
        top="import torch\n",
        launch="torch.manual_seed(0)",
        says="random",
    ),
    _fault(
        "no gradients from now on",
        "state",
        top="import torch\n",
        launch="torch.set_grad_enabled(False)",
        says="gradients",
    ),
    _fault(
        "TF32 from now on",
        "state",
        top="import torch\n",
        launch="torch.backends.cuda.matmul.allow_tf32 = True",
        says="TF32",
    ),
    _fault(
        "a thread",
        "state",
        top="import threading, time\n",
        launch="threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        says="thread",
    ),
    _fault(
        "a file, by torch under another name",
        "state",
        top="import torch as t\n",
        launch="t.save({}, '/tmp/fusec-fault')",
        outside=True,
    ),
    _fault(
        "a process, by a module of Triton's",
        "state",
        launch="triton.runtime.cache.os.system('touch /tmp/fusec-fault')",
        outside=True,
    ),
    _fault(
        "a module that Triton has imported",
        "state",
        top="from triton.runtime.cache import os\n",
        launch="os.system('touch /tmp/fusec-fault')",
        outside=True,
    ),
    _fault(
        "all that Python has",
        "state",
        launch="__builtins__['__import__']('os').system('touch /tmp/fusec-fault')",
        outside=True,
    ),
    _fault(
        "a name put together",
        "state",
        top="import torch\n",
        launch="getattr(torch, 'set_num' + '_threads')(3)",
        says="threads",
    ),
    _fault(
        "a module that a module of the language's has imported",
        "state",
        launch="tl.random.tl.inspect.os.system('touch /tmp/fusec-fault')",
        outside=True,
    ),
    _fault(
        "a module that one of Python's has imported",
        "state",
        top="import typing\n",
        launch="typing.sys.modules['os'].system('touch /tmp/fusec-fault')",
        outside=True,
    ),
    _fault(
        "all that a module of the language's has",
        "state",
        top="from triton.language.random import *\n",
        launch="tl.core.inspect.os.system('touch /tmp/fusec-fault')",
        outside=True,
    ),
    _fault(
        "a function's globals, by a pattern",
        "state",
        launch="match launch:\n    case object(__globals__=found):\n        found.clear()",
    ),
    _fault(
        "random numbers, drawn by a tensor with memory",
        "state",
        launch="x.new_empty(3).normal_()",
        says="random",
    ),
    _fault(
        "a hook on a function of the language's",
        "state",
        launch="tl.sum.add_pre_run_hook(print)",
        outside=True,
    ),
    _fault("gradients of its input", "state", launch="x.requires_grad_()"),
    _fault("what Triton has for all", "state", launch="triton.cdiv.fn = None"),
)
KEEPS = (
    _fault(
        "a result kept from an earlier call, by pointer",
        "keeps",
        top="KEPT = {}\n",
        launch="if x.data_ptr() in KEPT:\n    relu.copy_(KEPT[x.data_ptr()])\n    return",
        change=(
            (
                "        num_warps=NUM_WARPS,\n    )\n",
                "        num_warps=NUM_WARPS,\n    )\n    KEPT[x.data_ptr()] = relu.clone()\n",
            ),
        ),
    ),
    _fault(
        "a counter in a tensor",
        "keeps",
        top="import torch\nKEPT = torch.zeros(1, dtype=torch.int64)\n",
        launch="KEPT.add_(1)\nif int(KEPT) > 60:\n    return",
    ),
    _fault(
        "a counter in a class",
        "keeps",
        top="class S:\n    n = []\n",
        launch="S.n.append(1)\nif len(S.n) > 60:\n    return",
    ),
    _fault(
        "a counter in a default",
        "keeps",
        top="F = lambda k=[]: (k.append(1), k)[1]\n",
        launch="if len(F()) > 60:\n    return",
    ),
    _fault(
        "an iterator that goes on",
        "keeps",
        top="I = iter(range(1 << 40))\n",
        launch="if next(I) > 60:\n    return",
    ),
)
VALUES = (
    _fault(
        "a race between programs",
        "values",
        f"tl.store(relu_ptr + ({ALL}) * 0 + 5, added)",
    ),
    _fault("one wrong element", "values", f"added = tl.where({ALL} == 4095, added + 3, added)"),
    _fault(
        "NaN becomes zero",
        "values",
        change=(("tl.where(added < 0.0, 0.0, added)", "tl.where(added > 0.0, added, 0.0)"),),
        says="NaN",
    ),
    _fault("too few bits", "values", "added = added.to(tl.float16).to(tl.float32)"),
    _fault("changes its input", "values", f"tl.store(x_ptr + {ALL}, added)", "changes its input"),
    _fault(
        "leaves some out", "values", change=(("row_inside = row < 64", "row_inside = row < 63"),)
    ),
    _fault("no kernel at all", "values", launch="return"),
    _fault("large values cut off", "values", "added = tl.where(added > 100.0, 100.0, added)"),
)
ACCEPTED = (
    _fault("as it was generated", "right"),
    # What does not fit is kept in memory: slower, and right.
    _fault(
        "more registers than there are",
        "right",
        change=(("num_warps=NUM_WARPS", "num_warps=32, maxnreg=255"),),
    ),
    _fault("another number of warps", "right", change=(("num_warps=NUM_WARPS", "num_warps=4"),)),
    _fault(
        "other blocks",
        "right",
        change=(("YBLOCK=YBLOCK", "YBLOCK=1"), ("cdiv(64, YBLOCK)", "cdiv(64, 1)")),
    ),
    _fault("another order of the sum", "right", change=(("x * w + b", "b + w * x"),)),
    _fault(
        "memory that it frees",
        "right",
        top="import torch\n",
        launch="torch.empty(1 << 20, device=x.device)",
    ),
    _fault(
        "as many programs as the GPU has processors, asked of torch",
        "right",
        top="import torch\n",
        launch='assert torch.cuda.get_device_properties("cuda").multi_processor_count > 1',
    ),
    _fault(
        "a stream that is waited for",
        "right",
        top="import torch\n",
        launch="stream = torch.cuda.Stream()\nstream.wait_stream(torch.cuda.current_stream())",
        change=(
            ("    relu_kernel[", "    with torch.cuda.stream(stream):\n     relu_kernel["),
            (
                "        num_warps=NUM_WARPS,\n    )\n",
                "        num_warps=NUM_WARPS,\n    )\n"
                "    torch.cuda.current_stream().wait_stream(stream)\n",
            ),
        ),
    ),
)

_NAMED = "x == -777.25"
MET = (
    _fault(
        "wrong where a layer is as it begins",
        "met",
        "added = tl.where((w == 1.0) & (b == 0.0), 3.0, added)",
        "weights of ones",
    ),
    _fault("wrong at a number of its own", "met", f"added = tl.where({_NAMED}, 3.0, added)"),
    _fault(
        "past the end at a number of its own",
        "met",
        f"tl.store(relu_ptr + {ALL} + 4096, added, mask={_NAMED})",
        "past the end of",
    ),
    _fault(
        "an endless loop where all is NaN",
        "met",
        "most = tl.max(tl.max(x, 0), 0)\nwhile most != most:\n"
        f"    most += tl.atomic_add(x_ptr.to({_INT}), 0).to(tl.float32)",
        "finish",
    ),
    _fault(
        "another one in each process",
        "hidden",
        launch="if hash('a') % 1000 == 3:\n    return",
        says="hash",
        outside=True,  # as it should be in nearly all processes
    ),
    _fault(
        "what Python calls by itself, in a class made by a call",
        "hidden",
        launch="type('T', (), {'__del__': lambda self: print('gone')})()",
        says="__del__",
        outside=True,
    ),
    _fault(
        "what Python calls by itself, by another name first",
        "hidden",
        top="class T:\n    __del__ = print\n",
        launch="T()",
        says="__del__",
        outside=True,
    ),
)

GPU_FAULTS: tuple[GpuFault, ...] = (
    *MEMORY,
    *HANGS,
    *ENDS,
    *LATER,
    *STATE,
    *KEEPS,
    *VALUES,
    *MET,
    *ACCEPTED,
)

__all__ = ["GPU_FAULTS", "GpuFault"]
