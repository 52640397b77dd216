"""Lab 13, where compiled code is slower, and why."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from fuselab.judge.task import FunctionTask, Limits, PythonTask
from fuselab.labs.content.answers import first_wrong
from fuselab.labs.lab import Lab

SIDE = 100


def _pays_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = [[1.0, 0.001, 0.001], [1.0, 0.001, 0.002], [0.0, 0.002, 0.001]]
    while len(found) < 9:
        seconds = [rng.randrange(1, 4000) / 100, rng.randrange(50, 900) / 1e5]
        call = [*seconds, rng.randrange(10, 49) / 1e5]
        quotient = call[0] / (call[1] - call[2])
        if abs(quotient - round(quotient)) > 1e-6:  # rounding decides nothing
            found.append(call)
    return found


def _pays(compiling: float, eager: float, compiled: float) -> int:
    if compiled >= eager:
        return -1
    return math.ceil(compiling / (eager - compiled))


def _faster_calls(rng: random.Random) -> list[list[Any]]:
    return [
        [rng.randrange(1, 4), rng.randrange(1, 9), rng.randrange(1, 60), rng.randrange(1, 200)]
        for _ in range(10)
    ]


def _faster(kernels: int, operators: int, launch: int, call: int) -> int:
    saved = (operators - kernels) * launch
    return saved - call


def _sizes_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = [[[5]], [[5, 5, 5]], [[5, 6, 7, 8]], [[5, 1, 6]], [[1, 1, 5]]]
    found += [[[5, 2, 3]], [[5, 6, 2, 3]], [[2, 3, 1, 2]]]
    for _ in range(5):
        found.append([[rng.choice([1, 2, 3, 8, 9]) for _ in range(rng.randrange(1, 8))]])
    return found


def compiles(sizes: list[int]) -> int:
    """Return how often a function is compiled for the sizes of one dimension, in order.

    The first size is compiled for as it is; the first other one makes it symbolic, which serves
    all from 2 on. 1 is a size of its own, whenever it comes.
    """
    known: set[int] = set()
    symbolic, count = False, 0
    for size in sizes:
        if size in known or (symbolic and size > 1):
            continue
        count += 1
        if known and size > 1:
            symbolic = True
        else:
            known.add(size)
    return count


LAB = Lab(
    13,
    "slower",
    "Where compiled code is slower, and why",
    40,
    (
        PythonTask(
            "lab13.pays",
            "when compiling pays",
            "calls_until_it_pays",
            start="""
def calls_until_it_pays(compiling, eager, compiled):
    \"\"\"Return after how many calls compiling has paid off, -1 if it never does.

    compiling: seconds, once. eager, compiled: seconds a call. It has paid off when compiling and
    all compiled calls have taken no more time than as many calls in eager.
    \"\"\"
    ...
""",
            hints=(
                "What does a call of compiled code save? When have the savings reached the cost?",
                "The number is compiling / (eager - compiled), rounded up. What if the compiled "
                "code is not faster?",
                "if compiled >= eager: return -1; otherwise math.ceil of the quotient.",
            ),
            calls=_pays_calls,
            check=lambda calls, results: first_wrong("calls_until_it_pays", calls, results, _pays),
        ),
        PythonTask(
            "lab13.overhead",
            "what a call costs",
            "saved",
            start="""
def saved(kernels, operators, launch, call):
    \"\"\"Return the microseconds that fusing saves a call, where tensors are tiny.

    launch: what starting an operator or a kernel costs. call: what a compiled call costs on top
    (guards, checks). Negative where compiled code is slower.
    \"\"\"
    ...
""",
            hints=(
                "For tiny tensors only starting things counts. How many are started in eager?",
                "Eager starts `operators` things, compiled code `kernels` things.",
                "(operators - kernels) * launch - call.",
            ),
            calls=_faster_calls,
            check=lambda calls, results: first_wrong("saved", calls, results, _faster),
        ),
        FunctionTask(
            "lab13.scores",
            "softmax(x @ y) of 100 x 100",
            "scores",
            points=3,
            given=1,  # it is right
            start="""
import torch

def scores(x, y):
    \"\"\"Return the softmax of the rows of x @ y.\"\"\"
    largest = (x @ y).amax(-1, keepdim=True).cpu().tolist()
    shifted = x @ y - torch.tensor(largest)
    return torch.exp(shifted) / torch.exp(shifted).sum(-1, keepdim=True)
""",
            hints=(
                "%%predict shows a break and two products. Which line turns a tensor into a list?",
                "Leave the largest values in a tensor, and compute x @ y once.",
                "torch.softmax(x @ y, -1) is one call of BLAS and one kernel.",
            ),
            reference=lambda x, y: torch.softmax(x @ y, -1),
            inputs=lambda g, n: [
                torch.randn(n, SIDE, generator=g),
                torch.randn(SIDE, SIDE, generator=g),
            ],
            sizes=(1, 3, 40),
            timed_size=SIDE,
            kinds=("similar",),
            limits=Limits(kernels=1, calls=1, breaks=0),
        ),
        PythonTask(
            "lab13.compiles",
            "how often it is compiled",
            "compiles",
            points=2,
            start="""
def compiles(sizes):
    \"\"\"Return how often f(torch.randn(n)) is compiled if n runs through sizes.\"\"\"
    ...
""",
            hints=(
                "Try it: fusec.predict_calls(f, [(torch.randn(5),), (torch.randn(6),), ...]) has "
                "the recompilations.",
                "The first size is compiled for as it is; the second size that is another one is "
                "compiled with a symbol, which serves all later ones. But try 1.",
                "Keep the set of sizes that have code of their own, and whether there is symbolic "
                "code. Symbolic code does not serve 1, which is always of its own.",
            ),
            calls=_sizes_calls,
            check=lambda calls, results: first_wrong("compiles", calls, results, compiles),
        ),
    ),
)
