"""How each scalar operation is written for each type, how types are converted, and constants."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch

from fusec.codegen.common.c_language import literal
from fusec.codegen.common.identities import identity
from fusec.ir.node import Op, const, recording
from fusec.ir.scalars import SCALARS
from fusec.targets.cpp.text import expressions as cpp
from fusec.targets.triton.text import expressions as triton
from support.decisions import compare_part

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
TYPES = (*FLOATS, *WHOLE, *UNSIGNED, torch.bool)
LONGEST = 200
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
NUMBERS: dict[str, Sequence[float]] = {
    "floats": (0.0, -0.0, 1.0, -2.5, 0.1, 1e-40, 1e-300, 3.4028235e38, 3.5e38, 1e300, math.inf)
    + (-math.inf, math.nan, 2.0**-126, 65504.0, 16777217.0),
    "integers": (0, 1, -1, 255, -128, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**64 - 1),
}


@pytest.fixture(autouse=True)
def _recorder():
    with recording():
        yield


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def told(of: Iterable[Any], written: Callable[[Any], str], named: Callable[[Any], str]) -> str:
    """Return what is written of each, those that are written alike together."""
    groups: dict[str, list[str]] = defaultdict(list)
    for each in of:
        try:
            text = written(each)
        except (KeyError, NotImplementedError, OverflowError, ValueError, cpp.UnsupportedNode) as e:
            text = f"- ({type(e).__name__})"
        groups[text].append(named(each))
    line = "; ".join(f"{' '.join(names)}: {text}" for text, names in groups.items())
    digest = hashlib.sha256(line.encode()).hexdigest()[:8]
    return line if len(line) < LONGEST else f"{line[:LONGEST]} ... {digest}"


def as_cpp(name: str, arity: int, dtype: torch.dtype, sums: bool) -> str:
    used: list[str] = []
    plain = cpp.Expression("x"), cpp.Expression("y"), cpp.Expression("z")
    added = [cpp.Expression(f"{each.text} + 1", cpp.SUM) for each in plain]
    dtypes = [dtype] * arity if name != "where" else [torch.bool, dtype, dtype]
    args = tuple(const(0, each) for each in dtypes)
    scalar = SCALARS.get(name)
    gives = scalar.gives if scalar is not None and scalar.gives is not None else dtype
    made = cpp.op_expression(
        Op(name, args, gives), tuple((added if sums else plain)[:arity]), used.append
    )
    return f"{made.text} ({made.strength}{', ' + ' '.join(used) if used else ''})"


def as_triton(name: str, arity: int, dtype: torch.dtype, how: str, relaxed: bool = False) -> str:
    needs = triton.Needs()
    texts = {
        "x": [triton.Text(each) for each in "xyz"],
        "sums": [triton.Text(f"{each} + 1", triton.SUM) for each in "xyz"],
        "numbers": [triton.Text(each, literal=True) for each in "123"],
        "one number": [triton.Text("x"), *(triton.Text(each, literal=True) for each in "23")],
    }[how][:arity]
    dtypes = [dtype] * arity if name != "where" else [torch.bool, dtype, dtype]
    made = triton.operation(name, dtypes, texts, needs, relaxed)
    rest = f", {' '.join(sorted(needs.helpers))}" if needs.helpers else ""
    return f"{made.text} ({made.strength}{rest}{', literal' if made.literal else ''})"


@pytest.mark.parametrize("name", [*SCALARS, "where"])
def test_how_an_operation_is_written(name: str) -> None:
    arity = SCALARS[name].arity if name in SCALARS else 3
    found = [
        f"cpp, {'sums' if sums else 'x'}: "
        + told(TYPES, lambda dtype, sums=sums: as_cpp(name, arity, dtype, sums), short)
        for sums in (False, True)
    ]
    found += [
        f"triton, {how}: "
        + told(TYPES, lambda dtype, how=how: as_triton(name, arity, dtype, how), short)
        for how in ("x", "sums", "numbers", "one number")
    ]
    relaxed = told(FLOATS, lambda dtype: as_triton(name, arity, dtype, "x", True), short)
    compare_part("operations", name, [*found, f"triton, relaxed: {relaxed}"])


@pytest.mark.parametrize("source", [*TYPES, *FLOAT8], ids=short)
def test_how_types_are_converted(source: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def into_cpp(target: torch.dtype) -> str:
        used: list[str] = []
        given = cpp.Expression("x + 1", cpp.SUM)
        made = cpp.cast_expression(source, target, given, used.append)
        return f"{made.text} ({made.strength} {' '.join(used)})"

    def into_triton(target: torch.dtype, literal: bool = False, bits: bool = False) -> str:
        needs = triton.Needs()
        text = triton.Text("1", literal=True) if literal else triton.Text("x + 1", triton.SUM)
        made = triton.convert(text, source, target, needs, bits)
        return f"{made.text} ({made.strength} {' '.join(sorted(needs.helpers))})"

    targets = (*TYPES, *FLOAT8)
    found = [f"cpp: {told(TYPES, into_cpp, short)}"]
    for saturates in (True, False):
        monkeypatch.setattr(triton, "float8_saturates", lambda value=saturates: value)
        found.append(f"triton, {saturates}: {told(targets, into_triton, short)}")
    found.append(f"literal: {told(targets, lambda t: into_triton(t, literal=True), short)}")
    found.append(f"bits: {told(targets, lambda t: into_triton(t, bits=True), short)}")
    compare_part("operations", f"from {short(source)}", found)


@pytest.mark.parametrize("dtype", TYPES, ids=short)
def test_how_constants_are_written(dtype: torch.dtype) -> None:
    def as_typed(value: Any) -> str:
        text = triton.number(value, dtype)
        return f"{text.text} {text.strength} {text.literal} {triton.typed(text, dtype).text}"

    numbers = NUMBERS["floats" if dtype.is_floating_point else "integers"]
    kinds = ("sum", "prod", "any", "all", "xor", "max", "min", "argmax", "argmin")
    found = [
        f"cpp: {told(numbers, lambda value: literal(value, dtype), repr)}",
        f"triton: {told(numbers, as_typed, repr)}",
        f"nothing: {told(kinds, lambda kind: literal(identity(kind, dtype), dtype), str)}",
    ]
    compare_part("operations", f"numbers of {short(dtype)}", found)
