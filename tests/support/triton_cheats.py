"""Triton answers that are wrong or do not do the work, with what the judge says of each."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuselab.judge.task import Limits, TritonTask

DOUBLE = TritonTask(
    "double",
    "twice x, plus one",
    "double",
    reference=lambda x: 2 * x + 1,
    inputs=lambda g, n: [torch.randn(n, generator=g)],
    sizes=(1, 16, 37),
    timed_size=100,
    kinds=("similar", "nonfinite"),
    arguments=("x", "out"),
    limits=Limits(kernels=1, bytes=800),
)
HEAD = """import triton
import triton.language as tl

@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
"""
BODY = """    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, 2 * v + 1, mask=i < n)
"""
START = """
def double(x, out):
    n = x.numel()
    kernel[(triton.cdiv(n, 16),)](x, out, n, BLOCK=16)
"""
RIGHT = HEAD + BODY + START
CHEATS = {
    "no mask on the load": (
        RIGHT.replace("x + i, mask=i < n", "x + i"),
        "program 0 loads x[1:16], but x has 1 element",
    ),
    "no mask on the store": (
        RIGHT.replace("2 * v + 1, mask=i < n", "2 * v + 1"),
        "program 0 stores to out[1:16], but out has 1 element",
    ),
    "before the first element": (
        RIGHT.replace("i < n", "i < n").replace("x + i,", "x + i - 1,"),
        "loads x[-1]",
    ),
    "every program the same block": (
        RIGHT.replace("tl.program_id(0) * BLOCK + ", "0 * tl.program_id(0) + "),
        "to which another program has stored",
    ),
    "Python by way of the language": (
        RIGHT.replace("2 * v + 1,", "tl.core.functools.partial(tl.exp, v)(),"),
        "`tl.core.functools.partial` is not part of the language",
    ),
    "too few programs": (RIGHT.replace("triton.cdiv(n, 16)", "max(1, n // 16)"), "unwritten"),
    "what is masked is used": (
        RIGHT.replace("2 * v + 1,", "2 * v + 1 + 0 * tl.sum(v, 0),"),
        "at size 1",
    ),
    "two kernels": (
        RIGHT + START.split("\n", 2)[2].replace("    n = x.numel()\n", ""),
        "kernels: 2",
    ),
    "loads twice": (
        RIGHT.replace("    tl.store", "    v = tl.load(x + i, mask=i < n)\n    tl.store"),
        "bytes: 1,200",
    ),
    "computed by torch": (
        RIGHT.replace("    n = x.numel()\n", "    out.copy_(2 * x + 1)\n    n = x.numel()\n"),
        "kernels alone compute",
    ),
    "torch imported": ("import torch\n" + RIGHT, "may not import `torch`"),
    "no kernel is started": (HEAD + BODY + "\ndef double(x, out):\n    pass\n", "starts no kernel"),
    "no kernel": ("def double(x, out):\n    pass\n", "there is no kernel"),
    "the kernel itself": (
        (HEAD + BODY).replace("def kernel(x, out, n, BLOCK: tl.constexpr)", "def double(x, out)"),
        "starts the kernel and is none itself",
    ),
    "other arguments": (RIGHT.replace("def double(x, out)", "def double(x)"), "takes 2 tensors"),
    "refused by Triton": (RIGHT.replace("BLOCK=16", "BLOCK=17"), "power of 2"),
    "no such function": (RIGHT.replace("tl.load", "tl.fetch"), "fetch"),
    "assembly": (
        RIGHT.replace("2 * v", 'tl.inline_asm_elementwise("", "", [v], tl.float32, True, 1)'),
        "not part of what is asked",
    ),
    "tuned": (RIGHT.replace("@triton.jit", "@triton.autotune\n@triton.jit"), "triton.autotune"),
    "the runtime": (RIGHT.replace("import triton\n", "import triton\nimport triton.runtime\n"), ""),
    "what is inside a handle": (
        RIGHT.replace("n = x.numel()", "n = x._Handle__tensor.numel()"),
        "not an operator on tensors",
    ),
    "half a result": (RIGHT.replace("2 * v + 1,", "2 * v,"), "differs from eager"),
    "half precision": (
        RIGHT.replace("2 * v + 1,", "(2 * v + 1).to(tl.float16).to(tl.float32),"),
        "differs from eager",
    ),
    "an update that two programs share": (
        RIGHT.replace("tl.store(out + i, 2 * v + 1", "tl.atomic_add(out + i, v"),
        "reads memory that nothing wrote",
    ),
    "nothing": ("", "there is no answer yet"),
    "syntax": (RIGHT.replace("def kernel", "def kernel("), "this is not Python"),
    "an assertion": (RIGHT.replace("    n =", "    assert len(x) < 30\n    n ="), "AssertionError"),
}

# On a GPU it is timed, too: what is right in the interpreter and does not do the work there.
FAST = replace(DOUBLE, name="fast", limits=Limits(kernels=1, share=0.4), gpu_size=1 << 25)
FAST_RIGHT = RIGHT.replace("16", "1024")
FAST_CHEATS = {
    "large inputs skipped": (
        FAST_RIGHT.replace("    n = x.numel()", "    n = min(x.numel(), 1 << 20)"),
        "is NaN or infinite where eager's is not",
    ),
    "half of the programs": (
        FAST_RIGHT.replace(
            "triton.cdiv(n, 1024)", "triton.cdiv(n, 1024) if n < 1 << 20 else n >> 11"
        ),
        "is NaN or infinite where eager's is not",
    ),
    "one program does it all": (
        HEAD.replace("tl.program_id(0) * BLOCK + ", "")
        + "    for start in range(0, n, BLOCK):\n"
        + BODY.replace("    v", "        v")
        .replace("    tl.store", "        tl.store")
        .replace("+ i", "+ start + i")
        .replace("i < n", "start + i < n")
        + START.replace("triton.cdiv(n, 16)", "1").replace("BLOCK=16", "BLOCK=1024"),
        "share",
    ),
    "the work done forty times": (
        FAST_RIGHT.replace(
            "    tl.store",
            "    for again in range(40):\n"
            "        v = tl.load(x + i, mask=i < n, volatile=True)\n"
            "    tl.store",
        ),
        "",
    ),
}

__all__ = ["CHEATS", "DOUBLE", "FAST", "FAST_CHEATS", "FAST_RIGHT", "RIGHT"]
