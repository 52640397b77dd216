"""Lab 12, dynamic shapes: guards, symbols, and what symbols cost."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

from fuselab.judge.task import PythonTask
from fuselab.labs.content.answers import first_wrong
from fuselab.labs.lab import Lab

Size = int | str

_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
}


def _guard_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = [
        [[["x.size0", test, value]], {"x.size0": 3}] for test in _TESTS for value in (2, 3, 4)
    ]
    for _ in range(12):
        facts = {
            "x.dtype": rng.choice(["float32", "float64"]),
            "x.size0": rng.randrange(1, 6),
            "x.size1": rng.randrange(1, 6),
            "training": rng.choice([True, False]),
        }
        guards: list[list[Any]] = []
        for name in rng.sample(sorted(facts), rng.randrange(0, 5)):
            number = isinstance(facts[name], int) and not isinstance(facts[name], bool)
            test = rng.choice(["==", "!=", ">=", "<="] if number else ["==", "=="])
            kept = rng.random() < 0.6
            value = facts[name] if kept else (rng.randrange(1, 6) if number else "bfloat16")
            guards.append([name, test, value])
        found.append([guards, facts])
    return found


def _first_failing(guards: list[list[Any]], facts: dict[str, Any]) -> int:
    for number, (name, test, value) in enumerate(guards):
        if not _TESTS[test](facts[name], value):
            return number
    return -1


def _shape(rng: random.Random, rank: int) -> list[Size]:
    choices: list[Size] = [1, 4, "s0", "s1"]
    return [rng.choice(choices) for _ in range(rank)]


def _broadcast_calls(rng: random.Random) -> list[list[Any]]:
    fixed: list[list[Any]] = [
        [["s0", 4], [1, 4]],
        [["s0"], ["s0"]],
        [["s0"], ["s1"]],
        [["s0"], [4]],
        [["s0", 1, 4], ["s1", 1]],
    ]
    for _ in range(8):
        fixed.append([_shape(rng, rng.randrange(1, 4)), _shape(rng, rng.randrange(1, 4))])
    return fixed


def broadcast(a: list[Size], b: list[Size]) -> list[Any]:
    """Return the shape of two shapes together, and the guards that it takes."""
    rank = max(len(a), len(b))
    one: list[Size] = [*[1] * (rank - len(a)), *a]
    other: list[Size] = [*[1] * (rank - len(b)), *b]
    shape: list[Size] = []
    guards: list[list[Size]] = []
    for x, y in zip(one, other, strict=True):
        if x == 1 or y == 1:
            shape.append(y if x == 1 else x)
            continue
        if x != y:
            symbol, rest = (x, y) if isinstance(x, str) else (y, x)
            pair = sorted([symbol, rest], key=str) if isinstance(rest, str) else [symbol, rest]
            if pair not in guards:
                guards.append(pair)
        shape.append(x if isinstance(x, int) else y if isinstance(y, int) else min(x, y))
    return [shape, guards]


def _element_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = [[[]], [["s0"]], [["s0", "s0", 3]]]
    for _ in range(7):
        found.append([[rng.choice([1, 2, 3, 8, "s0", "s1"]) for _ in range(rng.randrange(1, 6))]])
    return found


def strides(shape: list[Size]) -> list[list[Any]]:
    """Return the strides of a contiguous tensor, each a number and sorted symbols."""
    found: list[list[Any]] = []
    number = 1
    symbols: list[str] = []
    for size in reversed(shape):
        found.append([number, sorted(symbols)])
        if isinstance(size, int):
            number *= size
        else:
            symbols.append(size)
    return found[::-1]


LAB = Lab(
    12,
    "dynamic_shapes",
    "Dynamic shapes: guards, symbols, recompiles",
    35,
    (
        PythonTask(
            "lab12.guards",
            "checking guards",
            "first_failing",
            start="""
def first_failing(guards, facts):
    \"\"\"Return the position of the first guard that does not hold, -1 if all do.

    A guard is [name, test, value], test one of "==", "!=", ">=", "<="; facts has the names.
    \"\"\"
    ...
""",
            hints=(
                "Go through the guards in order with enumerate; look the name up in facts.",
                "Compare facts[name] with value by the test; at the first that fails, return.",
                "A chain of ifs over the four tests yields True or False; if False, return the "
                "position; after the loop, return -1.",
            ),
            calls=_guard_calls,
            check=lambda calls, results: first_wrong(
                "first_failing", calls, results, _first_failing
            ),
        ),
        PythonTask(
            "lab12.broadcast",
            "broadcasting with symbols",
            "broadcast",
            points=3,
            start="""
def broadcast(a, b):
    \"\"\"Return (shape, guards) of two tensors of shapes a and b together.

    Sizes are numbers, or symbols such as "s0" that stand for any size from 2 on. Where two sizes
    must be equal and need not be, add a guard: [symbol, number], or [symbol, symbol] in order of
    the alphabet, each once. The size is then the number, or the first of the two symbols.
    \"\"\"
    ...
""",
            hints=(
                "First make the shapes equally long: put ones in front of the shorter one.",
                "Go through pairs of sizes. If one of them is 1 the other is taken, with no guard: "
                "a symbol is never 1. If they are the same, there is nothing to check either.",
                "A symbol and a number: guard [symbol, number], size the number. Two symbols: "
                "guard them sorted, size the first. Add a guard only if it is not there yet.",
            ),
            calls=_broadcast_calls,
            check=lambda calls, results: first_wrong("broadcast", calls, results, broadcast),
        ),
        PythonTask(
            "lab12.strides",
            "strides with symbols",
            "strides",
            points=2,
            start="""
def strides(shape):
    \"\"\"Return the strides of a contiguous tensor: of each dimension (number, sorted symbols).

    The product of 4 and s0 is (4, ["s0"]); of no sizes it is (1, []).
    \"\"\"
    ...
""",
            hints=(
                "A stride is the product of the sizes of all later dimensions. Begin at the end.",
                "Keep a number and a list of symbols. Note them down for a dimension before you "
                "multiply its own size into them.",
                "for size in reversed(shape): append (number, sorted(symbols)), then multiply or "
                "append; at the end, turn the list round.",
            ),
            calls=_element_calls,
            check=lambda calls, results: first_wrong("strides", calls, results, strides),
        ),
    ),
)
