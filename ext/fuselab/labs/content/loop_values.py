"""The loop-level IR of lab 5: random programs, their values by eager, a reference lowering."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuselab.labs.content.answers import call_text, same, short

Value = (
    Any  # a number, or a list: ["load", name, index], [operator, ...], ["sum", name, size, value]
)
Index = Any  # a whole number, a variable's name, or [sign, index, index]
Program = dict[str, Any]

_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}
_BINARY = {"add": "+", "sub": "-", "mul": "*"}
_DEPTH = 60


class BadValue(ValueError):
    """What was returned is no value of the IR."""


# -- interpreting ---------------------------------------------------------------------------


def evaluate(value: Value, variables: dict[str, int], data: dict[str, Any], depth: int = 0) -> Any:
    """Return what a value of the IR is.

    Raises:
        BadValue: It is none.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if not isinstance(value, list) or not value or depth > _DEPTH:
        raise BadValue(f"{short(value)} is not a value")
    match value:
        case ["load", str(name), list(index)] if name in data:
            found = data[name]
            for each in index:
                place = position(each, variables)
                if not isinstance(found, list) or not 0 <= place < len(found):
                    raise BadValue(f"{short(value)} is out of range at {variables}")
                found = found[place]
            if isinstance(found, list):
                raise BadValue(f"{short(value)} has too few indices")
            return found
        case ["relu", inner]:
            return max(evaluate(inner, variables, data, depth + 1), 0)
        case ["sum", str(name), int(size), inner] if 0 <= size < 100:
            return sum(evaluate(inner, variables | {name: n}, data, depth + 1) for n in range(size))
        case [str(op), left, right] if op in _BINARY:
            sides = [evaluate(side, variables, data, depth + 1) for side in (left, right)]
            return _SIGNS[_BINARY[op]](*sides)
    raise BadValue(f"{short(value)} is not a value")


def position(index: Index, variables: dict[str, int]) -> int:
    """Return where an index points to.

    Raises:
        BadValue: It is none.
    """
    match index:
        case bool():
            pass
        case int(number):
            return number
        case str(name) if name in variables:
            return variables[name]
        case [str(sign), left, right] if sign in _SIGNS:
            return int(_SIGNS[sign](position(left, variables), position(right, variables)))
    raise BadValue(
        f"{short(index)} is not an index; there are {', '.join(variables) or 'no variables'}"
    )


def interpret(value: Value, shape: Sequence[int], data: dict[str, Any]) -> list[Any]:
    """Return every element of a tensor, the last dimension fastest."""
    return [evaluate(value, variables, data) for variables in _points(shape)]


def _points(shape: Sequence[int]) -> list[dict[str, int]]:
    places = itertools.product(*(range(size) for size in shape))
    return [{f"i{d}": n for d, n in enumerate(place)} for place in places]


# -- lowering -------------------------------------------------------------------------------

_Inner = Callable[[list[Index]], Value]


def lower(program: Program) -> list[Any]:
    """Return the shape of a program's result, and its element at i0, i1, ..."""
    known = {name: (shape, _load(name)) for name, shape in program["inputs"].items()}
    count = itertools.count()
    for name, op, inputs, argument in program["steps"]:
        given = [known[each] for each in inputs]
        if op in _BINARY or op == "relu":
            known[name] = _pointwise(op, given)
        elif op == "sum":
            known[name] = _sum(*given[0], argument, lambda: f"r{next(count)}")
        else:
            known[name] = _view(op, *given[0], argument)
    shape, inner = known[program["steps"][-1][0]]
    return [shape, inner([f"i{n}" for n in range(len(shape))])]


def _load(name: str) -> _Inner:
    return lambda index: ["load", name, index]


def _pointwise(op: str, given: list[tuple[list[int], _Inner]]) -> tuple[list[int], _Inner]:
    shape = list(torch.broadcast_shapes(*(each for each, _ in given)))

    def at(mine: list[int], inner: _Inner, index: list[Index]) -> Value:
        last = index[len(index) - len(mine) :]
        return inner([0 if n == 1 else i for n, i in zip(mine, last, strict=True)])

    return shape, lambda index: [op, *(at(mine, inner, index) for mine, inner in given)]


def _view(op: str, shape: list[int], inner: _Inner, argument: Any) -> tuple[list[int], _Inner]:
    if op == "permute":
        back = [argument.index(n) for n in range(len(shape))]
        return [shape[n] for n in argument], lambda index: inner([index[n] for n in back])

    def changed(index: list[Index], dim: int, other: Index) -> Value:
        return inner([*index[:dim], other, *index[dim + 1 :]])

    if op == "flip":
        last = shape[argument] - 1
        return shape, lambda index: changed(index, argument, ["-", last, index[argument]])
    dim, start, step = argument
    size = len(range(start, shape[dim], step))
    sliced = [*shape[:dim], size, *shape[dim + 1 :]]
    return sliced, lambda index: changed(index, dim, ["+", start, ["*", step, index[dim]]])


