"""Comparisons, logic, and what is chosen by them."""

from __future__ import annotations

import torch

from fusec.ir import ops
from fusec.ir.node import Const, Node
from fusec.lower.numbers import require_fitting
from fusec.lower.pointwise.elementwise import (
    Operand,
    element,
    map_elements,
    promoted,
    rounded,
    truth,
)
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import Index, NotLowered, TensorValue, broadcast_index


@register(aten.isnan, aten.isinf, aten.signbit)
def classify(lowering: Lowering, x: TensorValue) -> TensorValue:
    """Return a property of a number as a bool."""
    name = lowering.label

    def value(index: Index) -> Node:
        if not x.dtype.is_floating_point:
            if name != "signbit":
                return ops.const(False, torch.bool)
            if x.dtype in (torch.bool, torch.uint8):
                return ops.const(False, torch.bool)
            return ops.binary("lt", x.at(index), ops.const(0, x.dtype))
        return ops.unary(name, x.compute(index))

    return lowering.pointwise(value)


@register(aten.logical_not)
def logical_not(lowering: Lowering, x: TensorValue) -> TensorValue:
    """Return not x."""
    return lowering.pointwise(lambda index: ops.logical_not(truth(x.compute(index))))


@register(aten.logical_and, aten.logical_or, aten.logical_xor)
def logical(lowering: Lowering, x: TensorValue, y: TensorValue) -> TensorValue:
    """Return a logical connective of the operands' truth, in the type that they share.

    There a number of no dimensions may become zero: 256 is, beside a uint8 tensor.
    """
    name = lowering.label
    dtype, common = promoted((x, y))

    def value(index: Index) -> Node:
        a, b = (truth(rounded(o, element(o, index, dtype), common)) for o in (x, y))
        return ops.binary(name, a, b)

    return lowering.pointwise(value)


@register(aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)
def compare(lowering: Lowering, x: Operand, y: Operand) -> TensorValue:
    """Return a comparison; mixed operands are promoted first."""
    name = lowering.label
    dtype, common = promoted((x, y))

    def value(index: Index) -> Node:
        a, b = (rounded(o, element(o, index, dtype), common) for o in (x, y))
        if dtype == torch.bool:
            a, b = ops.cast(a, torch.uint8), ops.cast(b, torch.uint8)
        return ops.binary(name, a, b)

    return lowering.pointwise(value)


@register(
    aten.bitwise_and,
    aten.bitwise_or,
    aten.bitwise_xor,
    aten.bitwise_left_shift,
    aten.bitwise_right_shift,
    aten.__lshift__,  # what ``<<`` and ``>>`` are traced as
    aten.__rshift__,
)
def bitwise(lowering: Lowering, x: Operand, y: Operand) -> TensorValue:
    """Return a bitwise operation; on bools, the logical one."""
    name = lowering.label.replace("bitwise_left_", "l").replace("bitwise_right_", "r").strip("_")
    if promoted((x, y))[0].is_floating_point:
        raise NotLowered("eager refuses bitwise operations on floating point", refused=True)

    def value(a: Node, b: Node) -> Node:
        if a.dtype == torch.bool:
            return ops.binary(name.replace("bitwise", "logical"), a, b)
        return ops.binary(name, a, b)

    return map_elements(lowering, (x, y), value)


@register(aten.where.self)
def where(lowering: Lowering, condition: TensorValue, x: Operand, y: Operand) -> TensorValue:
    """Return x where the condition holds, else y."""
    dtype, common = promoted((x, y))

    def value(index: Index) -> Node:
        c = truth(condition.compute(broadcast_index(index, condition.shape)))
        a, b = (rounded(o, element(o, index, dtype), common) for o in (x, y))
        return ops.where(c, a, b)

    return lowering.pointwise(value)


@register(aten.masked_fill)
def masked_fill(
    lowering: Lowering, x: TensorValue, mask: TensorValue, fill: Operand
) -> TensorValue:
    """Return x with ``fill`` where the mask holds; the result has x's dtype."""
    dtype = ops.compute_dtype(x.dtype)
    number = fill.at(()) if isinstance(fill, TensorValue) and fill.is_number else None
    require_fitting(x.dtype, number.value if isinstance(number, Const) else fill)

    def value(index: Index) -> Node:
        m = truth(mask.compute(broadcast_index(index, mask.shape)))
        chosen = rounded(fill, element(fill, index, dtype), x.dtype)
        return ops.where(m, chosen, element(x, index, dtype))

    return lowering.pointwise(value)


__all__ = ["bitwise", "classify", "compare", "logical", "logical_not", "masked_fill", "where"]
