"""Views and data movement: index maps, and the copies that joining and padding need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fusec.ir import ops
from fusec.ir.index import Expr
from fusec.ir.node import Node
from fusec.ir.program import TensorRef
from fusec.ir.shapes import flatten, unflatten
from fusec.lower.dimensions import exprs, normalize_dim
from fusec.lower.movement.assembled import clamp_start, selected
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import Index, NotLowered, ResultMeta, TensorValue, broadcast_index


def view(
    lowering: Lowering, x: TensorValue, move: Callable[[Index], Index], number: int = 0
) -> TensorValue:
    """Return x seen through an index map, at the place in memory that torch gives it."""
    meta = lowering.meta(number)
    ref = None if x.ref is None else _view_ref(lowering, x.ref, meta)
    return TensorValue(meta.shape, meta.dtype, meta.device, lambda i: x.at(move(i)), ref)


def _view_ref(lowering: Lowering, base: TensorRef, meta: ResultMeta) -> TensorRef | None:
    """Return where a true view lies, if the strides are over the base's own layout.

    torch's fake tensors know the strides of every view.  They hold for the buffer too, unless the
    buffer was laid out differently (it had gaps) or the base's own offset is unknown here.
    """
    buffer = lowering.buffers[base.buffer]
    offset = meta.offset - lowering.storage_offsets.get(base.buffer, Expr.of(0))
    if lowering.relaid.get(buffer.name, False):
        return None
    return TensorRef(base.buffer, meta.shape, meta.strides, offset, meta.dtype)


@register(aten.view.default, aten.reshape, aten._unsafe_view, aten._reshape_alias)
def reshape(lowering: Lowering, x: TensorValue, *_: object) -> TensorValue:
    """Return x's elements in row-major order under another shape."""
    shape = lowering.meta().shape
    if any(size.constant == 0 for size in shape):
        return lowering.lazy(lambda index: ops.const(0, x.dtype))

    def move(index: Index) -> Index:
        return reshape_index(index, shape, x.shape)

    viewed = view(lowering, x, move)
    if lowering.label in ("reshape", "unsafe_view") and not _same_storage_order(x, viewed):
        return TensorValue(viewed.shape, viewed.dtype, viewed.device, viewed.at)
    return viewed


def _same_storage_order(x: TensorValue, viewed: TensorValue) -> bool:
    """Whether a reshape of ``x`` can be a view: x is row-major without gaps."""
    if x.ref is None or viewed.ref is None:
        return False
    from fusec.ir.shapes import contiguous_strides

    return all(
        size.constant == 1 or stride == wanted
        for size, stride, wanted in zip(
            x.shape, x.ref.strides, contiguous_strides(x.shape), strict=True
        )
    )


def reshape_index(index: Index, shape: Index, old_shape: Index) -> Index:
    """Map an index of ``shape`` to ``old_shape``, dimension by dimension where sizes agree.

    Equal leading and trailing sizes are matched first, so that a symbolic size in a dimension that
    the reshape does not touch never has to be divided by.
    """
    front = 0
    while front < min(len(shape), len(old_shape)) and shape[front] == old_shape[front]:
        front += 1
    back = 0
    while (
        back < min(len(shape), len(old_shape)) - front
        and shape[len(shape) - 1 - back] == old_shape[len(old_shape) - 1 - back]
    ):
        back += 1
    middle = slice(front, len(shape) - back)
    old_middle = old_shape[front : len(old_shape) - back]
    position = flatten(index[middle], shape[middle])
    return (
        index[:front]
        + unflatten(position, old_middle)
        + (index[len(shape) - back :] if back else ())
    )


@register(aten.view.dtype)
def view_dtype(lowering: Lowering, x: TensorValue, dtype: torch.dtype) -> TensorValue:
    """Return the same bits as another type of the same width."""
    if x.dtype.itemsize != dtype.itemsize or torch.bool in (x.dtype, dtype):
        raise NotLowered("a view as a type of another width")
    ref = None if x.ref is None else replace(x.ref, dtype=dtype)
    return TensorValue(
        x.shape, dtype, x.device, lambda index: ops.cast(x.at(index), dtype, bitcast=True), ref
    )


