"""Answers that are wrong or do not do the work, by name, with what the judge says of each."""

from __future__ import annotations

import torch

from fuselab.judge.task import CppTask, FunctionTask, Limits, PythonTask

ROW = 37


def rows(generator: torch.Generator, size: int) -> list[torch.Tensor]:
    return [torch.randn(size, ROW, generator=generator)]


SOFTMAX = FunctionTask(
    "softmax",
    "softmax by hand",
    "softmax",
    reference=lambda x: torch.softmax(x, -1),
    inputs=rows,
    sizes=(1, 7, 65),
    timed_size=2000,
    forbids=("softmax", "log_softmax"),
    limits=Limits(kernels=1, calls=0, breaks=0, bytes=2 * 2000 * ROW * 4),
)
SOLUTION = """
import torch

def softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)
"""


def softmax_with(line: str, before: str = "", after: str = "e / e.sum(-1, keepdim=True)") -> str:
    """Return the solution with something added."""
    return (
        f"import torch\n{before}\ndef softmax(x):\n    {line}\n"
        f"    e = torch.exp(x - x.amax(-1, keepdim=True))\n    return {after}\n"
    )


# The answer; a part of what the judge says.
FUNCTIONS: dict[str, tuple[str, str]] = {
    "nothing": ("", "there is no answer yet"),
    "no such function": ("import torch\ndef other(x): return x\n", "nothing is called `softmax`"),
    "syntax": ("def softmax(x) return x", "this is not Python"),
    "the operator itself": (
        "import torch\ndef softmax(x): return torch.softmax(x, -1)\n",
        "`softmax` is what you are to write yourself",
    ),
    "the operator through a module": (
        "import torch.nn.functional as F\ndef softmax(x): return F.softmax(x, -1)\n",
        "write yourself",
    ),
    "the operator of the tensor": ("def softmax(x): return x.softmax(-1)\n", "write yourself"),
    "the operator by its name": (
        "import torch\ndef softmax(x): return getattr(torch, 'soft' + 'max')(x, -1)\n",
        "`getattr` is not for answers",
    ),
    "the operator from torch.ops": (
        "import torch\ndef softmax(x): return torch.ops.aten._softmax(x, -1, False)\n",
        "`torch.ops` is a module",
    ),
    "the operator imported": (
        "from torch import softmax as s\ndef softmax(x): return s(x, -1)\n",
        "write yourself",
    ),
    "the operator as a module": (
        "import torch\ndef softmax(x): return torch.nn.Softmax(-1)(x)\n",
        "`Softmax` is what you are to write yourself",
    ),
    "the operator by its name, once more": (
        "import operator\nfind = operator.methodcaller('soft' + 'max', -1)\n"
        "def softmax(x): return find(x)\n",
        "not an operator on tensors",
    ),
    "the operator by a pattern": (
        "def softmax(x):\n    match x:\n        case object(softmax=f): return f(-1)\n",
        "write yourself",
    ),
    "torch's functions replaced in a list": (
        softmax_with("(torch.nn, torch)[1].exp = torch.sin"),
        "somebody else's: it stays as it is",
    ),
    "torch's functions replaced by a loop": (
        softmax_with("", "for torch.exp in [torch.sin]: pass\n"),
        "somebody else's: it stays as it is",
    ),
    "torch's functions replaced elsewhere": (
        softmax_with("", "def put(t): t.exp = t.sin\nput(torch)\n"),
        "somebody else's: it stays as it is",
    ),
    "all tensors changed": (
        softmax_with("type(x).numel = lambda self: 0"),
        "somebody else's: it stays as it is",
    ),
    "a module handed on": (softmax_with("t = torch"), "name what you need of it"),
    "a part of a module handed on": (
        softmax_with("f = torch.nn.functional"),
        "name what you need of it",
    ),
    "builtins by way of a module": (
        "import enum, torch\ndef softmax(x):\n"
        "    return enum.bltns.getattr(torch.nn.functional, 'soft' + 'max')(x, -1)\n",
        "`enum.bltns` is a module that no answer needs",
    ),
    "pickle by way of torch": (
        softmax_with("return torch.serialization.pickle.loads(b'ctorch\\nsoftmax\\n.')(x, -1)"),
        "`torch.serialization` is a module that no answer needs",
    ),
    "a module imported from another": (
        softmax_with("", "from re import copyreg\n"),
        "`re.copyreg` is a module that no answer needs",
    ),
    "everything imported": (softmax_with("", "from torch import *\n"), "by its name"),
    "a text evaluated as a type": (
        "import torch, typing\ndef softmax(x):\n    def g(a: 'torch.soft' 'max'): pass\n"
        "    return typing.get_type_hints(g)['a'](x, -1)\n",
        "`get_type_hints` goes by a text",
    ),
    "a text evaluated to choose by type": (
        softmax_with("", "import functools\n@functools.singledispatch\ndef f(a): pass\n"),
        "`singledispatch` goes by a text",
    ),
    "an attribute by a format": (
        "import string\ndef softmax(x):\n"
        "    return string.Formatter().get_field('0.soft' + 'max', (x,), {})[0](-1)\n",
        "goes by a text",
    ),
    "the operator by another one's name": (
        "import torch.nn.functional as F\ndef softmax(x): return F.softmin(-x, -1)\n",
        "it calls `softmax`, which is what you are to write yourself",
    ),
    "nested without end": ("x = a" + ".b" * 20000, "nested too deeply"),
    "half a character": ("x = '\ud800'\n", "this is not Python"),
    "told that it is compiled": (
        softmax_with("if torch.compiler.is_compiling(): return x"),
        "`torch.compiler` is a module",
    ),
    "the first call counted alone": (
        softmax_with(
            "calls.append(1)\n    if len(calls) == 1 and len(x) == 2000: return x"
        ).replace("import torch", "import torch\ncalls = []"),
        "what the compiler is shown is not what is computed otherwise",
    ),
    "a mode of torch": (
        softmax_with("torch.set_flush_denormal(True)"),
        "not an operator on tensors",
    ),
    "another type by default": (
        softmax_with("torch.set_default_tensor_type('torch.DoubleTensor')"),
        "not an operator on tensors",
    ),
    "NaN hidden": (softmax_with("", after="(e / e.sum(-1, keepdim=True)).nan_to_num()"), "NaN"),
    "kept by the tensor's id": (
        softmax_with("if id(x) in kept: return kept[id(x)]", "kept = {}").replace(
            "    return e", "    kept[id(x)] = e / e.sum(-1, keepdim=True)\n    return e"
        ),
        "on other values",
    ),
    "a class made of texts": (
        softmax_with("", "M = type('M', (torch.Tensor,), {'__torch_function__': None})\n"),
        "makes a class of texts",
    ),
    "an attribute read by functools": (
        "import functools, torch\ngot = []\nclass H(list): pass\n"
        "functools.update_wrapper(H(), torch.Tensor, assigned=('soft' + 'max',))\n"
        "def softmax(x): return got[0](x, -1)\n",
        "`update_wrapper` goes by a text",
    ),
    "another module's names by enum": (
        softmax_with("", "import enum\nenum.global_enum(enum.Enum('E', {}, module='torch'))\n"),
        "`global_enum` goes by a text",
    ),
    "a tensor without values": (
        softmax_with("return torch.empty_like(x, device='meta')"),
        "it raises NotImplementedError",
    ),
    "zeros left out": (
        softmax_with("", after="(e / e.sum(-1, keepdim=True)).to_sparse()"),
        "sparse",
    ),
    "an array": (softmax_with("", after="(e / e.sum(-1, keepdim=True)).numpy()"), "a ndarray"),
    "bfloat16 in between": (
        softmax_with("").replace("torch.exp(x -", "torch.exp(x.bfloat16().float() -"),
        "differs from eager",
    ),
    "every other row": (
        softmax_with("").replace("    return", "    e = torch.cat([e[::2], x[1::2]])\n    return"),
        "differs from eager",
    ),
    "numpy's address": (softmax_with("x.numpy().ctypes"), "not an operator on tensors"),
    "how often a tensor was changed": (softmax_with("x._version"), "not an operator on tensors"),
    "a view of the input": (softmax_with("return x.view_as(x)"), "differs from eager"),
    "a coroutine": (SOLUTION.replace("def softmax", "async def softmax"), "nothing is called"),
    "its end delayed": (
        softmax_with("", "class D:\n    def __del__(self): pass\n"),
        "Python's own business",
    ),
    "torch_function": (
        softmax_with("", "class M(torch.Tensor):\n    __torch_function__ = None\n"),
        "no answer needs it",
    ),
    "modules' hooks": (
        softmax_with("torch.nn.modules.module.register_module_forward_hook(print)"),
        "a module that no answer needs",
    ),
    "another operator that does it": (
        softmax_with("return (x - torch.logsumexp(x, -1, keepdim=True)).exp()"),
        "large values",
    ),
    "kept by functools": (
        "import functools, torch\n@functools.lru_cache(None)\ndef kept(shape): return {}\n"
        "def softmax(x):\n    found = kept(x.shape)\n    if not found:\n"
        "        e = torch.exp(x - x.amax(-1, keepdim=True))\n"
        "        found[0] = e / e.sum(-1, keepdim=True)\n    return found[0]\n",
        "on other values",
    ),
    "later": (
        "import torch\ndef softmax(x):\n    def later():\n        yield x\n    return later()\n",
        "it returns a generator",
    ),
    "every value NaN": (softmax_with("", after="torch.full_like(x, float('nan'))"), "NaN"),
    "the interpreter ended": (softmax_with("raise SystemExit(0)"), "SystemExit"),
    "no largest value": (
        softmax_with("").replace("x - x.amax(-1, keepdim=True)", "x"),
        "large values",
    ),
    "other dimension": (SOLUTION.replace("-1", "0"), "differs from eager"),
    "half precision": (
        softmax_with("x = x.half().float()"),
        "differs from eager",
    ),
    "kept from an earlier call": (
        softmax_with("if x.shape in kept: return kept[x.shape]", "kept = {}").replace(
            "    return e", "    kept[x.shape] = e / e.sum(-1, keepdim=True)\n    return e"
        ),
        "on other values",
    ),
    "kept by one value": (
        softmax_with(
            "key = len(x)\n    if key in kept: return kept[key]",
            "kept = {}",
        ).replace("    return e /", "    kept[key] = e / e.sum(-1, keepdim=True)\n    return e /"),
        "on other values",
    ),
    "the size of the test": (
        softmax_with("x = x.reshape(7, 37)"),
        "it raises RuntimeError",
    ),
    "large inputs skipped": (
        softmax_with("if len(x) > 1000: return torch.zeros_like(x)"),
        "at size 2000",
    ),
    "a part of large inputs skipped": (
        softmax_with("if len(x) > 1000: return torch.cat([softmax(x[:900]), x[900:]])"),
        "at size 2000",
    ),
    "nothing written": (
        "import torch\ndef softmax(x): return torch.empty_like(x)\n",
        "the result",  # another one in each run, or wrong: as that memory happens to be
    ),
    "the input returned": ("def softmax(x): return x\n", "differs from eager"),
    "the input changed": (softmax_with("x.sub_(x.amax(-1, keepdim=True))"), "`argument 0`"),
    "another type": (softmax_with("", after="(e / e.sum(-1, keepdim=True)).double()"), "float64"),
    "another shape": (softmax_with("", after="(e / e.sum(-1, keepdim=True))[None]"), "shape"),
    "a list": (
        softmax_with("", after="(e / e.sum(-1, keepdim=True)).tolist()"),
        "it returns a list",
    ),
    "nothing returned": (softmax_with("", after="None"), "it returns None"),
    "a tensor that is none": (
        softmax_with(
            "",
            "class Lazy:\n    shape = (1, 37)\n    dtype = torch.float32\n",
            "Lazy()",
        ),
        "it returns a Lazy",
    ),
    "a subclass of tensors": (
        softmax_with("", "class Mine(torch.Tensor):\n    pass\n", "e.as_subclass(Mine)"),
        "it returns a Mine",
    ),
    "a clock": (softmax_with("", "import time\ntime.perf_counter = lambda: 0.0\n"), "no clock"),
    "a thread": (softmax_with("", "import threading\n"), "done when the function returns"),
    "processes": (softmax_with("", "import multiprocessing\n"), "may not import"),
    "torch's functions replaced": (
        softmax_with("", "torch.equal = lambda a, b: True\n"),
        "somebody else's: it stays as it is",
    ),
    "torch's functions replaced by setattr": (
        softmax_with("setattr(torch, 'allclose', lambda *a: True)"),
        "`setattr` is not for answers",
    ),
    "the caller's frame": (
        softmax_with("import sys; f = sys._getframe(1)"),
        "may not import `sys`",
    ),
    "the caller's frame by a generator": (
        softmax_with("g = (n for n in [1]); f = g.gi_frame.f_back"),
        "looks around in Python",
    ),
    "the caller's frame by an error": (
        softmax_with("f = ValueError().__traceback__"),
        "Python's own business",
    ),
    "the environment": (softmax_with("", "import os\n"), "may not look at the machine"),
    "the environment through torch": (softmax_with("torch.os.environ"), "`torch.os` is a module"),
    "loaded modules": (softmax_with("", "from sys import modules\n"), "may not import `sys`"),
    "everything that lives": (softmax_with("", "import gc\n"), "may not look at the process"),
    "at the end": (softmax_with("", "import atexit\n"), "ends when its function returns"),
    "a file": (softmax_with("open('/proc/self/maps')"), "reads no files"),
    "text as code": (softmax_with("eval('1')"), "write the expression itself"),
    "builtins": (softmax_with("__builtins__['open']"), "no answer needs it"),
    "every class": (
        softmax_with("().__class__.__base__.__subclasses__()"),
        "no answer needs it",
    ),
    "its own globals": (softmax_with("globals()['softmax'] = None"), "name what you mean"),
    "the function's globals": (softmax_with("softmax.__globals__"), "no answer needs it"),
    "the compiler": (softmax_with("", "import fusec\n"), "what you take the place of"),
    "torch.compile": (
        softmax_with("", "", "e / e.sum(-1, keepdim=True)").replace(
            "def softmax", "@torch.compile\ndef softmax"
        ),
        "not an operator on tensors",
    ),
    "the judge": (softmax_with("", "import fuselab.judge\n"), "not part of the answer"),
    "memory by address": (softmax_with("x.data_ptr()"), "not an operator on tensors"),
    "other torch": (softmax_with("", "import torch.utils.cpp_extension\n"), "not part of torch"),
    "threads of torch": (softmax_with("torch.set_num_threads(64)"), "not an operator on tensors"),
    "work for the first calls alone": (
        softmax_with(
            "calls.append(1)\n    if len(calls) > 5: return torch.zeros_like(x)", "calls = []"
        ),
        "in each run on the same inputs",
    ),
    "everything by way of self": (
        softmax_with(
            "b = look(softmax)['__builtins__']", "def look(self): return self.__globals__\n"
        ),
        "`__globals__` is Python's own business",
    ),
    "everything by another self": (
        softmax_with("", "class A:\n    def go(self, f):\n        for self in [f]: self.f_back\n"),
        "looks around in Python",
    ),
    "an error that is called self": (
        "def softmax(x):\n    try: 1 / 0\n    except ZeroDivisionError as self:\n"
        "        self.__traceback__\n",
        "Python's own business",
    ),
    "builtins of an asynchronous generator": (
        softmax_with("f = g().ag_frame.f_builtins['open']", "async def g():\n    yield 1\n"),
        "looks around in Python",
    ),
    "all tensors changed by a method": (
        softmax_with(
            "A.put(type(x))", "class A:\n    def put(self): self.reshape = lambda t, *a: t\n"
        ),
        "it changes `Tensor`, which is somebody else's",
    ),
    "all tensors changed by a decorator": (
        softmax_with("", "import dataclasses\ndataclasses.dataclass(torch.Tensor)\n"),
        "it changes `Tensor`, which is somebody else's",
    ),
    "a text as TorchScript": (
        softmax_with(
            "return c.f(x)", "c = torch.CompilationUnit('def f(x): return x.softmax(-1)')\n"
        ),
        "`torch.CompilationUnit` is not an operator",
    ),
    "work put off by torch": (
        softmax_with("return torch.wait(torch.fork(torch.exp, x))"),
        "is not an operator",
    ),
    "a file by way of torch": (softmax_with("torch.PyTorchFileWriter('x')"), "is not an operator"),
    "a file by way of an array": (softmax_with("x.numpy().tofile('x')"), "not an operator"),
    "asks whether it is judged": (
        softmax_with("if torch.is_grad_enabled(): return x"),
        "is not an operator",
    ),
    "an endless loop": (softmax_with("while True: pass"), "end"),
    "an error": (softmax_with("x = x / int('a')"), "it raises ValueError"),
    "recursion without end": (softmax_with("return softmax(x)"), "RecursionError"),
    "a graph break": (
        softmax_with("if float(x.abs().nan_to_num().sum()) < 0: return x"),
        "breaks",
    ),
}