def _sum(
    shape: list[int], inner: _Inner, dim: int, fresh: Callable[[], str]
) -> tuple[list[int], _Inner]:
    def at(index: list[Index]) -> Value:
        name = fresh()
        return ["sum", name, shape[dim], inner([*index[:dim], name, *index[dim:]])]

    return [*shape[:dim], *shape[dim + 1 :]], at


# -- programs -------------------------------------------------------------------------------


def _program(rng: random.Random, count: int, ops: Sequence[str]) -> Program:
    shapes: dict[str, list[int]] = {}
    rank = rng.randrange(1, 4)
    sizes = [rng.randrange(2, 4) for _ in range(rank)]
    for name in "xyz":
        mine = [1 if rng.random() < 0.25 else size for size in sizes]
        shapes[name] = mine[rng.randrange(rank) :] if rng.random() < 0.3 else mine
    inputs = dict(shapes)
    steps: list[list[Any]] = []
    while len(steps) < count:
        op, name = rng.choice(ops), f"t{len(steps)}"
        one = rng.choice([*list(shapes)[-2:], *shapes])
        shape, given = shapes[one], [one]
        argument: Any = None
        if op in _BINARY:
            given.append(rng.choice(list(shapes)))
            rng.shuffle(given)
        elif op != "relu" and not shape:
            continue
        if op == "permute":
            argument = rng.sample(range(len(shape)), len(shape))
        elif op in {"flip", "sum"}:
            argument = rng.randrange(len(shape))
        elif op == "slice":
            dim = rng.randrange(len(shape))
            argument = [dim, rng.randrange(shape[dim]), rng.randrange(1, 3)]
        try:
            found = eager(op, [torch.zeros(shapes[each]) for each in given], argument)
        except RuntimeError:  # shapes that do not go together
            continue
        shapes[name] = list(found.shape)
        steps.append([name, op, given, argument])
    return {"inputs": inputs, "steps": steps}


def eager(op: str, given: Sequence[torch.Tensor], argument: Any) -> torch.Tensor:
    """Return what an operator yields."""
    if op == "permute":
        return given[0].permute(argument)
    if op == "flip":
        return given[0].flip(argument)
    if op == "slice":
        dim, start, step = argument
        return given[0][(slice(None),) * dim + (slice(start, None, step),)]
    if op == "sum":
        return given[0].sum(argument)
    return torch.relu(given[0]) if op == "relu" else _SIGNS[_BINARY[op]](*given)


POINTWISE = (*_BINARY, "relu")
VIEWS = ("permute", "flip", "slice")
_FIXED: tuple[Program, ...] = (
    {"inputs": {"x": [2, 3]}, "steps": [["t0", "relu", ["x"], None]]},
    {"inputs": {"x": [3], "y": [2, 3]}, "steps": [["t0", "add", ["x", "y"], None]]},
    {"inputs": {"x": [2, 3], "y": [3]}, "steps": [["t0", "sub", ["x", "y"], None]]},
    {"inputs": {"x": [2, 1], "y": [1, 3]}, "steps": [["t0", "mul", ["x", "y"], None]]},
)
_FIXED_VIEWS: tuple[Program, ...] = (
    {"inputs": {"x": [2, 3]}, "steps": [["t0", "permute", ["x"], [1, 0]]]},
    {"inputs": {"x": [2, 3, 4]}, "steps": [["t0", "permute", ["x"], [1, 2, 0]]]},
    {"inputs": {"x": [4]}, "steps": [["t0", "flip", ["x"], 0]]},
    {"inputs": {"x": [2, 3, 2]}, "steps": [["t0", "flip", ["x"], 0]]},
    {"inputs": {"x": [2, 5]}, "steps": [["t0", "slice", ["x"], [1, 1, 2]]]},
    {"inputs": {"x": [3, 2, 4]}, "steps": [["t0", "slice", ["x"], [0, 1, 1]]]},
    {
        "inputs": {"x": [2, 5]},
        "steps": [["t0", "slice", ["x"], [1, 1, 2]], ["t1", "flip", ["t0"], 1]],
    },
)
_FIXED_SUMS: tuple[Program, ...] = (
    {"inputs": {"x": [3]}, "steps": [["t0", "sum", ["x"], 0]]},
    {"inputs": {"x": [2, 3]}, "steps": [["t0", "sum", ["x"], 0]]},
    {"inputs": {"x": [2, 3]}, "steps": [["t0", "sum", ["x"], 0], ["t1", "sum", ["t0"], 0]]},
    {
        "inputs": {"x": [2, 3]},
        "steps": [["t0", "sum", ["x"], 1], ["t1", "mul", ["t0", "t0"], None]],
    },
)


