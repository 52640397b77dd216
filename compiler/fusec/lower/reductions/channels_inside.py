"""Group norm where the channels lie side by side: moments of channels first, then of their groups.

A group is a few channels of every pixel, so that a loop over it reads a few neighbors here and
there.  All channels of an image are columns that are added up side by side; what is known of each
gives what is known of its group, and every element is computed on its own then.
"""

from __future__ import annotations

import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr
from fusec.ir.node import Node
from fusec.ir.shapes import product
from fusec.lower.reductions.rules import centered_moments, divide_by_count, reduction_loop
from fusec.lower.registry import Lowering
from fusec.lower.values import Index, TensorValue, dense_meta

# Pixels of an image from which on a kernel for the moments of its channels pays.
LEAST_PIXELS = 16


def has_channels_inside(lowering: Lowering, x: TensorValue) -> bool:
    """Whether a CPU finds all channels of a pixel, and then those of the next one."""
    meta = lowering.meta()
    if lowering.can(meta.device).many_programs or x.ndim < 3:
        return False
    pixels, channels = product(meta.shape[2:]).constant, meta.shape[1].constant
    if pixels is None or channels is None or meta.shape[0].constant == 0:
        return False
    if pixels < LEAST_PIXELS or channels < 2:
        return False
    return meta.strides[1] == 1 and meta.strides[-1] == channels


def group_norm_of_channels(
    lowering: Lowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    groups: int,
    eps: float,
) -> tuple[TensorValue, ...]:
    """Return the normalized input, the groups' means, and their scales."""
    average, squares = _moments(lowering, x)
    rows = _of_groups(lowering, average, squares, groups, product(x.shape[2:]), eps)
    mean, scale, own_mean, own_scale = rows

    def element(index: Index) -> Node:
        v = x.compute(index)
        place = (index[0], index[1])
        result = ops.binary("sub", v, own_mean.compute(place))
        result = ops.binary("mul", result, own_scale.compute(place))
        if weight is not None:
            result = ops.binary("mul", result, ops.cast(weight.compute((index[1],)), v.dtype))
        if bias is not None:
            result = ops.binary("add", result, ops.cast(bias.compute((index[1],)), v.dtype))
        return result

    return lowering.pointwise(element), mean, scale


def _moments(lowering: Lowering, x: TensorValue) -> tuple[TensorValue, TensorValue]:
    """Emit each channel's mean and sum of squared distances from it."""
    loop = reduction_loop(x.shape, tuple(range(2, x.ndim)), False)
    v = x.compute(loop.full_index)
    shape = dense_meta(x.shape[:2], v.dtype, lowering.meta().device)
    buffers = [lowering.new_buffer(shape) for _ in range(2)]
    values = centered_moments(loop, v)
    stores = [Store(b.name, loop.kept_index, v) for b, v in zip(buffers, values, strict=True)]
    lowering.emit(Body(loop.axes, loop.reduce_axes, tuple(stores)))
    average, squares = map(lowering.from_buffer, buffers)
    return average, squares


def _of_groups(
    lowering: Lowering,
    average: TensorValue,
    squares: TensorValue,
    groups: int,
    pixels: Expr,
    eps: float,
) -> list[TensorValue]:
    """Emit mean and scale of each group, and the same for each of its channels.

    The squares of a group are those of its channels, and of each channel's mean for every pixel.
    """
    batch, channels = average.shape
    each = channels // groups
    loop = reduction_loop((batch, Expr.of(groups), each), (2,), False)
    sample, group, member = loop.full_index
    place = (sample, group * each + member)
    own, spread = average.compute(place), squares.compute(place)
    mean = divide_by_count(loop.reduce("sum", own), loop.count)
    distance = ops.binary("sub", own, mean)
    count = ops.cast(ops.index_value(pixels, torch.int64), own.dtype)
    between = ops.binary("mul", count, ops.binary("mul", distance, distance))
    total = loop.reduce("sum", ops.binary("add", spread, between))
    variance = divide_by_count(total, loop.count * pixels)
    scale = ops.unary("rsqrt", ops.binary("add", variance, ops.const(eps, own.dtype)))
    wide = dense_meta(average.shape, own.dtype, lowering.meta().device)
    metas = [lowering.meta(1), lowering.meta(2), wide, wide]
    buffers = [lowering.new_buffer(meta) for meta in metas]
    places = [loop.kept_index, loop.kept_index, place, place]
    values = [mean, scale, mean, scale]
    stores = [
        Store(buffer.name, index, lowering.round(value, buffer.dtype))
        for buffer, index, value in zip(buffers, places, values, strict=True)
    ]
    lowering.emit(Body(loop.axes, loop.reduce_axes, tuple(stores)))
    return [lowering.from_buffer(buffer) for buffer in buffers]


__all__ = ["group_norm_of_channels", "has_channels_inside"]