SCALED = CppTask(
    "scaled",
    "scale and shift",
    "scaled",
    reference=lambda x: x * 2 + 1,
    inputs=lambda g, n: [torch.randn(n, generator=g)],
    sizes=(1, 13, 1027),
    timed_size=300_001,
    declaration='extern "C" int scaled(const float* x, float* out, int64_t n, int64_t threads)',
    arguments=("x", "out"),
    numbers=lambda x: (x.numel(),),
    limits=Limits(factor=0.2),
    baseline="""#include <cstdint>
extern "C" int scaled(const float* x, float* out, int64_t n, int64_t threads)
{
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * 2.0f + 1.0f;
    return 0;
}
""",
)


def cpp(body: str, before: str = "") -> str:
    """Return a kernel with a body of its own."""
    return f"#include <cstdint>\n{before}\n{SCALED.declaration}\n{{\n{body}\n    return 0;\n}}\n"


LOOP = "    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * 2.0f + 1.0f;"
KERNELS: dict[str, tuple[str, str]] = {
    "nothing": ("", "there is no answer yet"),
    "computed by torch": (cpp(LOOP, "#include <torch/extension.h>"), "may not include"),
    "computed by Python": (cpp(LOOP, "#include <Python.h>"), "may not include"),
    "does not compile": (cpp("    out[0] = y;"), "does not compile"),
    "another entry": (cpp(LOOP).replace("int scaled", "int scale"), "missing"),
    "another parameter": (cpp(LOOP).replace("const float* x", "const double* x"), "x"),
    "one too few": (cpp(LOOP.replace("i < n", "i < n - 1")), "leaves part of `out` unwritten"),
    "one too many": (cpp(LOOP.replace("i < n", "i <= n")), "past the end"),
    "one before": (cpp(LOOP.replace("i = 0", "i = -1")), "before the start"),
    "full vectors alone": (
        cpp(LOOP.replace("i < n", "i < n / 8 * 8")),
        "leaves part of `out` unwritten",
    ),
    "the size of the test": (cpp(LOOP.replace("i < n", "i < 13")), "past the end"),
    "large inputs skipped": (cpp("    if (n > 100000) return 0;\n" + LOOP), "at size 300001"),
    "the input changed": (
        cpp(LOOP + "\n    const_cast<float*>(x)[0] = 0;"),
        "`x`",
    ),
    "the output read": (cpp("    for (int64_t i = 0; i < n; ++i) out[i] += x[i];"), "it "),
    "kept from an earlier call": (
        cpp(
            "    if (known == n) { for (int64_t i = 0; i < n; ++i) out[i] = kept[i]; return 0; }\n"
            + LOOP
            + "\n    if (n < 4096) known = n;\n"
            + "    for (int64_t i = 0; i < n && n < 4096; ++i) kept[i] = out[i];",
            "float kept[4096]; int64_t known = -1;",
        ),
        "keeps `kept` from call to call",
    ),
    "a static": (cpp("    static int64_t calls;\n    ++calls;\n" + LOOP), "no `static`"),
    "work for the first calls alone": (
        cpp("    if (++calls > 12) return 0;\n" + LOOP, "int64_t calls = 0;"),
        "keeps `calls` from call to call",
    ),
    "kept for each thread": (
        cpp(
            "    if (before == n) return 0;\n    before = n;\n" + LOOP,
            "thread_local int64_t before;",
        ),
        "keeps `before` of each thread",
    ),
    "when it is loaded": (
        cpp(LOOP, "__attribute__((__constructor__)) void early() { }"),
        "runs `early` when it is loaded",
    ),
    "a word on two lines": (
        cpp('    sys\\\ntem("true");\n' + LOOP, "#include <algorithm>"),
        "calls system",
    ),
    "a word behind a raw string": (
        cpp('    R"(";)"; std::system(R"(true)");\n' + LOOP, "#include <algorithm>"),
        "calls system",
    ),
    "ends with success": (cpp("    std::_Exit(0);", "#include <algorithm>"), "calls _Exit"),
    "assembly by another name": (cpp('    __asm("nop");\n' + LOOP), "assembly"),
    "half the precision": (
        cpp(LOOP.replace("x[i] * 2.0f", "(float)(_Float16)x[i] * 2.0f")),
        "differs from eager",
    ),
    "NaN dropped": (
        cpp(LOOP.replace("x[i] * 2.0f", "(x[i] == x[i] ? x[i] : 0.0f) * 2.0f")),
        "NaN or infinite",
    ),
    "aligned loads": (
        cpp(
            "    typedef float v8 __attribute__((vector_size(32)));\n"
            "    int64_t i = 0;\n"
            "    for (; i + 8 <= n; i += 8)\n"
            "        *(v8*)(out + i) = *(const v8*)(x + i) * 2.0f + 1.0f;\n"
            "    for (; i < n; ++i) out[i] = x[i] * 2.0f + 1.0f;"
        ),
        "align",
    ),
    "a thread left behind": (
        cpp(LOOP, "#include <thread>"),
        "may not include",
    ),
    "assembly": (cpp('    asm("nop");\n' + LOOP), "write C++"),
    "a program started": (cpp('    system("true");\n' + LOOP), "starts no programs"),
    "the environment": (cpp('    getenv("A");\n' + LOOP), "depends on its arguments"),
    "the clock replaced": (
        cpp(LOOP, 'extern "C" int clock_gettime(int, void*) { return 0; }'),
        "needs no clock",
    ),
    "a macro": (cpp(LOOP, "#define float double"), "no macros"),
    "an endless loop": (cpp("    for (volatile int64_t i = 0; i < 1;) ;"), "end"),
    "a null pointer": (cpp("    *(volatile float*)nullptr = 0;"), "at a fixed address"),
    "slow": (
        cpp(
            "    for (int64_t i = 0; i < n; ++i) {\n        volatile float v = x[i];\n"
            "        for (volatile int k = 0; k < 40; ) { k = k + 1; }\n"
            "        out[i] = v * 2.0f + 1.0f;\n    }"
        ),
        "times the baseline",
    ),
}

COUNT = PythonTask(
    "count",
    "count bytes",
    "count",
    calls=lambda rng: [[[rng.randrange(1, 9) for _ in range(3)]] for _ in range(5)],
    check=lambda calls, results: next(
        (
            f"count({call[0]}) is {result}, not {4 * call[0][0] * call[0][1] * call[0][2]}"
            for call, result in zip(calls, results, strict=True)
            if result != 4 * call[0][0] * call[0][1] * call[0][2]
        ),
        "",
    ),
)
VALUES: dict[str, tuple[str, str]] = {
    "wrong": ("def count(shape): return shape[0]\n", "count(["),
    "torch": ("import torch\ndef count(shape): return 0\n", "may not import `torch`"),
    "no number": ("def count(shape): return object()\n", "not a number, a text or a list"),
    "an error": ("def count(shape): return shape['a']\n", "]) raises TypeError"),
    "memory without end": ("def count(shape): return len(bytearray(1 << 44))\n", "MemoryError"),
    "a lambda that is none": ("count = 12\n", "count(["),
}

__all__ = ["COUNT", "FUNCTIONS", "KERNELS", "SCALED", "SOFTMAX", "SOLUTION", "VALUES"]
