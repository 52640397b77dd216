"""Softmax, layer norm and their like: each one body, so that fusion starts from a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusec.ir import ops
from fusec.ir.index import Expr
from fusec.ir.node import Node
from fusec.lower.dimensions import normalize_dims
from fusec.lower.reductions.channels_inside import group_norm_of_channels, has_channels_inside
from fusec.lower.reductions.rules import (
    centered_moments,
    divide_by_count,
    emit_rows,
    reduction_loop,
)
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import NotLowered, TensorValue


@register(aten._softmax, aten._log_softmax)
def softmax(lowering: Lowering, x: TensorValue, dim: int, half_to_float: bool) -> TensorValue:
    """Return softmax or its logarithm along a dimension."""
    loop = reduction_loop(x.shape, normalize_dims(dim, x.ndim), True)
    v = x.compute(loop.full_index)
    shifted = ops.binary("sub", v, loop.reduce("max", v))
    powers = ops.unary("exp", shifted)
    total = loop.reduce("sum", powers)
    if lowering.label == "softmax":
        # The total is at least 1, the power of the largest: its reciprocal neither overflows nor
        # is denormal, and one division a row is cheaper than one an element.
        one = ops.const(1.0, total.dtype)
        result = ops.binary("mul", powers, ops.binary("truediv", one, total))
    else:
        result = ops.binary("sub", shifted, ops.unary("log", total))
    if x.ndim == 0:
        result = ops.const(1.0 if lowering.label == "softmax" else 0.0, v.dtype)
        return lowering.pointwise(lambda index: _keep_nan(v, result))
    return emit_rows(lowering, loop, [(result, True)])[0]


def _keep_nan(value: Node, result: Node) -> Node:
    finite = ops.binary("eq", ops.binary("sub", value, value), ops.const(0, value.dtype))
    return ops.where(finite, result, ops.const(float("nan"), value.dtype))


@register(aten._softmax_backward_data, aten._log_softmax_backward_data)
def softmax_backward(
    lowering: Lowering,
    gradient: TensorValue,
    output: TensorValue,
    dim: int,
    input_dtype: torch.dtype,
) -> TensorValue:
    """Return the gradient of softmax or log_softmax."""
    if gradient.ndim == 0:
        raise NotLowered("softmax of a single number")
    loop = reduction_loop(gradient.shape, normalize_dims(dim, gradient.ndim), True)
    g, y = gradient.compute(loop.full_index), output.compute(loop.full_index)
    if lowering.label == "softmax_backward_data":
        product = ops.binary("mul", g, y)
        total = loop.reduce("sum", product)
        result = ops.binary("sub", product, ops.binary("mul", y, total))
    else:
        total = loop.reduce("sum", g)
        result = ops.binary("sub", g, ops.binary("mul", ops.unary("exp", y), total))
    return emit_rows(lowering, loop, [(result, True)])[0]


@register(aten.native_layer_norm.default)
def native_layer_norm(
    lowering: Lowering,
    x: TensorValue,
    normalized_shape: Sequence[object],
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> tuple[TensorValue, ...]:
    """Return the normalized input, the means, and the reciprocal standard deviations."""
    inner = len(normalized_shape)
    dims = tuple(range(x.ndim - inner, x.ndim))
    loop = reduction_loop(x.shape, dims, True)
    v = x.compute(loop.full_index)
    average, squares = centered_moments(loop, v)
    spread = divide_by_count(squares, loop.count)
    scale = ops.unary("rsqrt", ops.binary("add", spread, ops.const(eps, v.dtype)))
    result = ops.binary("mul", ops.binary("sub", v, average), scale)
    tail = loop.full_index[x.ndim - inner :]
    if weight is not None:
        result = ops.binary("mul", result, ops.cast(weight.compute(tail), v.dtype))
    if bias is not None:
        result = ops.binary("add", result, ops.cast(bias.compute(tail), v.dtype))
    return emit_rows(lowering, loop, [(result, True), (average, False), (scale, False)])


@register(aten.native_group_norm.default)
def native_group_norm(
    lowering: Lowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    n: object,
    c: object,
    hw: object,
    groups: int,
    eps: float,
) -> tuple[TensorValue, ...]:
    """Return the input normalized over groups of channels, the means, and the scales."""
    batch, channels = x.shape[0], x.shape[1]
    each = channels // groups
    if has_channels_inside(lowering, x):
        return group_norm_of_channels(lowering, x, weight, bias, groups, eps)
    grouped = (batch, Expr.of(groups), each, *x.shape[2:])
    loop = reduction_loop(grouped, tuple(range(2, len(grouped))), False)
    sample, group, member, *place = loop.full_index
    channel = group * each + member
    index = (sample, channel, *place)
    v = x.compute(index)
    average, squares = centered_moments(loop, v)
    spread = divide_by_count(squares, loop.count)
    scale = ops.unary("rsqrt", ops.binary("add", spread, ops.const(eps, v.dtype)))
    result = ops.binary("mul", ops.binary("sub", v, average), scale)
    if weight is not None:
        result = ops.binary("mul", result, ops.cast(weight.compute((channel,)), v.dtype))
    if bias is not None:
        result = ops.binary("add", result, ops.cast(bias.compute((channel,)), v.dtype))
    results = emit_rows_at(lowering, loop, index, result, (average, scale))
    return results


def emit_rows_at(
    lowering: Lowering, loop: object, index: tuple[Expr, ...], whole: Node, rows: Sequence[Node]
) -> tuple[TensorValue, ...]:
    """Emit a body whose first result has an index of its own and whose others are rows."""
    from dataclasses import replace

    from fusec.lower.reductions.rules import ReductionLoop

    assert isinstance(loop, ReductionLoop)
    moved = replace(loop, full_index=index)
    return emit_rows(lowering, moved, [(whole, True), *((row, False) for row in rows)])
