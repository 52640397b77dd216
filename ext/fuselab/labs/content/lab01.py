"""Lab 1, why fuse: bytes and operations, predicted and then measured."""

from __future__ import annotations

import random
from typing import Any

import torch

from fuselab.judge.task import FunctionTask, Limits, PythonTask
from fuselab.labs.content.answers import first_wrong
from fuselab.labs.lab import Lab

ROWS, COLUMNS = 600, 257


def _bytes_calls(rng: random.Random) -> list[list[Any]]:
    # The first ones can be counted by hand.
    return [[10, 3], [1, 1], *([rng.randrange(1, 10**6), rng.randrange(1, 12)] for _ in range(6))]


def _bytes(n: int, operators: int) -> list[int]:
    return [8 * n * operators, 8 * n]


def _softmax_calls(rng: random.Random) -> list[list[Any]]:
    return [[2, 5], *([rng.randrange(1, 5000), rng.randrange(1, 5000)] for _ in range(6))]


def _softmax(rows: int, columns: int) -> list[int]:
    n = rows * columns
    return [4 * (8 * n + 4 * rows), 8 * n]


def _rows(generator: torch.Generator, count: int) -> list[torch.Tensor]:
    """Return rows of which some are small or 0: there the 1e-5 beside the variance matters."""
    scale = torch.tensor([1.0, 1e-3, 0.0]).repeat(count)[:count, None]
    return [scale * torch.randn(count, COLUMNS, generator=generator)]


def _roofline_calls(rng: random.Random) -> list[list[Any]]:
    found = [[8_000_000, 2_000_000, 10**9, 10**9], [8_000_000, 20_000_000, 10**9, 10**9]]
    for _ in range(8):
        moved, operations = rng.randrange(10**6, 10**9), rng.randrange(10**6, 10**12)
        found.append(
            [moved, operations, rng.randrange(1, 50) * 10**9, rng.randrange(1, 50) * 10**10]
        )
    return found


def _roofline(moved: int, operations: int, bandwidth: int, speed: int) -> list[Any]:
    memory, compute = moved / bandwidth, operations / speed
    return [max(memory, compute), "memory" if memory >= compute else "compute"]


LAB = Lab(
    1,
    "why_fuse",
    "Why fuse",
    35,
    (
        PythonTask(
            "lab01.bytes",
            "bytes of a chain",
            "bytes_moved",
            start="""
def bytes_moved(n, operators):
    \"\"\"Return (bytes in eager, bytes in one kernel) of a chain of pointwise operators.

    n: how many float32 numbers each of them reads, and writes.
    \"\"\"
    ...
""",
            hints=(
                "Count what one operator does with memory: it reads a tensor and writes a tensor.",
                "A float32 takes 4 bytes, so one operator moves 4 * n + 4 * n bytes.",
                "In one kernel only the first read and the last write are left, however many "
                "operators there are: 8 * n. In eager it is that for each operator.",
            ),
            calls=_bytes_calls,
            check=lambda calls, results: first_wrong("bytes_moved", calls, results, _bytes),
        ),
        PythonTask(
            "lab01.softmax",
            "bytes of a softmax",
            "softmax_bytes",
            points=2,
            start="""
def softmax_bytes(rows, columns):
    \"\"\"Return (bytes in eager, bytes in one kernel) of a softmax in five float32 operators.\"\"\"
    n = rows * columns
    ...
""",
            hints=(
                "Write the five operators down: amax, sub, exp, sum, div. For each: what does it "
                "read, what does it write? Two of the five results have one number a row.",
                "amax reads n and writes rows; sub reads n and rows and writes n; exp reads n and "
                "writes n; now sum and div.",
                "Together that is 8 * n + 4 * rows numbers in eager, and 2 * n in one kernel; a "
                "number takes 4 bytes.",
            ),
            calls=_softmax_calls,
            check=lambda calls, results: first_wrong("softmax_bytes", calls, results, _softmax),
        ),
        FunctionTask(
            "lab01.normalize",
            "one kernel",
            "normalize",
            points=3,
            given=2,  # right, and no operator of ATen
            start="""
import torch

def normalize(x):
    \"\"\"Return x with each row's mean taken off, divided by its standard deviation.\"\"\"
    if float(x.abs().max()) == 0:
        return x
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5)
""",
            hints=(
                "Run %%predict on a call of your function. Where does capture stop, and why?",
                "An `if` on a tensor's value ends the graph. Is that `if` needed at all?",
                "For a row of zeros the formula gives 0 / sqrt(1e-5), which is 0: leave out the "
                "`if`, and what is left is one kernel.",
            ),
            reference=lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
            inputs=_rows,
            sizes=(1, 3, 70),
            timed_size=ROWS,
            kinds=("similar", "nonfinite"),
            forbids=("layer_norm", "group_norm", "instance_norm", "batch_norm", "LayerNorm"),
            limits=Limits(kernels=1, calls=0, breaks=0, bytes=8 * ROWS * COLUMNS),
        ),
        PythonTask(
            "lab01.roofline",
            "the roofline",
            "roofline",
            points=2,
            start="""
def roofline(moved, operations, bandwidth, speed):
    \"\"\"Return (seconds at best, "memory" or "compute": what holds it up).

    moved: bytes. operations: how many. bandwidth: bytes a second. speed: operations a second.
    \"\"\"
    ...
""",
            hints=(
                "How long do the bytes take alone? How long do the operations take alone?",
                "The processor computes while memory is read: the two times overlap.",
                "It takes the longer of moved / bandwidth and operations / speed; say which.",
            ),
            calls=_roofline_calls,
            check=lambda calls, results: first_wrong("roofline", calls, results, _roofline),
        ),
    ),
)
