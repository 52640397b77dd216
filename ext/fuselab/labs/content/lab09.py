"""Lab 9, reductions: in one pass, in pieces, and which plan suits which shape."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from fuselab.judge.task import CppTask, PythonTask
from fuselab.labs.content.answers import first_wrong
from fuselab.labs.lab import Lab

State = list[float]

_VARIANCE = (
    'extern "C" int variance(const float* x, float* out, int64_t rows, int64_t cols, '
    "int64_t threads)"
)


def _values(rng: random.Random, count: int, scale: float) -> list[float]:
    return [rng.uniform(-scale, scale) for _ in range(count)]


def softmax_state(values: list[float]) -> State:
    """Return the largest value, and the sum of exponentials below it."""
    largest = max(values)
    return [largest, math.fsum(math.exp(value - largest) for value in values)]


def _update_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = []
    for scale in (1.0, 5.0, 30.0, 300.0):
        for count in (1, 4):
            values = _values(rng, count + 1, scale)
            found.append([softmax_state(values[:-1]), values[-1]])
    return [*found, [[0.0, 1.0], 5000.0], [[5000.0, 1.0], 0.0]]


def _update(state: State, value: float) -> State:
    largest = max(state[0], value)
    total = state[1] * math.exp(state[0] - largest) + math.exp(value - largest)
    return [largest, total]


def _merge_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = []
    for scale in (1.0, 30.0, 300.0):
        for count in (1, 3):
            parts = [_values(rng, count, scale), _values(rng, count + 2, scale)]
            found.append([softmax_state(part) for part in parts])
    return [*found, [[5000.0, 2.0], [0.0, 1.0]]]


def _merge(one: State, other: State) -> State:
    largest = max(one[0], other[0])
    parts = (state[1] * math.exp(state[0] - largest) for state in (one, other))
    return [largest, sum(parts)]


def welford_state(values: list[float]) -> State:
    """Return the count, the mean, and the sum of squared distances from it."""
    mean = math.fsum(values) / len(values)
    return [len(values), mean, math.fsum((value - mean) ** 2 for value in values)]


def _welford_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = []
    for count in (1, 2, 5, 9):
        one = [value + 10 for value in _values(rng, count, 3.0)]
        found.append([welford_state(one), welford_state(_values(rng, count + 3, 4.0))])
    return found


def _welford(one: State, other: State) -> State:
    count = one[0] + other[0]
    apart = other[1] - one[1]
    mean = one[1] + apart * other[0] / count
    return [count, mean, one[2] + other[2] + apart * apart * one[0] * other[0] / count]


def _plan_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = [[8, 1024, 8, 1024], [8, 1025, 8, 1024], [7, 1025, 8, 1024]]
    for _ in range(9):
        rows, columns = 2 ** rng.randrange(0, 14), 2 ** rng.randrange(4, 22)
        found.append([rows, columns, rng.choice([2, 8, 132]), rng.choice([256, 16384])])
    return found


def _plan(rows: int, columns: int, cores: int, held: int) -> str:
    if columns <= held:
        return "persistent"
    return "looped" if rows >= cores else "split"


LAB = Lab(
    9,
    "reductions",
    "Reductions: in one pass, in pieces",
    40,
    (
        PythonTask(
            "lab09.online",
            "a softmax in one pass",
            "update",
            points=2,
            start="""
import math

def update(state, value):
    \"\"\"Return the state with one more value: (largest, sum of exp(v - largest)).\"\"\"
    largest, total = state
    ...
""",
            hints=(
                "If the value is no larger than `largest`, one term is added. If it is, what "
                "happens to all the terms that are in `total` already?",
                "exp(v - new) = exp(v - old) * exp(old - new): one factor brings the whole sum to "
                "the new largest value.",
                "new = max(largest, value); then total * exp(largest - new) + exp(value - new).",
            ),
            calls=_update_calls,
            check=lambda calls, results: first_wrong("update", calls, results, _update),
        ),
        PythonTask(
            "lab09.merge",
            "a softmax in pieces",
            "merge",
            points=2,
            start="""
import math

def merge(one, other):
    \"\"\"Return the state of two pieces together, each (largest, sum of exp(v - largest)).\"\"\"
    ...
""",
            hints=(
                "Which is the largest value of the two pieces together?",
                "Bring both sums to it, as before, and add them.",
                "new = max of the two; then one[1] * exp(one[0] - new), and the other's likewise.",
            ),
            calls=_merge_calls,
            check=lambda calls, results: first_wrong("merge", calls, results, _merge),
        ),
        PythonTask(
            "lab09.welford",
            "a variance in pieces",
            "merge_variance",
            points=2,
            start="""
def merge_variance(one, other):
    \"\"\"Return the state of both: (count, mean, sum of squared distances from the mean).\"\"\"
    ...
""",
            hints=(
                "Counts add up. The mean is the mean of the two means, weighted by counts.",
                "The distances are from two different means: each piece's sum is too small by its "
                "count times the square of how far its mean is from the common one.",
                "With d = other mean - one mean: the sums added, plus "
                "d * d * count1 * count2 / (count1 + count2).",
            ),
            calls=_welford_calls,
            check=lambda calls, results: first_wrong("merge_variance", calls, results, _welford),
        ),
        PythonTask(
            "lab09.plan",
            "which plan",
            "plan",
            start="""
def plan(rows, columns, cores, held):
    \"\"\"Return "persistent", "looped" or "split" for reductions over the rows of a matrix.

    held: how many numbers of a row a core can hold at once.
    \"\"\"
    ...
""",
            hints=(
                "When can a row be read once and looked at as often as one likes?",
                "If a row fits, it is persistent. Otherwise it is looped over in pieces. But what "
                "do the other cores do if there are fewer rows than cores?",
                "columns <= held: persistent; otherwise rows >= cores: looped; otherwise split.",
            ),
            calls=_plan_calls,
            check=lambda calls, results: first_wrong("plan", calls, results, _plan),
        ),
        CppTask(
            "lab09.variance",
            "a variance that is right",
            "variance",
            points=3,
            start=(
                f"#include <cmath>\n#include <cstdint>\n\n{_VARIANCE}\n{{\n"
                "    for (int64_t i = 0; i < rows; ++i) {\n"
                "        float sum = 0.0f, squares = 0.0f;\n"
                "        for (int64_t j = 0; j < cols; ++j) {\n"
                "            const float v = x[i * cols + j];\n"
                "            sum += v;\n"
                "            squares += v * v;\n"
                "        }\n"
                "        const float mean = sum / cols;\n"
                "        out[i] = squares / cols - mean * mean;\n"
                "    }\n    return 0;\n}\n"
            ),
            hints=(
                "The values are near 1000 and differ by about 1. How many digits does a float "
                "have, and how many are left of a difference of two numbers near a million?",
                "Take off the mean before squaring: two passes over the row. Or take off any value "
                "that is near, such as the row's first.",
                "Sum v - x[i * cols] in place of v: the variance is the same, and everything is "
                "small. Or keep both sums in double.",
            ),
            reference=lambda x: x.var(-1, correction=0),
            inputs=lambda g, n: [torch.randn(n, 517, generator=g) + 1000],
            sizes=(1, 3, 20),
            timed_size=300,
            kinds=("similar",),
            slack=1e-4,
            declaration=_VARIANCE,
            arguments=("x", "out"),
            numbers=lambda x: tuple(x.shape),
        ),
    ),
    needs=("C++ compiler for one task",),
)
