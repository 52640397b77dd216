"""Tensors made from nothing: constants, ranges, triangles, and positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusec.ir import ops
from fusec.ir.index import Expr
from fusec.ir.node import Node
from fusec.ir.program import ExternKind
from fusec.lower.numbers import require_fitting
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import Index, NotLowered, NumberValue, TensorValue


def _filled(lowering: Lowering, fill: object) -> TensorValue:
    dtype = lowering.meta().dtype
    if isinstance(fill, Expr):
        return lowering.lazy(lambda index: ops.cast(ops.index_value(fill, torch.int64), dtype))
    if isinstance(fill, NumberValue):
        return lowering.lazy(lambda index: ops.cast(fill.at(()), dtype))
    if not isinstance(fill, (int, float)):
        raise NotLowered(f"a tensor filled with {type(fill).__name__}")
    require_fitting(dtype, fill)
    return lowering.lazy(lambda index: ops.const(fill, dtype))


@register(aten.full.default)
def full(lowering: Lowering, size: Sequence[object], fill: object, **_: object) -> TensorValue:
    """Return a tensor of one number."""
    return _filled(lowering, fill)


@register(aten.full_like.default, aten.fill.Scalar)
def full_like(lowering: Lowering, x: TensorValue, fill: object, **_: object) -> TensorValue:
    """Return a tensor of one number, in the shape of another."""
    return _filled(lowering, fill)


@register(aten.zeros, aten.zeros_like, aten.new_zeros)
def zeros(lowering: Lowering, *_: object, **__: object) -> TensorValue:
    """Return zeros."""
    return _filled(lowering, 0)


@register(aten.ones, aten.ones_like, aten.new_ones)
def ones(lowering: Lowering, *_: object, **__: object) -> TensorValue:
    """Return ones."""
    return _filled(lowering, 1)


@register(aten.scalar_tensor.default)
def scalar_tensor(lowering: Lowering, value: object, **_: object) -> TensorValue:
    """Return a number as a 0-d tensor."""
    return _filled(lowering, value)


@register(aten.arange.start_step)
def arange(
    lowering: Lowering, start: object, end: object, step: object = 1, **_: object
) -> TensorValue:
    """Return evenly spaced numbers."""
    meta = lowering.meta()
    if meta.dtype == torch.bool:
        raise NotLowered("eager refuses a range of bools", refused=True)
    return _steps(lowering, start, step, meta.dtype)


@register(torch.ops.prims.iota.default)
def iota(
    lowering: Lowering, length: object, *, start: object, step: object, **_: object
) -> TensorValue:
    """Return evenly spaced integers."""
    return _steps(lowering, start, step, lowering.meta().dtype)


def _steps(lowering: Lowering, start: object, step: object, dtype: torch.dtype) -> TensorValue:
    if isinstance(start, float) or isinstance(step, float) or dtype.is_floating_point:
        compute = torch.float64 if dtype == torch.float64 else torch.float32

        def at(index: Index) -> Node:
            # as ATen: the arithmetic runs in the accumulation type, then rounds once
            position = ops.cast(ops.index_value(index[0], torch.int64), torch.float64)
            scaled = ops.binary("mul", position, _number(step))
            value = ops.binary("add", _number(start), scaled)
            return ops.cast(ops.cast(value, compute), dtype)

        return lowering.lazy(at)
    first, stride = Expr.of(start), Expr.of(step)  # type: ignore[arg-type]

    def whole(index: Index) -> Node:
        return ops.cast(ops.index_value(index[0] * stride + first, torch.int64), dtype)

    return lowering.lazy(whole)


def _number(value: object) -> Node:
    if isinstance(value, Expr):
        return ops.cast(ops.index_value(value, torch.int64), torch.float64)
    assert isinstance(value, (int, float))
    return ops.const(value, torch.float64)


@register(aten.tril.default, aten.triu.default)
def triangle(lowering: Lowering, x: TensorValue, diagonal: int | Expr = 0) -> TensorValue:
    """Return the lower or upper triangle of matrices, zero elsewhere."""
    lower = lowering.label == "tril"
    limit = ops.index_value(Expr.of(diagonal), torch.int64)

    def value(index: Index) -> Node:
        distance = ops.index_value(index[-1] - index[-2], torch.int64)
        keep = ops.binary("le" if lower else "ge", distance, limit)
        element = x.compute(index)
        return ops.where(keep, element, ops.const(0, element.dtype))

    return lowering.pointwise(value)


@register(aten.empty.memory_format, aten.empty_like, aten.empty_strided, aten.new_empty)
def empty(lowering: Lowering, *_: object, **__: object) -> TensorValue:
    """Return zeros: memory nobody has written has no value worth keeping.

    One with gaps, or whose elements overlap, is eager's own.
    """
    if not lowering.meta().is_dense:
        raise NotLowered(ExternKind.UNINITIALIZED)
    return _filled(lowering, 0)
