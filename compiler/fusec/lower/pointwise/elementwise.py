"""What rules for elementwise operators share: types that are promoted, elements, rounding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import elementwise_dtypes
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.ir import ops
from fusec.ir.checks import CheckKind
from fusec.ir.index import Expr
from fusec.ir.node import Const, Node
from fusec.lower.registry import Lowering
from fusec.lower.values import (
    SUPPORTED_DTYPES,
    Index,
    NotLowered,
    NumberValue,
    TensorValue,
    broadcast_index,
)

Operand = TensorValue | Expr | int | float | bool


def promoted(
    operands: tuple[object, ...], kind: PROMOTION = PROMOTION.DEFAULT
) -> tuple[torch.dtype, torch.dtype]:
    """Return torch's (computation, result) dtypes for mixed operands.

    The rule itself is torch's (``elementwise_dtypes``); symbolic integers count as ints.
    """
    tensors = [o for o in operands if isinstance(o, TensorValue)]
    if (
        kind is PROMOTION.DEFAULT
        and len(tensors) == len(operands)
        and len({t.dtype for t in tensors}) == 1
    ):
        return ops.compute_dtype(tensors[0].dtype), tensors[0].dtype
    stand_ins: list[object] = []
    for operand in operands:
        if isinstance(operand, NumberValue):
            stand_ins.append(1.0)
        elif isinstance(operand, TensorValue):
            shape = (1,) * operand.ndim
            stand_ins.append(torch.empty(shape, dtype=operand.dtype, device="meta"))
        elif isinstance(operand, Expr):
            stand_ins.append(1)
        elif operand is not None:
            stand_ins.append(operand)
    compute, result = elementwise_dtypes(*stand_ins, type_promotion_kind=kind)
    if compute not in SUPPORTED_DTYPES:
        raise NotLowered(f"{compute} has no kernels")
    return ops.compute_dtype(compute), result


def element(operand: object, index: Index, dtype: torch.dtype) -> Node:
    """Return an operand of a broadcasting operator at ``index``, as ``dtype``."""
    if isinstance(operand, TensorValue):
        value = operand.at(broadcast_index(index, operand.shape))
        # half values widen first; a promotion to an integer type never comes from a float
        return ops.cast(ops.cast(value, ops.compute_dtype(operand.dtype)), dtype)
    if isinstance(operand, Expr):
        return ops.cast(ops.index_value(operand, torch.int64), dtype)
    assert isinstance(operand, (int, float))
    return ops.const(operand, dtype)


def rounded(operand: object, value: Node, common: torch.dtype) -> Node:
    """Return an operand's element as eager compares it: rounded where its type is a wider one.

    A number, or a tensor of no dimensions, takes part in the others' type: ``x == 0.1`` holds for
    a half-precision x that is the nearest to 0.1.

    Args:
        operand: What it is an element of.
        value: The element, in the type that is computed in.
        common: The type that the operands have in common.
    """
    own = operand.dtype if isinstance(operand, TensorValue) else torch.float64
    if common.itemsize != 2 or not common.is_floating_point or own == common:
        return value
    if isinstance(value, Const):
        with unset_fake_temporarily():
            number = torch.tensor(value.value, dtype=torch.float64).to(common).item()
        return ops.const(number, value.dtype)
    return ops.cast(ops.cast(value, common), value.dtype)


def map_elements(
    lowering: Lowering,
    operands: tuple[object, ...],
    function: Callable[..., Node],
    kind: PROMOTION = PROMOTION.DEFAULT,
) -> TensorValue:
    """Emit ``function`` of the operands' elements, broadcast and promoted as torch does."""
    dtype, _ = promoted(operands, kind)

    def value(index: Index) -> Node:
        return function(*(element(o, index, dtype) for o in operands))

    return lowering.pointwise(value)


def truth(value: Node) -> Node:
    """Return whether a number is not zero (NaN is true)."""
    if value.dtype == torch.bool:
        return value
    return ops.binary("ne", value, ops.const(0, value.dtype))


def nonzero(y: Node) -> Node:
    """Return an integer divisor that is checked: 0 raises ZeroDivisionError."""
    holds = ops.binary("ne", y, ops.const(0, y.dtype))
    return ops.check(holds, y, "ZeroDivisionError", CheckKind.DIVISION)


def convert(value: Node, dtype: torch.dtype) -> Node:
    """Return a user's own cast, rounding where he asked for it."""
    if value.dtype == dtype:
        return value
    if dtype == torch.bool:
        return truth(ops.cast(value, ops.compute_dtype(value.dtype)))
    return ops.cast(value, dtype)


__all__ = [
    "Operand",
    "convert",
    "element",
    "map_elements",
    "nonzero",
    "promoted",
    "rounded",
    "truth",
]
