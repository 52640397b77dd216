"""The stack code of lab 3: run, captured, continued by references, and made at random."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Sequence
from typing import Any

from fuselab.labs.content.answers import call_text, same, short

Code = list[list[Any]]

TENSOR = "tensor"  # what stands for an input that is one
SHOW = "show"  # the function that cannot be captured
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<": operator.lt,
    ">": operator.gt,
}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda value: max(value, 0.0),
    "sin": math.sin,
    "abs": abs,
}
_STEPS = 5000


class NoCode(ValueError):
    """What was returned cannot be run."""


# -- what is right --------------------------------------------------------------------------


def run(
    code: Code, given: dict[str, Any], position: int = 0, stack: Sequence[Any] = ()
) -> list[Any]:
    """Return what code returns, and what it shows.

    Raises:
        NoCode: It cannot be run.
    """
    variables, values, shown = dict(given), list(stack), []
    for _ in range(_STEPS):
        if not 0 <= position < len(code):
            raise NoCode(f"it comes to instruction {position} of {len(code)}")
        op, argument = code[position]
        position += 1
        try:
            if op == "load":
                values.append(variables[argument])
            elif op == "const":
                values.append(argument)
            elif op == "store":
                variables[argument] = values.pop()
            elif op == "pop":
                values.pop()
            elif op == "binary":
                right, left = values.pop(), values.pop()
                values.append(_BINARY[argument](left, right))
            elif op == "call":
                if argument == SHOW:
                    shown.append(values[-1])
                else:
                    values.append(_FUNCTIONS[argument](values.pop()))
            elif op == "jump":
                position = argument
            elif op == "jump_if_false":
                position = position if values.pop() else argument
            elif op == "return":
                return [values.pop(), shown]
            else:
                raise NoCode(f"there is no instruction {short(op)}")
        except (LookupError, TypeError) as error:
            kind = type(error).__name__
            raise NoCode(f"instruction {position - 1}, {short([op, argument])}: {kind}") from None
    raise NoCode("it does not end")


def capture(code: Code, given: dict[str, Any]) -> dict[str, Any]:
    """Return the graph of code, its guards, and where and with what it stops."""
    graph: list[list[Any]] = []
    guards: list[list[Any]] = []
    stored: dict[str, Any] = {}
    stack: list[Any] = []
    position = 0

    def apply(op: str, values: list[Any], known: Callable[..., Any]) -> Any:
        if not any(isinstance(value, str) for value in values):
            return known(*values)
        graph.append([f"%{len(graph)}", op, values])
        return graph[-1][0]

    while True:
        op, argument = code[position]
        stopped = op == "call" and argument == SHOW
        stopped |= op == "jump_if_false" and isinstance(stack[-1], str)
        if stopped or op == "return":
            return {
                "graph": graph,
                "guards": guards,
                "stop": position if stopped else None,
                "stack": stack if stopped else stack[-1:],
                "stored": stored,
            }
        position += 1
        if op == "load" and argument in stored:
            stack.append(stored[argument])
        elif op == "load":
            guard = [argument, given[argument]]
            if guard not in guards:
                guards.append(guard)
            stack.append(argument if given[argument] == TENSOR else given[argument])
        elif op == "const":
            stack.append(argument)
        elif op == "store":
            stored[argument] = stack.pop()
        elif op == "pop":
            stack.pop()
        elif op == "binary":
            right, left = stack.pop(), stack.pop()
            stack.append(apply(argument, [left, right], _BINARY[argument]))
        elif op == "call":
            stack.append(apply(argument, [stack.pop()], _FUNCTIONS[argument]))
        elif op == "jump" or not stack.pop():
            position = argument


def find(entries: list[list[list[Any]]], facts: dict[str, Any]) -> int:
    """Return the first entry whose guards hold, -1 if there is none."""
    for number, guards in enumerate(entries):
        if all(type(facts[n]) is type(v) and facts[n] == v for n, v in guards):
            return number
    return -1


# -- calls ----------------------------------------------------------------------------------


class Writer:
    """Writes code at random.

    Args:
        rng: Where chance comes from.
        breaks: Whether something in it cannot be captured.
    """

    def __init__(self, rng: random.Random, *, breaks: bool) -> None:
        self.rng, self.breaks = rng, breaks
        self.code: Code = []
        self.tensors, self.numbers = ["x", "y"], ["n", "k"]

    def put(self, op: str, argument: Any = None) -> int:
        """Add an instruction; return its position."""
        self.code.append([op, argument])
        return len(self.code) - 1

    def number(self, depth: int) -> None:
        """Push a number."""
        if depth == 0 or self.rng.random() < 0.3:
            if self.rng.random() < 0.6:
                self.put("load", self.rng.choice(self.numbers))
            else:
                self.put("const", self.rng.randrange(1, 9))
            return
        self.number(depth - 1)
        self.number(depth - 1)
        self.put("binary", self.rng.choice("+-"))

    def tensor(self, depth: int) -> None:
        """Push a tensor."""
        chance = self.rng.random()
        if depth == 0 or chance < 0.15:
            self.put("load", self.rng.choice(self.tensors))
        elif chance < 0.4:
            self.tensor(depth - 1)
            self.put("call", self.rng.choice(["relu", "sin", "abs"]))
        elif self.breaks and chance < 0.5:
            self.tensor(depth - 1)
            self.put("call", SHOW)
        else:
            sign = self.rng.choice("+-*")
            sides = [self.tensor, self.rng.choice([self.tensor, self.number])]
            self.rng.shuffle(sides)
            for side in sides:
                side(depth - 1)
                if sign == "*" and side == self.tensor:
                    self.put("call", "sin")  # what is multiplied in a loop stays finite
            self.put("binary", sign)

    def assign(self) -> None:
        """Store in a variable that there is, so that every way leaves it defined."""
        tensor = self.rng.random() < 0.7
        (self.tensor if tensor else self.number)(2)
        self.put("store", self.rng.choice(self.tensors if tensor else self.numbers))

    def branch(self) -> None:
        """Write an ``if``."""
        if self.breaks and self.rng.random() < 0.4:
            self.tensor(1)
        else:
            self.number(1)
        self.put("const", self.rng.randrange(-3, 9))
        self.put("binary", self.rng.choice("<>"))
        test = self.put("jump_if_false")
        self.assign()
        self.code[test][1] = len(self.code)

    def loop(self) -> None:
        """Write a ``while`` that counts down."""
        self.put("const", self.rng.randrange(1, 4))
        self.put("store", "i")
        top = self.put("load", "i")
        self.put("const", 0)
        self.put("binary", ">")
        test = self.put("jump_if_false")
        self.assign()
        for op, argument in (("load", "i"), ("const", 1), ("binary", "-"), ("store", "i")):
            self.put(op, argument)
        self.put("jump", top)
        self.code[test][1] = len(self.code)

    def program(self, statements: int) -> Code:
        """Write a whole function."""
        for number in range(statements):
            if number % 3 == 1:
                self.tensor(1)
                self.put("pop")
            self.rng.choice([self.assign, self.assign, self.branch, self.loop])()
        self.tensor(2)
        self.put("return")
        return self.code


def _short(code: str) -> Code:
    """Return code from a line of words: ``load x; call relu; return``."""
    found: Code = []
    for each in code.split(";"):
        op, _, argument = each.strip().partition(" ")
        numeric = argument.lstrip("-").isdigit()
        found.append([op, int(argument) if numeric else argument or None])
    return found


_PLAIN = (
    "load x; call relu; return",
    "load x; load y; binary -; return",
    "load n; load k; binary -; load x; binary *; return",
    "load x; store y; load y; load y; binary *; load x; binary +; return",
    "load n; const 2; binary >; jump_if_false 6; load x; return; load y; return",
    "load x; load n; const 0; binary >; jump_if_false 8; load y; binary +; jump 12; pop; load k; "
    "load y; binary *; return",
)
_STOPS = (
    "load x; call show; call relu; return",
    "load x; call sin; load y; call show; binary -; return",
    "load n; store k; load x; const 1; binary *; const 0; binary >; jump_if_false 10; load y; "
    "return; load k; load y; binary +; return",
)


def numbers(rng: random.Random) -> dict[str, Any]:
    """Return values to run code with."""
    x, y = (round(rng.uniform(-2, 2), 2) for _ in range(2))
    return {"x": x, "y": y, "n": rng.randrange(1, 6), "k": rng.randrange(1, 6)}


def kinds(rng: random.Random) -> dict[str, Any]:
    """Return what capture is told of the inputs."""
    return numbers(rng) | {"x": TENSOR, "y": TENSOR}


def _programs(rng: random.Random, *, breaks: bool) -> list[Code]:
    fixed = [_short(line) for line in _PLAIN + (_STOPS if breaks else ())]
    counts = (1, 2, 2, 3, 3, 4, 5)
    return fixed + [Writer(rng, breaks=breaks).program(count) for count in counts]


def run_calls(rng: random.Random) -> list[list[Any]]:
    """Return calls with code and values."""
    return [[code, numbers(rng)] for code in _programs(rng, breaks=True)]


def capture_calls(rng: random.Random) -> list[list[Any]]:
    """Return calls with code that can be captured to its end, and kinds."""
    return [[code, kinds(rng)] for code in _programs(rng, breaks=False)]


def break_calls(rng: random.Random) -> list[list[Any]]:
    """Return calls with code that cannot all be captured, and kinds."""
    return [[code, kinds(rng)] for code in _programs(rng, breaks=True)]


def find_calls(rng: random.Random) -> list[list[Any]]:
    """Return calls with entries and facts; some values are equal and of another type."""
    found: list[list[Any]] = [
        [[], {"n": 1}],
        [[[]], {"n": 1}],
        [[[["n", 1]]], {"n": 1}],
        [[[["n", 1]]], {"n": True}],
        [[[["n", 2]], [["n", 2.0]]], {"n": 2.0}],
        [[[["x", TENSOR]]], {"x": 3}],
        [[[["x", TENSOR], ["n", 2]], [["x", TENSOR]]], {"x": TENSOR, "n": 1}],
    ]
    choices: list[Any] = [0, 1, 2, 1.0, True, False, TENSOR]
    for _ in range(10):
        facts = {name: rng.choice(choices) for name in "xnk"}
        entries = [
            [
                [name, facts[name] if rng.random() < 0.7 else rng.choice(choices)]
                for name in rng.sample("xnk", rng.randrange(1, 4))
            ]
            for _ in range(rng.randrange(1, 5))
        ]
        found.append([entries, facts])
    return found


def continuation_calls(rng: random.Random) -> list[list[Any]]:
    """Return calls with code, a position in it, and how many values the stack has there."""
    found: list[list[Any]] = [
        [_short(_STOPS[0]), 2, 1],
        [_short(_STOPS[1]), 4, 2],
        [_short(_STOPS[2]), 8, 0],
        [_short(_PLAIN[5]), 5, 1],
        [_short(_PLAIN[5]), 0, 0],
    ]
    for count in (1, 2, 3, 3, 4, 5, 5):
        code = Writer(rng, breaks=True).program(count)
        places = [n + 1 for n, (op, what) in enumerate(code) if op == "call" and what == SHOW]
        if not places:
            places = [n + 1 for n, (op, _) in enumerate(code) if op == "call"] or [0]
        position = rng.choice(places)
        found.append([code, position, _depth(code, position)])
    return found


def _depth(code: Code, position: int) -> int:
    """Return how many values are on the stack at a position, whichever way leads there."""
    depths, todo = {0: 0}, [0]
    change = {"load": 1, "const": 1, "store": -1, "pop": -1, "binary": -1, "jump_if_false": -1}
    while todo:
        place = todo.pop()
        op, argument = code[place]
        after = depths[place] + change.get(op, 0)
        ways = [argument] if op.startswith("jump") else []
        if op not in {"jump", "return"}:
            ways.append(place + 1)
        for way in ways:
            if way not in depths:
                depths[way] = after
                todo.append(way)
    return depths[position]


# -- what is wrong --------------------------------------------------------------------------


def check_captured(calls: list[list[Any]], results: list[Any], keys: Sequence[str]) -> str:
    """Return which part of what was captured is wrong first."""
    for call, result in zip(calls, results, strict=True):
        wanted = capture(*call)
        shown = call_text("capture", call)
        if not isinstance(result, dict) or set(result) != set(keys):
            return f"{shown} gives {short(result)}: a dictionary of {', '.join(keys)} is asked for"
        for key in keys:
            right = wanted["stack"][0] if key == "result" else wanted[key]
            if not same(result[key], right):
                return f"{shown}: {key} is {short(result[key])}, which is not right"
    return ""


def check_continuations(calls: list[list[Any]], results: list[Any]) -> str:
    """Return which continuation does something else than the rest of its code."""
    for call, result in zip(calls, results, strict=True):
        code, position, depth = call
        shown = call_text("continuation", call)
        pairs = isinstance(result, list) and all(
            isinstance(each, list) and len(each) == 2 and isinstance(each[0], str)
            for each in result
        )
        if not pairs:
            return f"{shown} gives {short(result)}: a list of [op, argument] is asked for"
        rng = random.Random(position)
        for _ in range(4):
            variables = numbers(rng) | {"i": rng.randrange(1, 4)}
            stack = [round(rng.uniform(-2, 2), 2) for _ in range(depth)]
            wanted = run(code, variables, position, stack)
            given = variables | {f"stack{n}": value for n, value in enumerate(stack)}
            try:
                found = run(result, given)
            except NoCode as error:
                return f"{shown} gives code that cannot be run: {error}"
            if not same(found, wanted):
                return f"{shown} gives code that does something else than the rest of the function"
    return ""


__all__ = [
    "break_calls",
    "capture",
    "capture_calls",
    "check_captured",
    "check_continuations",
    "continuation_calls",
    "find",
    "find_calls",
    "run",
    "run_calls",
]