@register(aten.permute)
def permute(lowering: Lowering, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    """Return x with its dimensions in another order."""
    order = [normalize_dim(d, x.ndim) for d in dims]

    def move(index: Index) -> Index:
        old = [Expr.of(0)] * x.ndim
        for i, dim in zip(index, order, strict=True):
            old[dim] = i
        return tuple(old)

    return view(lowering, x, move)


@register(aten.transpose.int, aten.t)
def transpose(lowering: Lowering, x: TensorValue, a: int = 0, b: int = 1) -> TensorValue:
    """Return x with two dimensions swapped."""
    if x.ndim < 2:
        return x
    order = list(range(x.ndim))
    a, b = normalize_dim(a, x.ndim), normalize_dim(b, x.ndim)
    order[a], order[b] = order[b], order[a]
    return permute(lowering, x, order)


@register(aten.expand)
def expand(
    lowering: Lowering, x: TensorValue, sizes: Sequence[object], *, implicit: bool = False
) -> TensorValue:
    """Return x repeated along its dimensions of size 1."""
    return view(lowering, x, lambda index: broadcast_index(index, x.shape))


@register(aten.squeeze)
def squeeze(lowering: Lowering, x: TensorValue, dims: object = None) -> TensorValue:
    """Return x without (the given) dimensions of size 1."""
    if dims is None:
        chosen = set(range(x.ndim))
    else:
        listed = [dims] if isinstance(dims, int) else list(dims)  # type: ignore[call-overload]
        chosen = {normalize_dim(d, x.ndim) for d in listed}
    dropped = {d for d in chosen if d < x.ndim and x.shape[d].constant == 1}

    def move(index: Index) -> Index:
        rest = iter(index)
        return tuple(Expr.of(0) if d in dropped else next(rest) for d in range(x.ndim))

    return view(lowering, x, move)


@register(aten.unsqueeze)
def unsqueeze(lowering: Lowering, x: TensorValue, dim: int) -> TensorValue:
    """Return x with a new dimension of size 1."""
    position = dim % (x.ndim + 1)
    return view(lowering, x, lambda index: index[:position] + index[position + 1 :])


@register(aten.slice.Tensor)
def slice_(
    lowering: Lowering,
    x: TensorValue,
    dim: int = 0,
    start: object = None,
    end: object = None,
    step: object = 1,
) -> TensorValue:
    """Return x[start:end:step] along one dimension."""
    dim = normalize_dim(dim, x.ndim)
    first = clamp_start(lowering, start, x.shape[dim])
    stride = Expr.of(step)  # type: ignore[arg-type]

    def move(index: Index) -> Index:
        return index[:dim] + (index[dim] * stride + first,) + index[dim + 1 :]

    return view(lowering, x, move)


@register(aten.select.int)
def select(lowering: Lowering, x: TensorValue, dim: int, at: object) -> TensorValue:
    """Return x[at] along one dimension."""
    dim = normalize_dim(dim, x.ndim)
    position = selected(lowering, at, x.shape[dim])
    return view(lowering, x, lambda index: index[:dim] + (position,) + index[dim:])


@register(aten.diagonal.default)
def diagonal(
    lowering: Lowering, x: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorValue:
    """Return a diagonal as the last dimension."""
    first, second = normalize_dim(dim1, x.ndim), normalize_dim(dim2, x.ndim)

    def move(index: Index) -> Index:
        rest, along = iter(index[:-1]), index[-1]
        return tuple(
            along + max(-offset, 0)
            if d == first
            else along + max(offset, 0)
            if d == second
            else next(rest)
            for d in range(x.ndim)
        )

    return view(lowering, x, move)


def _parts(
    lowering: Lowering, x: TensorValue, dim: int, sizes: Sequence[Expr]
) -> tuple[TensorValue, ...]:
    parts, first = [], Expr.of(0)
    for number, size in enumerate(sizes):

        def move(index: Index, first: Expr = first) -> Index:
            return index[:dim] + (index[dim] + first,) + index[dim + 1 :]

        parts.append(view(lowering, x, move, number))
        first = first + size
    return tuple(parts)


@register(aten.split_with_sizes, aten.split.Tensor, aten.chunk)
def split(
    lowering: Lowering, x: TensorValue, sizes: object, dim: int = 0
) -> tuple[TensorValue, ...]:
    """Return consecutive slices along one dimension."""
    dim = normalize_dim(dim, x.ndim)
    lengths = [lowering.meta(n).shape[dim] for n in range(len(lowering.results))]
    return _parts(lowering, x, dim, lengths)


@register(aten.unbind.int)
def unbind(lowering: Lowering, x: TensorValue, dim: int = 0) -> tuple[TensorValue, ...]:
    """Return the slices along one dimension, without it."""
    dim = normalize_dim(dim, x.ndim)
    parts = []
    for number in range(len(lowering.results)):

        def move(index: Index, number: int = number) -> Index:
            return (*index[:dim], Expr.of(number), *index[dim:])

        parts.append(view(lowering, x, move, number))
    return tuple(parts)


@register(aten.as_strided.default)
def as_strided(
    lowering: Lowering,
    x: TensorValue,
    size: Sequence[object],
    stride: Sequence[object],
    storage_offset: object = None,
) -> TensorValue:
    """Return any strided window of a buffer that lies gapless in memory."""
    base = lowering.realize(x)
    assert base.ref is not None
    buffer = lowering.buffers[base.ref.buffer]
    meta = ResultMeta(buffer.shape, buffer.dtype, buffer.device, buffer.strides, Expr.of(0))
    if lowering.relaid.get(buffer.name, False) or not meta.is_dense:
        raise NotLowered("as_strided of a tensor with gaps")
    strides = exprs(stride)  # type: ignore[arg-type]
    start = base.ref.offset
    if storage_offset is not None:
        if buffer.name in lowering.storage_offsets:
            raise NotLowered("where an input begins in its memory is different in every call")
        start = Expr.of(storage_offset)  # type: ignore[arg-type]
    order = sorted(
        range(len(buffer.shape)),
        key=lambda d: (buffer.strides[d].constant is None, -(buffer.strides[d].constant or 0)),
    )
    if any(s.constant is None for s in buffer.strides) and len(order) > 1:
        raise NotLowered("as_strided of a tensor of symbolic layout")

    def at(index: Index) -> Node:
        offset = start
        for i, step in zip(index, strides, strict=True):
            offset = offset + i * step
        position = unflatten(offset, [buffer.shape[d] for d in order])
        place = [Expr.of(0)] * len(order)
        for dim, p in zip(order, position, strict=True):
            place[dim] = p
        return ops.load(buffer.name, tuple(place), buffer.dtype)

    result = lowering.meta()
    ref = TensorRef(buffer.name, result.shape, strides, start, buffer.dtype)
    return TensorValue(result.shape, result.dtype, result.device, at, ref)
