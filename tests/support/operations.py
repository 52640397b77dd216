"""Every scalar operation on every pair of special values, as one body."""

from __future__ import annotations

import math

import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.node import Node, const, op, recording
from fusec.ir.scalars import RANDOM_BITS, RANDOM_WORD, SCALARS, Scalar
from support.triton_bodies import Case, at, axes, buffer

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 10.0, -10.0, 1e-10, -1e-10, 1e-40]
SPECIAL += [1e30, -1e30, math.inf, -math.inf, math.nan, 0.1, 88.5, -87.0, -104.0, 20.0, 1e-5, 170.5]
WHOLE = [0, 1, -1, 2, -2, 3, -3, 7, 100, -100, 127, -128, 31, 63, 64, 70]
# What targets choose for themselves, each for itself.
FORMS = frozenset(n for n in SCALARS if n.startswith("one_plus_") or SCALARS[n].form_of) | {
    "gelu_slope",
    "nearest_int",
}


def operations(dtype: torch.dtype) -> list[str]:
    """Return the names of the operations on ``dtype`` that every target has."""
    known = FORMS | {RANDOM_BITS, RANDOM_WORD}
    return sorted(n for n, s in SCALARS.items() if dtype in s.takes and n not in known)


def special(dtype: torch.dtype) -> torch.Tensor:
    """Return values at which operations differ."""
    values = SPECIAL if dtype.is_floating_point else WHOLE
    if dtype == torch.bool:
        values = [0, 1]
    given = torch.tensor(values, dtype=torch.float64 if dtype.is_floating_point else torch.int64)
    return (given.abs() if not dtype.is_signed else given).to(dtype)


def arguments(scalar: Scalar, a: Node, b: Node) -> tuple[Node, ...]:
    """Return what an operation is applied to; a condition for the one of three arguments."""
    if scalar.traps and not a.dtype.is_floating_point:  # eager refuses a zero
        zero = op("eq", (b, const(0, b.dtype)), torch.bool)
        b = ops.where(zero, const(3, b.dtype), b)
    if scalar.arity == 3:
        return op("le", (a, b), torch.bool), a, b
    return (a, b)[: scalar.arity]


def operation_case(dtype: torch.dtype, names: list[str]) -> Case:
    """Return one body that stores the result of every operation, on pairs of special values."""
    given = special(dtype)
    count = len(given)
    buffers = {n: buffer(n, (count * count,), dtype) for n in ("a", "b")}
    stores = []
    with recording():
        (i,) = axes(count * count)
        a, b = (ops.load(n, at(i), dtype) for n in ("a", "b"))
        for name in names:
            scalar = SCALARS[name]
            value = op(name, arguments(scalar, a, b), scalar.gives or dtype)
            out = f"{name}_out"
            buffers[out] = buffer(out, (count * count,), value.dtype)
            stores.append(Store(out, at(i), value))
        body = Body((i,), (), tuple(stores))
    case = Case("operations", body, buffers)
    case.fill = {"a": lambda t: given.repeat_interleave(count), "b": lambda t: given.repeat(count)}
    return case
