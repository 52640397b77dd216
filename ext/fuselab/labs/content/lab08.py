"""Lab 8, Triton without a GPU: programs, masks, blocks, and what becomes of them."""

from __future__ import annotations

import torch

from fuselab.judge.task import Limits, PythonTask, TritonTask
from fuselab.labs.content import ptx
from fuselab.labs.content.answers import first_wrong
from fuselab.labs.lab import Lab

_HEAD = "import triton\nimport triton.language as tl\n\n@triton.jit\n"
COLUMNS = 77
_COUNT = 61  # of rows, where bytes are counted


def _scores(generator: torch.Generator, rows: int) -> list[torch.Tensor]:
    """Return rows far below and far above 0: exponentials of the numbers themselves go wrong."""
    far = torch.tensor([-100.0, 100.0, 0.0]).repeat(rows)[:rows, None]
    return [4 * torch.randn(rows, COLUMNS, generator=generator) + far]


LAB = Lab(
    8,
    "triton",
    "Triton without a GPU: programs, masks, blocks",
    45,
    (
        TritonTask(
            "lab08.scale",
            "programs and masks",
            "scale",
            start=_HEAD
            + '''def scale_kernel(x, out, n, BLOCK: tl.constexpr):
    """Compute relu(2 * x + 1) for BLOCK elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(out + i, tl.maximum(2 * v + 1, 0.0))

def scale(x, out):
    """Start as many programs as it takes."""
    n = x.numel()
    scale_kernel[(triton.cdiv(n, 16),)](x, out, n, BLOCK=16)
''',
            hints=(
                "The last program has 16 lanes, and fewer than 16 elements are left. Which lanes "
                "have an element?",
                "A lane has one where i < n. tl.load and tl.store take mask=.",
                "v = tl.load(x + i, mask=i < n), and tl.store(out + i, ..., mask=i < n).",
            ),
            reference=lambda x: torch.relu(2 * x + 1),
            inputs=lambda g, n: [torch.randn(n, generator=g)],
            sizes=(1, 16, 103),
            timed_size=1000,
            kinds=("similar",),
            arguments=("x", "out"),
            limits=Limits(kernels=1),
        ),
        TritonTask(
            "lab08.softmax",
            "a row a program",
            "softmax",
            points=2,
            start=_HEAD
            + '''def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    """Compute the softmax of one row: BLOCK is a power of two, and no less than columns."""
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    ...

def softmax(x, out):
    """Start a program a row."""
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
''',
            hints=(
                "Element j of the row lies at x + row * columns + j. Which lanes have none, and "
                "what would they do to a maximum and to a sum?",
                "other= says what masked lanes get. What is it that changes no maximum, and whose "
                "exponential adds nothing?",
                'v = tl.load(..., mask=j < columns, other=float("-inf")); '
                "e = tl.exp(v - tl.max(v, 0)); store e / tl.sum(e, 0) with the same mask.",
            ),
            reference=lambda x: torch.softmax(x, -1),
            inputs=_scores,
            sizes=(1, 5),
            timed_size=_COUNT,
            kinds=("similar",),
            arguments=("x", "out"),
            limits=Limits(kernels=1, bytes=2 * 4 * _COUNT * COLUMNS, share=0.15),
            gpu_size=1 << 17,
        ),
        TritonTask(
            "lab08.transpose",
            "blocks of two dimensions",
            "transpose",
            points=2,
            start=_HEAD
            + '''def transpose_kernel(x, out, rows, columns, BLOCK: tl.constexpr):
    """Write a block of BLOCK x BLOCK elements of x to where it belongs in out."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ...

def transpose(x, out):
    """Start a program a block."""
    rows, columns = x.shape
    grid = (triton.cdiv(rows, 16), triton.cdiv(columns, 16))
    transpose_kernel[grid](x, out, rows, columns, BLOCK=16)
''',
            hints=(
                "i[:, None] is a column of numbers, j[None, :] a row. What is i[:, None] * columns "
                "+ j[None, :]?",
                "The place of element (i, j) of x is i * columns + j. Where does it go in out, "
                "whose rows are `rows` long?",
                "mask = (i[:, None] < rows) & (j[None, :] < columns); load x + i[:, None] "
                "* columns + j[None, :], store it to out + j[None, :] * rows + i[:, None].",
            ),
            reference=lambda x: x.t().contiguous(),
            inputs=lambda g, n: [torch.randn(n, n + 14, generator=g)],
            sizes=(1, 16, 35),
            timed_size=50,
            kinds=("similar",),
            arguments=("x", "out"),
            limits=Limits(kernels=1, bytes=2 * 4 * 50 * 64),
        ),
        TritonTask(
            "lab08.norms",
            "a loop over blocks",
            "norms",
            points=2,
            start=_HEAD
            + '''def norms_kernel(x, out, columns, BLOCK: tl.constexpr):
    """Compute the sum of squares of a row that is longer than a block."""
    row = tl.program_id(0)
    ...

def norms(x, out):
    """Start a program a row."""
    rows, columns = x.shape
    norms_kernel[(rows,)](x, out, columns, BLOCK=32)
''',
            hints=(
                "for start in range(0, columns, BLOCK) goes over the row. Add up a whole block of "
                "sums, and those at the end.",
                "sums = tl.zeros([BLOCK], tl.float32) before the loop; in it, load a block with a "
                "mask and other=0.0 and add its squares.",
                "j = start + tl.arange(0, BLOCK); v = tl.load(x + row * columns + j, mask=j < "
                "columns, other=0.0); sums += v * v. At the end tl.store(out + row, "
                "tl.sum(sums, 0)).",
            ),
            reference=lambda x: (x * x).sum(-1),
            inputs=lambda g, n: [torch.randn(n, 3 * COLUMNS, generator=g)],
            sizes=(1, 6),
            timed_size=20,
            kinds=("similar",),
            arguments=("x", "out"),
            limits=Limits(kernels=1, bytes=4 * 20 * (3 * COLUMNS + 1)),
        ),
        PythonTask(
            "lab08.loads",
            "reading PTX",
            "loads",
            points=2,
            start='''
import re

def loads(text):
    """Return [instructions, bytes, masked] of the loads from global memory in a PTX text.

    instructions: how many there are. bytes: what a thread gets by all of them together.
    masked: whether any of them stands behind a predicate: @%p1 ld.global...
    """
    ...
''',
            hints=(
                "Find what begins with `ld.global` and look at what follows up to the first space: "
                ".v4 is four at once, .b32 is 32 bits each. Stores are st.global.",
                're.findall(r"ld\\.global\\S*", text) finds them all. No .v2 or .v4 means one.',
                'For each: count = int(m[1]) if (m := re.search(r"\\.v(\\d)", each)) else 1; '
                'bits = int(re.search(r"\\.[bfus](\\d+)$", each)[1]). A masked one is in a '
                "line that begins with @%p or @!%p.",
            ),
            calls=ptx.calls,
            check=lambda calls, results: first_wrong("loads", calls, results, ptx.loads, ptx.why),
        ),
    ),
    needs=("Triton",),
)