def programs(rng: random.Random, ops: Sequence[str]) -> list[list[Any]]:
    """Return calls with a program of the operators."""
    fixed = list(_FIXED)
    if "flip" in ops:
        fixed += _FIXED_VIEWS
    if "sum" in ops:
        fixed += _FIXED_SUMS
    return [[each] for each in fixed] + [[_program(rng, n, ops)] for n in (1, 2, 3, 3, 4, 4, 5)]


def _data(inputs: dict[str, list[int]], seed: int) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(-5, 6, shape, generator=chance).double()
        for name, shape in inputs.items()
    }


def interpret_calls(rng: random.Random) -> list[list[Any]]:
    """Return calls with a value, a shape and data."""
    found: list[list[Any]] = [[7, [2], {}], [["load", "x", [0]], [], {"x": [3.0]}]]
    for (program,) in programs(rng, (*POINTWISE, *VIEWS, "sum")):
        shape, value = lower(program)
        data = _data(program["inputs"], rng.randrange(1000))
        found.append([value, shape, {name: each.tolist() for name, each in data.items()}])
    return found


def text_calls(rng: random.Random) -> list[list[Any]]:
    """Return calls with a value without sums, and the shapes of what it loads."""
    twice = ["mul", ["load", "x", [["+", 1, "i0"]]], 2]
    found: list[list[Any]] = [[["load", "x", ["i0"]], {"x": [3]}], [twice, {"x": [4]}]]
    for (program,) in programs(rng, (*POINTWISE, *VIEWS)):
        found.append([lower(program)[1], program["inputs"]])
    return found


# -- what is wrong --------------------------------------------------------------------------


def check_lowered(calls: list[list[Any]], results: list[Any]) -> str:
    """Return which lowering is wrong first: its shape, or an element that eager has otherwise."""
    for (program,), result in zip(calls, results, strict=True):
        shown = call_text("lower", [program])
        data = _data(program["inputs"], len(shown))
        known = dict(data)
        for name, op, inputs, argument in program["steps"]:
            known[name] = eager(op, [known[each] for each in inputs], argument)
        wanted = known[program["steps"][-1][0]]
        if not isinstance(result, list) or len(result) != 2:
            return f"{shown} gives {short(result)}: (shape, value) is asked for"
        if result[0] != list(wanted.shape):
            return f"{shown} gives shape {short(result[0])}, which is not right"
        lists = {name: each.tolist() for name, each in data.items()}
        try:
            found = interpret(result[1], wanted.shape, lists)
        except BadValue as error:
            return f"{shown} gives {short(result[1])}: {error}"
        if not same(found, wanted.flatten().tolist()):
            return f"{shown} gives {short(result[1])}, which is something else than in eager"
    return ""


def check_texts(calls: list[list[Any]], results: list[Any]) -> str:
    """Return which text is wrong first."""
    for (value, shapes), text in zip(calls, results, strict=True):
        shown = call_text("text", [value, shapes])
        if not isinstance(text, str):
            return f"{shown} gives {short(text)}: a text is asked for"
        data = _data(shapes, len(shown))
        lists = {name: each.tolist() for name, each in data.items()}
        flat = {name: each.flatten().tolist() for name, each in data.items()}
        # The indices run as far as they may: a point that is out of range there is left out.
        for point in _points([4, 4, 4]):
            try:
                wanted = evaluate(value, point, lists)
            except BadValue:
                continue
            try:
                found = _read(ast.parse(text, mode="eval").body, point, flat)
            except (SyntaxError, BadValue, RecursionError) as error:
                return f"{shown} gives {short(text)}: {error}"
            if not same(found, wanted):
                return f"{shown} gives {short(text)}, which has another value at {point}"
    return ""


def _read(node: ast.expr, variables: dict[str, int], flat: dict[str, list[float]]) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name) if name in variables:
            return variables[name]
        case ast.Subscript(value=ast.Name(id=name), slice=place) if name in flat:
            where = _read(place, variables, flat)
            if not isinstance(where, int) or not 0 <= where < len(flat[name]):
                raise BadValue(f"`{ast.unparse(node)}` is out of range at {variables}")
            return flat[name][where]
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as op, right=right):
            sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}[type(op)]
            sides = [_read(side, variables, flat) for side in (left, right)]
            return _SIGNS[sign](*sides)
        case ast.Call(func=ast.Name(id="relu"), args=[inner], keywords=[]):
            return max(_read(inner, variables, flat), 0)
    raise BadValue(
        f"`{ast.unparse(node)[:60]}` is neither an input with one index nor one of + - * and relu"
    )


__all__ = [
    "POINTWISE",
    "VIEWS",
    "check_lowered",
    "check_texts",
    "interpret",
    "interpret_calls",
    "lower",
    "programs",
    "text_calls",
]
