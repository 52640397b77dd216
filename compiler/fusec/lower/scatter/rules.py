"""Writing at computed positions: index_put, scatter and its reductions, put, masked_scatter.

Each is a copy of the tensor followed by an update of the elements that the indices name.  The copy
fuses with whatever makes the tensor; the update is a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fusec.ir import ops
from fusec.ir.index import Expr
from fusec.ir.node import Node
from fusec.ir.shapes import contiguous_strides, flatten, product, unflatten
from fusec.lower.dimensions import normalize_dim
from fusec.lower.movement.indexing import Selection
from fusec.lower.numbers import require_fitting
from fusec.lower.pointwise.elementwise import convert, truth
from fusec.lower.reductions.scans import scan_values
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.scatter.few_rows import sums_of_few_rows
from fusec.lower.scatter.known_places import gathered_sums
from fusec.lower.scatter.steps import (
    HALVES,
    Place,
    combining_dtype,
    fill,
    finished,
    update,
    updated,
)
from fusec.lower.values import (
    Element,
    Index,
    NotLowered,
    Shape,
    TensorValue,
    broadcast_index,
    dense_meta,
)

# torch's names of reductions to the modes of a store
_MODES = {
    "sum": "add",
    "add": "add",
    "mean": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
}
# -- index_put ------------------------------------------------------------------------------------


@register(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    lowering: Lowering,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool = False,
) -> TensorValue:
    """Return x with ``x[indices] = values`` (or ``+=``) done."""
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].dtype == torch.bool and values.numel.constant == 1:
        return _masked_put(lowering, x, indices, values, accumulate)
    selection = Selection.of(x.shape, indices)

    def value(index: Index) -> Node:
        return values.at(broadcast_index(index, values.shape))

    if values.ndim > len(selection.shape):
        raise NotLowered("values have more dimensions than the places that they go to")
    mode = "add" if accumulate else "put"
    if accumulate and x.dtype.is_floating_point and given:
        dtype = torch.float32 if x.dtype in HALVES else x.dtype
        element = gathered_sums(lowering, x, indices, value, dtype)
        if element is not None:
            return lowering.pointwise(element)
        summed = sums_of_few_rows(lowering, x, indices, value, dtype)
        if summed is not None:
            return summed
    return updated(lowering, x, selection.shape, selection.place, value, mode)


def _masked_put(
    lowering: Lowering,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool,
) -> TensorValue:
    """Return x with one value wherever a mask holds: no position is computed at all."""
    first, mask = next((d, i) for d, i in enumerate(indices) if i is not None)

    def element(index: Index) -> Node:
        chosen = mask.at(index[first : first + mask.ndim])
        old, new = x.compute(index), values.compute((Expr.of(0),) * values.ndim)
        if accumulate:
            new = ops.binary("logical_or" if x.dtype == torch.bool else "add", old, new)
        return ops.where(chosen, new, old)

    return lowering.pointwise(element)


@register(aten.put.default)
def put(
    lowering: Lowering,
    x: TensorValue,
    index: TensorValue,
    source: TensorValue,
    accumulate: bool = False,
) -> TensorValue:
    """Return x with elements replaced at positions in row-major order."""

    def place(at: Index) -> Index:
        return unflatten(ops.checked_index(index.at(at), x.numel), x.shape)

    def value(at: Index) -> Node:
        return source.at(unflatten(flatten(at, index.shape), source.shape))

    return updated(lowering, x, index.shape, place, value, "add" if accumulate else "put")


# -- scatter --------------------------------------------------------------------------------------


def _scatter_place(x: TensorValue, dim: int, index: TensorValue) -> Place:
    def place(at: Index) -> Index:
        if x.ndim == 0:
            return ()  # see ``_source``
        row = ops.checked_index(index.at(at), x.shape[dim], wrap=False)
        if index.ndim == 0:
            return (row,)
        return (*at[:dim], row, *at[dim + 1 :])

    return place


def _source(source: object, x: TensorValue, index: TensorValue) -> Element:
    """Return what is scattered; where x has one place alone, it is found to be that one here."""

    def element(at: Index) -> Node:
        if not isinstance(source, TensorValue):
            assert isinstance(source, (int, float))
            return ops.const(source, ops.compute_dtype(x.dtype))
        return source.at(at if len(at) == source.ndim else (Expr.of(0),) * source.ndim)

    def checked(at: Index) -> Node:
        place = ops.checked_place(index.at(at), Expr.of(1), wrap=False)
        return ops.keeping_checks(element(at), (place,))

    return element if x.ndim else checked


@register(aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce)
def scatter(
    lowering: Lowering,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    source: object,
    *,
    reduce: str = "",
) -> TensorValue:
    """Return x with ``x[..., index, ...] = source`` along a dimension, or combined with it."""
    if isinstance(source, Expr):
        raise NotLowered("a symbolic number is scattered")
    require_fitting(x.dtype, source)
    dim = normalize_dim(dim, x.ndim)
    mode = _MODES[reduce] if reduce else "put"
    if mode == "put" and _names_one_each(x, dim, index):
        return _selected(lowering, x, dim, index, _source(source, x, index))
    place = _scatter_place(x, dim, index)
    return updated(lowering, x, index.shape, place, _source(source, x, index), mode)


def _names_one_each(x: TensorValue, dim: int, index: TensorValue) -> bool:
    """Whether ``index`` names one element of every slice of ``x`` along ``dim``."""
    if x.ndim != index.ndim or x.ndim == 0 or x.shape[dim].constant == 0:
        return False
    return all(
        have == (1 if d == dim else want)
        for d, (have, want) in enumerate(zip(index.shape, x.shape, strict=True))
    )


def _selected(
    lowering: Lowering, x: TensorValue, dim: int, index: TensorValue, source: Element
) -> TensorValue:
    """Emit x with one element of every slice replaced: pointwise, so that it fuses.

    The one-hot gradient of a cross-entropy is of this kind.
    """
    dtype = ops.compute_dtype(lowering.meta().dtype)

    def value(at: Index) -> Node:
        first = (*at[:dim], Expr.of(0), *at[dim + 1 :])
        checked = ops.checked_place(index.at(first), x.shape[dim], wrap=False)
        hit = ops.binary("eq", checked, ops.index_value(at[dim], torch.int64))
        return ops.where(hit, convert(source(first), dtype), convert(x.at(at), dtype))

    return lowering.pointwise(value)


@register(aten.scatter_add.default)
def scatter_add(
    lowering: Lowering, x: TensorValue, dim: int, index: TensorValue, source: TensorValue
) -> TensorValue:
    """Return x with ``x[..., index, ...] += source`` along a dimension."""
    place = _scatter_place(x, normalize_dim(dim, x.ndim), index)
    return updated(lowering, x, index.shape, place, _source(source, x, index), "add")


@register(aten.scatter_reduce.two)
def scatter_reduce(
    lowering: Lowering,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    """Return x with elements of ``source`` combined where ``index`` sends them."""
    place = _scatter_place(x, normalize_dim(dim, x.ndim), index)
    return _reduced(
        lowering, x, index.shape, place, _source(source, x, index), reduce, include_self
    )


@register(aten.index_reduce.default)
def index_reduce(
    lowering: Lowering,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    """Return x with slices of ``source`` combined where ``index`` (1-d or 0-d) sends them."""
    dim = normalize_dim(dim, x.ndim)

    if x.ndim == 0:
        raise NotLowered("index_reduce without dimensions")

    def place(at: Index) -> Index:
        row = index.at((at[dim],) if index.ndim else ())
        return (*at[:dim], ops.checked_index(row, x.shape[dim], wrap=False), *at[dim + 1 :])

    return _reduced(lowering, x, source.shape, place, source.at, reduce, include_self)


def _reduced(
    lowering: Lowering,
    x: TensorValue,
    shape: Shape,
    place: Place,
    source: Element,
    reduce: str,
    include_self: bool,
) -> TensorValue:
    meta = lowering.meta()
    if reduce == "mean" and meta.dtype == torch.bool:
        raise NotLowered("eager refuses bools", refused=True)
    mode = _MODES[reduce]
    dtype = combining_dtype(lowering, mode)
    total = fill(lowering, replace(meta, dtype=dtype), lambda i: convert(x.at(i), dtype))
    if not include_self:
        start = ops.const(_identity(mode, dtype), dtype)
        update(lowering, total, shape, place, lambda i: start, "put")
    update(lowering, total, shape, place, lambda i: convert(source(i), dtype), mode)
    if reduce != "mean":
        return finished(lowering, total)
    one = ops.const(1, torch.int32)
    counts = replace(meta, dtype=torch.int32)
    count = fill(lowering, counts, lambda i: ops.const(int(include_self), torch.int32))
    update(lowering, count, shape, place, lambda i: one, "add")

    def mean(index: Index) -> Node:
        divisor = convert(ops.binary("maximum", count.at(index), one), dtype)
        if dtype.is_floating_point:
            return convert(ops.binary("truediv", total.at(index), divisor), meta.dtype)
        # sum and count wrap around in the narrow type, as eager's do
        whole, divisor = convert(total.at(index), meta.dtype), convert(divisor, meta.dtype)
        zero, single = ops.const(0, meta.dtype), ops.const(1, meta.dtype)
        divisor = ops.where(ops.binary("eq", divisor, zero), single, divisor)
        return ops.binary("floordiv", whole, divisor)

    return lowering.pointwise(mean)


def _identity(mode: str, dtype: torch.dtype) -> int | float:
    """Return the number that leaves others as they are."""
    if mode in ("add", "mul"):
        return int(mode == "mul")
    if dtype.is_floating_point:
        return -float("inf") if mode == "max" else float("inf")
    info = torch.iinfo(dtype)
    return info.min if mode == "max" else info.max


# -- others ---------------------------------------------------------------------------------------


@register(aten.masked_scatter.default)
def masked_scatter(
    lowering: Lowering, x: TensorValue, mask: TensorValue, source: TensorValue
) -> TensorValue:
    """Return x with the elements where ``mask`` holds taken from ``source``, one after another."""
    meta = lowering.meta()
    shape = meta.shape
    if source.numel.constant == 0 or not shape:
        raise NotLowered("masked_scatter of a scalar, or from nothing")
    if mask.dtype != torch.bool:
        raise NotLowered("eager refuses a mask that is not bool", refused=True)

    def chosen(index: Index) -> Node:
        return truth(mask.at(broadcast_index(index, mask.shape)))

    numbers = dense_meta((product(shape),), torch.int64, meta.device)
    flat = TensorValue(
        numbers.shape,
        torch.int64,
        meta.device,
        lambda i: ops.cast(chosen(unflatten(i[0], shape)), torch.int64),
    )
    with lowering.making(numbers):
        (rank,) = scan_values(lowering, flat, 0, ("sum",), torch.int64)

    def element(index: Index) -> Node:
        condition = chosen(index)
        one = ops.const(1, torch.int64)
        nth = ops.binary("sub", rank.at((flatten(index, shape),)), one)
        nth = ops.where(condition, nth, ops.const(0, torch.int64))
        place = ops.checked_index(nth, source.numel, wrap=False, what="source")
        value = source.at(unflatten(place, source.shape))
        value = convert(ops.keeping_checks(value, ops.indirect_nodes((place,))), x.dtype)
        return ops.where(condition, value, x.at(broadcast_index(index, x.shape)))

    return lowering.pointwise(element)


@register(aten.diagonal_scatter.default)
def diagonal_scatter(
    lowering: Lowering,
    x: TensorValue,
    source: TensorValue,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> TensorValue:
    """Return x with a diagonal replaced."""
    dim1, dim2 = normalize_dim(dim1, x.ndim), normalize_dim(dim2, x.ndim)

    def element(index: Index) -> Node:
        row, column = index[dim1], index[dim2]
        here = ops.binary(
            "eq",
            ops.index_value(column - row, torch.int64),
            ops.index_value(Expr.of(offset), torch.int64),
        )
        nth = row if offset >= 0 else column
        rest = tuple(i for d, i in enumerate(index) if d not in (dim1, dim2))
        value = ops.guard_loads(convert(source.at((*rest, nth)), x.dtype), here)
        return ops.where(here, value, x.at(index))

    return lowering.pointwise(element)


@register(aten.as_strided_scatter.default)
def as_strided_scatter(
    lowering: Lowering,
    x: TensorValue,
    source: TensorValue,
    size: Sequence[object],
    stride: Sequence[object],
    storage_offset: object = None,
) -> TensorValue:
    """Return x with a strided view of its storage replaced."""
    ref = lowering.realize(x).ref
    assert ref is not None
    given = ref.buffer in lowering.storage_offsets  # it may begin anywhere in its memory
    if given or ref.strides != contiguous_strides(x.shape) or ref.offset != 0:
        raise NotLowered("as_strided_scatter into a view")
    first = Expr.of(0 if storage_offset is None else storage_offset)  # type: ignore[arg-type]
    steps = tuple(Expr.of(s) for s in stride)  # type: ignore[arg-type]

    def place(at: Index) -> Index:
        position = first
        for i, step in zip(at, steps, strict=True):
            position = position + i * step
        return unflatten(position, x.shape)

    return updated(lowering, x, source.shape, place, source.at, "put")


__all__ = ["combining_dtype", "fill", "finished", "update", "updated"]
