"""Lab 14, beat the compiler: an open kernel, ranked by bytes, kernels and share of a copy."""

from __future__ import annotations

import random
from typing import Any

import torch

from fuselab.judge.task import CppTask, FunctionTask, Limits, PythonTask
from fuselab.labs.content.answers import first_wrong
from fuselab.labs.content.lab07 import kernel
from fuselab.labs.lab import Lab

EXPERTS = 64
ROWS = 20_000

_ROUTER = (
    'extern "C" int router(const float* x, float* out, int64_t rows, int64_t experts, '
    "int64_t threads)"
)
_SIMPLE = kernel(
    _ROUTER,
    "    for (int64_t i = 0; i < rows; ++i) {\n"
    "        float largest = -INFINITY, total = 0.0f, first = 0.0f, second = 0.0f;\n"
    "        for (int64_t j = 0; j < experts; ++j) {\n"
    "            const float v = x[i * experts + j];\n"
    "            largest = v > largest ? v : largest;\n"
    "        }\n"
    "        for (int64_t j = 0; j < experts; ++j)\n"
    "            total += std::exp(x[i * experts + j] - largest);\n"
    "        for (int64_t j = 0; j < experts; ++j) {\n"
    "            const float p = std::exp(x[i * experts + j] - largest) / total;\n"
    "            if (p > first) {\n"
    "                second = first;\n"
    "                first = p;\n"
    "            } else if (p > second) {\n"
    "                second = p;\n"
    "            }\n"
    "        }\n"
    "        out[i * 2] = first / (first + second);\n"
    "        out[i * 2 + 1] = second / (first + second);\n"
    "    }",
)


def gates(x: torch.Tensor) -> torch.Tensor:
    """Return the two largest probabilities of each row, as shares of their sum."""
    best = torch.softmax(x, -1).topk(2).values
    return best / best.sum(-1, keepdim=True)


def _rows(generator: torch.Generator, size: int) -> list[torch.Tensor]:
    far = torch.tensor([0.0, 100.0, -100.0]).repeat(size)[:size, None]  # who takes exp(x) is found
    return [2 * torch.randn(size, EXPERTS, generator=generator) + far]


def _least_calls(rng: random.Random) -> list[list[Any]]:
    return [
        [1, 2],
        [1000, 64],
        *[[rng.randrange(1, 9000), rng.randrange(2, 300)] for _ in range(6)],
    ]


def _least(rows: int, experts: int) -> list[int]:
    scores, best = 4 * rows * experts, 4 * rows * 2
    return [scores + best, 2 * scores + scores + best + 2 * best + 2 * best]


def _share_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = [[8_000_000, 0.001, 8e9], [8_000_000, 0.004, 8e9]]
    for _ in range(6):
        moved = rng.randrange(1 << 16, 1 << 26)
        found.append([moved, rng.randrange(1, 900) / 1e5, rng.randrange(4, 3000) * 1e9])
    return found


def _share(moved: int, seconds: float, copy_speed: float) -> float:
    return moved / copy_speed / seconds


LAB = Lab(
    14,
    "beat_the_compiler",
    "Beat the compiler: an open kernel",
    45,
    (
        PythonTask(
            "lab14.least",
            "what it must move",
            "bytes_moved",
            start='''
def bytes_moved(rows, experts):
    """Return [least bytes, bytes of three steps] of the router, all numbers of 4 bytes.

    The three steps: a softmax of the scores; the two largest of each row, with their indices
    (8 bytes each); those two divided by their sum.
    """
    ...
''',
            hints=(
                "At least: every score is read once, and two results a row are written.",
                "Softmax: reads and writes rows x experts. The two largest: reads as much, writes "
                "two numbers and two indices a row. Division: reads two a row, writes two.",
                "scores = 4 * rows * experts, best = 8 * rows: [scores + best, 3 * scores + best "
                "+ 2 * best + 2 * best]. Indices are 2 * best.",
            ),
            calls=_least_calls,
            check=lambda calls, results: first_wrong("bytes_moved", calls, results, _least),
        ),
        FunctionTask(
            "lab14.gates",
            "in tensor code",
            "gates",
            points=3,
            given=2,  # it is right, in two kernels
            start="""
import torch

def gates(x):
    \"\"\"Return the two largest probabilities of each row, as shares of their sum.\"\"\"
    best = torch.softmax(x, -1).topk(2).values
    return best / best.sum(-1, keepdim=True)
""",
            hints=(
                "topk is ATen's own kernel: what comes before it is written, what comes after it "
                "is read. And is the softmax needed at all? Write down exp(a) / (exp(a) + exp(b)).",
                "The softmax's sum cancels: of the two largest scores a >= b, the gates are "
                "sigmoid(a - b) and sigmoid(b - a). a is an amax. How does one find b without "
                "topk? Mind that there may be two equal ones.",
                "others = torch.where(torch.arange(x.shape[-1]) == x.argmax(-1, keepdim=True), "
                'float("-inf"), x); b = others.amax(-1, keepdim=True); torch.cat of both gates.',
            ),
            reference=gates,
            inputs=_rows,
            sizes=(1, 5, 40),
            timed_size=ROWS,
            kinds=("similar",),
            slack=1e-5,
            limits=Limits(kernels=2, calls=0, bytes=int(1.1 * _least(ROWS, EXPERTS)[0])),
        ),
        PythonTask(
            "lab14.share",
            "how good it is",
            "share",
            start='''
def share(moved, seconds, copy_speed):
    """Return a kernel's share of the speed of a copy: 1.0 if it takes as long as a copy would.

    moved: the least bytes it can move. seconds: of a call. copy_speed: bytes a second of a copy.
    """
    ...
''',
            hints=(
                "How long does a copy of as many bytes take?",
                "moved / copy_speed seconds. A kernel that takes twice as long has a share of 0.5.",
                "moved / copy_speed / seconds.",
            ),
            calls=_share_calls,
            check=lambda calls, results: first_wrong("share", calls, results, _share),
        ),
        CppTask(
            "lab14.router",
            "by hand, as fast as you can",
            "router",
            points=3,
            given=2,  # it is right, and any share will do
            start=_SIMPLE,
            hints=(
                "Two exponentials a score: 128 a row. How many does the formula of part 2 need?",
                "Look for the two largest scores in one pass: second = max(second, min(first, v)); "
                "first = max(first, v). Then there is one exponential a row.",
                "b = std::max(b, std::min(a, v)); a = std::max(a, v); from -INFINITY on; then "
                "e = exp(b - a), 1 / (1 + e) and e / (1 + e). An `if` in the loop branches, and is "
                "slow.",
            ),
            reference=gates,
            inputs=_rows,
            sizes=(1, 5, 40),
            timed_size=ROWS,
            kinds=("similar",),
            slack=1e-5,
            declaration=_ROUTER,
            arguments=("x", "out"),
            numbers=lambda x: tuple(x.shape),
            limits=Limits(factor=3.0, share=0.0),
            baseline=_SIMPLE,
        ),
    ),
)
