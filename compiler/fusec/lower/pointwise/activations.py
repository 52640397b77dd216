"""Activations, and values held within bounds."""

from __future__ import annotations

import functools
import math

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.devices import CPU
from fusec.ir import ops
from fusec.ir.node import Node
from fusec.lower.numbers import require_fitting
from fusec.lower.pointwise.elementwise import (
    Operand,
    element,
    map_elements,
    promoted,
    rounded,
)
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.size_numbers import SizeNumber
from fusec.lower.values import (
    Index,
    NotLowered,
    TensorValue,
)


def bool_result(name: str, x: Node, y: Node) -> Node:
    """Addition and multiplication of bools are or and and."""
    if x.dtype == torch.bool and name in ("add", "mul", "maximum", "minimum"):
        connective = "logical_or" if name in ("add", "maximum") else "logical_and"
        return ops.binary(connective, x, y)
    return ops.binary(name, x, y)


@register(aten.clamp, aten.clamp_min, aten.clamp_max)
def clamp(
    lowering: Lowering, x: TensorValue, low: Operand | None = None, high: Operand | None = None
) -> TensorValue:
    """Return x limited to [low, high]; where low > high it is high; NaN stays, as x or a bound."""
    if lowering.label == "clamp_max":
        low, high = None, low
    operands = tuple(o for o in (x, low, high) if o is not None)
    dtype, common = promoted(operands)
    require_fitting(common, low, high)
    if common == torch.bool and lowering.label == "clamp":
        raise NotLowered("eager refuses to clamp bools", refused=True)
    if any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high)):
        if lowering.label == "clamp" and None in (low, high) and _is_no_bound():
            low = high = None
        else:  # as eager fills it
            return lowering.pointwise(lambda index: ops.const(math.nan, dtype))

    def value(index: Index) -> Node:
        result = element(x, index, dtype)
        for bound, beyond in ((low, "lt"), (high, "gt")):
            if bound is not None:
                limit = rounded(bound, element(bound, index, dtype), common)
                result = _bounded(result, bound, limit, beyond)
        return result

    return lowering.pointwise(value)


@functools.cache
def _is_no_bound() -> bool:
    """Whether ``x.clamp(min=nan)`` is x with this torch (2.11), and not NaN (2.13)."""
    with unset_fake_temporarily(), torch.device(CPU):
        return bool(torch.zeros(1).clamp(min=math.nan) == 0)


def _bounded(value: Node, bound: Operand, limit: Node, beyond: str) -> Node:
    """Return ``value``, or ``limit`` where value lies beyond it.

    A number as a bound is not NaN, and a comparison keeps NaN and the sign of zero as eager
    does; a tensor's elements may be NaN, which wins.
    """
    tensor = isinstance(bound, TensorValue) and not isinstance(bound, SizeNumber)
    if value.dtype == torch.bool or tensor:
        return bool_result("maximum" if beyond == "lt" else "minimum", value, limit)
    return ops.where(ops.binary(beyond, value, limit), limit, value)


@register(aten.relu)
def relu(lowering: Lowering, x: TensorValue) -> TensorValue:
    """Return max(x, 0); NaN and negative zero stay."""
    if x.dtype == torch.bool:
        return map_elements(lowering, (x,), lambda v: v)
    return map_elements(lowering, (x,), lambda v: _bounded(v, 0, ops.const(0, v.dtype), "lt"))


@register(aten.gelu)
def gelu(lowering: Lowering, x: TensorValue, *, approximate: str = "none") -> TensorValue:
    """Return x * Phi(x), or its tanh approximation."""

    def value(v: Node) -> Node:
        half, one = ops.const(0.5, v.dtype), ops.const(1.0, v.dtype)
        if approximate == "tanh":
            cube = ops.binary("mul", ops.binary("mul", v, v), v)
            inner = ops.binary("add", v, ops.binary("mul", ops.const(0.044715, v.dtype), cube))
            scaled = ops.binary("mul", ops.const(math.sqrt(2 / math.pi), v.dtype), inner)
            tail = ops.binary("add", one, ops.unary("tanh", scaled))
        else:
            scaled = ops.binary("mul", v, ops.const(math.sqrt(0.5), v.dtype))
            tail = ops.binary("add", one, ops.unary("erf", scaled))
        return ops.binary("mul", ops.binary("mul", v, half), tail)

    return map_elements(lowering, (x,), value)


@register(aten.silu)
def silu(lowering: Lowering, x: TensorValue) -> TensorValue:
    """Return x * sigmoid(x), as ATen does: x / (1 + exp(-x))."""

    def value(v: Node) -> Node:
        decayed = ops.unary("exp", ops.unary("neg", v))
        return ops.binary("truediv", v, ops.binary("add", ops.const(1, v.dtype), decayed))

    return map_elements(lowering, (x,), value)


@register(aten.leaky_relu)
def leaky_relu(lowering: Lowering, x: TensorValue, negative_slope: float = 0.01) -> TensorValue:
    """Return x, its negative part scaled."""

    def value(v: Node) -> Node:
        scaled = ops.binary("mul", v, element(negative_slope, (), v.dtype))
        return ops.where(ops.binary("gt", v, ops.const(0, v.dtype)), v, scaled)

    return map_elements(lowering, (x,), value)


@register(aten.elu)
def elu(
    lowering: Lowering,
    x: TensorValue,
    alpha: float = 1.0,
    scale: float = 1.0,
    input_scale: float = 1.0,
) -> TensorValue:
    """Return scale * (x where x > 0, else alpha * (exp(input_scale * x) - 1))."""

    def value(v: Node) -> Node:
        scaled_input = ops.binary("mul", v, ops.const(input_scale, v.dtype))
        below = ops.binary(
            "mul", ops.const(alpha * scale, v.dtype), ops.unary("expm1", scaled_input)
        )
        above = ops.binary("mul", v, ops.const(scale, v.dtype))
        return ops.where(ops.binary("le", v, ops.const(0, v.dtype)), below, above)

    return map_elements(lowering, (x,), value)


@register(aten.hardtanh)
def hardtanh(
    lowering: Lowering, x: TensorValue, low: float = -1.0, high: float = 1.0
) -> TensorValue:
    """Return x limited to [low, high]."""
    return clamp(lowering, x, low, high)


__all__ = ["bool_result", "clamp", "elu", "gelu", "hardtanh", "leaky_relu", "relu", "silu"]
