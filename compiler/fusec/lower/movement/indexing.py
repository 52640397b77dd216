"""Reading at computed positions: index, gather, embedding, index_select."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fusec.ir import ops
from fusec.ir.index import Expr
from fusec.ir.node import Node
from fusec.lower.dimensions import broadcast_shape, normalize_dim
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import Index, NotLowered, Shape, TensorValue, broadcast_index


@register(aten.embedding.default)
def embedding(
    lowering: Lowering,
    weight: TensorValue,
    indices: TensorValue,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> TensorValue:
    """Return weight[indices]."""

    def value(index: Index) -> Node:
        row = indices.at(index[: indices.ndim])
        place = ops.checked_index(row, weight.shape[0], wrap=False)
        return _read(weight, (place, *index[indices.ndim :]))

    _require_rows(weight.shape[0], lowering)
    return lowering.pointwise(value)


def _read(x: TensorValue, place: Index) -> Node:
    return ops.keeping_checks(x.at(place), ops.indirect_nodes(place))


def _only_element(lowering: Lowering, x: TensorValue, indices: TensorValue) -> TensorValue:
    """Return what a tensor without dimensions holds, at places that must be its only one."""

    def value(index: Index) -> Node:
        at = index[: indices.ndim] if index else (Expr.of(0),) * indices.ndim
        place = ops.checked_place(indices.at(at), Expr.of(1), wrap=False)
        return ops.keeping_checks(x.at(()), (place,))

    return lowering.pointwise(value)


def _require_rows(size: Expr, lowering: Lowering) -> None:
    if size.constant == 0 and any(s.constant == 0 for s in lowering.meta().shape) is False:
        raise NotLowered("an index into a dimension of size 0")


@register(aten.gather.default)
def gather(
    lowering: Lowering,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    *,
    sparse_grad: bool = False,
) -> TensorValue:
    """Return x with its positions along a dimension taken from ``indices``."""
    dim = normalize_dim(dim, x.ndim)
    if x.ndim == 0:
        return _only_element(lowering, x, indices)
    if indices.ndim == 0:
        raise NotLowered("gather with a 0-d index")
    _require_rows(x.shape[dim], lowering)

    def value(index: Index) -> Node:
        row = ops.checked_index(indices.at(index), x.shape[dim], wrap=False)
        return _read(x, (*index[:dim], row, *index[dim + 1 :]))

    return lowering.pointwise(value)


@register(aten.index_select.default)
def index_select(lowering: Lowering, x: TensorValue, dim: int, indices: TensorValue) -> TensorValue:
    """Return the slices of x that ``indices`` (1-d or 0-d) names."""
    dim = normalize_dim(dim, x.ndim)
    if x.ndim == 0:
        return _only_element(lowering, x, indices)
    _require_rows(x.shape[dim], lowering)

    def value(index: Index) -> Node:
        at = indices.at((index[dim],) if indices.ndim else ())
        row = ops.checked_index(at, x.shape[dim], wrap=False)
        return _read(x, (*index[:dim], row, *index[dim + 1 :]))

    return lowering.pointwise(value)


@register(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(lowering: Lowering, x: TensorValue, indices: Sequence[TensorValue | None]) -> TensorValue:
    """Return x[indices], as NumPy's advanced indexing does it."""
    selection = Selection.of(x.shape, indices)
    for d in selection.dims:
        _require_rows(x.shape[d], lowering)
    return lowering.pointwise(lambda at: _read(x, selection.place(at)))


@dataclass(frozen=True)
class Selection:
    """What ``x[indices]`` selects, by NumPy's rules of advanced indexing.

    Attributes:
        shape: The selection's.
        dims: The dimensions of x that tensors index.
        place: Index into the selection to index into x; negative positions count from the end.
    """

    shape: Shape
    dims: tuple[int, ...]
    place: Callable[[Index], Index]

    @staticmethod
    def of(shape: Shape, indices: Sequence[TensorValue | None]) -> Selection:
        """Return what ``indices`` (None for a whole dimension) select of a tensor of ``shape``.

        Raises:
            NotLowered: A mask is among them.
        """
        given = {d: i for d, i in enumerate(indices) if i is not None}
        if any(i.dtype in (torch.bool, torch.uint8) for i in given.values()):
            raise NotLowered("an index by a mask has a size that depends on data")
        if not given:
            return Selection(shape, (), lambda at: at)
        dims = tuple(given)
        chosen = broadcast_shape(*(i.shape for i in given.values()))
        # adjacent index tensors put their dimensions where they stand, others at the front
        adjacent = dims == tuple(range(dims[0], dims[-1] + 1))
        first, depth = dims[0] if adjacent else 0, len(chosen)
        kept = tuple(size for d, size in enumerate(shape) if d not in given)

        def place(at: Index) -> Index:
            inner = at[first : first + depth]
            rest = iter(at[:first] + at[first + depth :])
            return tuple(
                ops.checked_index(given[d].at(broadcast_index(inner, given[d].shape)), shape[d])
                if d in given
                else next(rest)
                for d in range(len(shape))
            )

        return Selection(kept[:first] + chosen + kept[first:], dims, place)
