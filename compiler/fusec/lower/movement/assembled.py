"""Results assembled of parts of others: copies, where a view cannot be."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusec.ir import ops
from fusec.ir.index import Expr
from fusec.ir.node import Node
from fusec.lower.dimensions import normalize_dim
from fusec.lower.numbers import require_fitting
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import Index, NotLowered, TensorValue


def clamp_start(lowering: Lowering, start: object, size: Expr) -> Expr:
    """Return the first position of a slice, as Python counts it.

    Raises:
        NotLowered: Whether a symbolic start is past the end is not known.
    """
    if start is None:
        return Expr.of(0)
    given = Expr.of(start)  # type: ignore[arg-type]
    first = lowering.counted(given, size)
    if first is not given and lowering.is_less(first, Expr.of(0)):
        return Expr.of(0)
    if first.constant is not None and size.constant is not None:
        return Expr.of(min(first.constant, size.constant))
    if first.constant == 0 or size.constant is None or first == size:
        return first
    raise NotLowered("a slice whose start is symbolic")


def selected(lowering: Lowering, at: object, size: Expr) -> Expr:
    """Return the position of one slice, counted from the start.

    Raises:
        NotLowered: There is no such slice, which ATen says best; or as ``counted``.
    """
    position = lowering.counted(Expr.of(at), size)  # type: ignore[arg-type]
    if lowering.is_less(position, Expr.of(0)) or not lowering.is_less(position, size):
        raise NotLowered("an index out of range")
    return position


@register(aten.flip)
def flip(lowering: Lowering, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    """Return x backwards along some dimensions."""
    flipped = {normalize_dim(d, x.ndim) for d in dims}

    def at(index: Index) -> Node:
        return x.at(tuple(x.shape[d] - 1 - i if d in flipped else i for d, i in enumerate(index)))

    return lowering.lazy(at)


@register(aten.cat)
def cat(lowering: Lowering, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    """Return the tensors one after the other along a dimension."""
    meta = lowering.meta()
    # a 1-d tensor of size 0 may stand among tensors of any shape, for history's sake
    parts = [t for t in tensors if not (t.ndim == 1 and t.shape[0].constant == 0)]
    if not parts:
        return lowering.lazy(lambda index: ops.const(0, meta.dtype))
    dim = normalize_dim(dim, parts[0].ndim)
    dtype = ops.compute_dtype(meta.dtype)

    def value(index: Index) -> Node:
        starts = [Expr.of(0)]
        for part in parts:
            starts.append(starts[-1] + part.shape[dim])
        position = ops.index_value(index[dim], torch.int64)
        result: Node | None = None
        for part, start in reversed(list(zip(parts, starts, strict=False))):
            moved = index[:dim] + (index[dim] - start,) + index[dim + 1 :]
            element = ops.cast(part.compute(moved), dtype)
            end = ops.index_value(start + part.shape[dim], torch.int64)
            inside = ops.binary("lt", position, end)
            begun = ops.binary("ge", position, ops.index_value(start, torch.int64))
            condition = ops.logical_and(begun, inside)
            assert condition is not None
            guarded = ops.guard_loads(element, condition)
            if len(parts) == 1:
                return element
            result = guarded if result is None else ops.where(inside, guarded, result)
        assert result is not None
        return result

    return lowering.pointwise(value)


@register(aten.constant_pad_nd)
def constant_pad(
    lowering: Lowering, x: TensorValue, pad: Sequence[object], value: float = 0
) -> TensorValue:
    """Return x with a border of a constant (negative widths cut)."""
    require_fitting(x.dtype, value)
    if x.dtype == torch.uint8 and value < 0:
        raise NotLowered(
            f"{value} does not fit into uint8"
        )  # here eager does not let it wrap round
    widths = [Expr.of(p) for p in pad]  # type: ignore[arg-type]
    before = [Expr.of(0)] * x.ndim
    for pair in range(len(widths) // 2):
        before[x.ndim - 1 - pair] = widths[2 * pair]
    dtype = ops.compute_dtype(x.dtype)

    def element(index: Index) -> Node:
        moved = tuple(i - b for i, b in zip(index, before, strict=True))
        conditions = []
        for i, size in zip(moved, x.shape, strict=True):
            place = ops.index_value(i, torch.int64)
            conditions.append(ops.binary("ge", place, ops.const(0, torch.int64)))
            conditions.append(ops.binary("lt", place, ops.index_value(size, torch.int64)))
        inside = ops.logical_and(*conditions)
        assert inside is not None or not conditions
        if inside is None:
            return x.compute(moved)
        return ops.masked(inside, ops.cast(x.compute(moved), dtype), value)

    return lowering.pointwise(element)


@register(aten.repeat)
def repeat(lowering: Lowering, x: TensorValue, repeats: Sequence[object]) -> TensorValue:
    """Return x tiled."""
    skipped = len(lowering.meta().shape) - x.ndim

    def element(index: Index) -> Node:
        inner = index[skipped:]
        return x.at(tuple(i % s if s.constant != 0 else i for i, s in zip(inner, x.shape)))  # noqa: B905

    return lowering.pointwise(element)


@register(aten.slice_scatter)
def slice_scatter(
    lowering: Lowering,
    x: TensorValue,
    source: TensorValue,
    dim: int = 0,
    start: object = None,
    end: object = None,
    step: object = 1,
) -> TensorValue:
    """Return x with a slice replaced."""
    dim = normalize_dim(dim, x.ndim)
    first = clamp_start(lowering, start, x.shape[dim])
    stride = Expr.of(step)  # type: ignore[arg-type]

    def element(index: Index) -> Node:
        offset = index[dim] - first
        place = ops.index_value(offset, torch.int64)
        limit = ops.index_value(source.shape[dim] * stride, torch.int64)
        conditions = [
            ops.binary("ge", place, ops.const(0, torch.int64)),
            ops.binary("lt", place, limit),
        ]
        if stride.constant != 1:
            rest = ops.index_value(offset % stride, torch.int64)
            conditions.append(ops.binary("eq", rest, ops.const(0, torch.int64)))
        inside = ops.logical_and(*conditions)
        assert inside is not None
        moved = index[:dim] + (offset // stride,) + index[dim + 1 :]
        replaced = ops.guard_loads(ops.cast(source.at(moved), x.dtype), inside)
        return ops.where(inside, replaced, x.at(index))

    return lowering.pointwise(element)


@register(aten.select_scatter)
def select_scatter(
    lowering: Lowering, x: TensorValue, source: TensorValue, dim: int, at: object
) -> TensorValue:
    """Return x with one slice replaced."""
    dim = normalize_dim(dim, x.ndim)
    position = selected(lowering, at, x.shape[dim])

    def element(index: Index) -> Node:
        here = ops.binary(
            "eq",
            ops.index_value(index[dim], torch.int64),
            ops.index_value(position, torch.int64),
        )
        replaced = ops.cast(source.at(index[:dim] + index[dim + 1 :]), x.dtype)
        return ops.where(here, ops.guard_loads(replaced, here), x.at(index))

    return lowering.pointwise(element)


__all__ = [
    "cat",
    "clamp_start",
    "constant_pad",
    "flip",
    "repeat",
    "select_scatter",
    "selected",
    "slice_scatter",
]
