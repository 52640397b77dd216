"""The gradient of an embedding table: rows of a gradient added where their indices say.

In half precision a sum needs float32, and a whole table of that kind would be filled, added to,
read again and converted, where most of its rows stay zero.  Where there are few rows to add, each
row of the table that gets any is known by the first and the last of them.  Where these are one, it
is copied; only the others are added up, at the first one's place among the rows, where the sum
begins as that row: nothing is filled with zeros.  The table is written once.
"""

from __future__ import annotations

import torch

from fusec.ir import ops
from fusec.ir.index import Expr
from fusec.ir.node import Node, indirect
from fusec.ir.shapes import flatten, unflatten
from fusec.lower.pointwise.elementwise import convert
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.scatter.few_rows import sums_of_few_rows
from fusec.lower.scatter.steps import Place, combining_dtype, fill, finished, update
from fusec.lower.values import Element, Index, NotLowered, TensorValue, dense_meta

# Columns of a row that make up for looking up where it goes.
_LEAST_COLUMNS = 32


@register(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    lowering: Lowering,
    gradient: TensorValue,
    indices: TensorValue,
    rows: Expr | int,
    padding: int,
    scale_by_frequency: bool,
) -> TensorValue:
    """Return the gradient of a table of ``rows`` rows, those of the ``padding`` index left out."""
    if scale_by_frequency:
        raise NotLowered("scale_grad_by_freq divides gradients by how often an index occurs")
    if not isinstance(padding, int):
        raise NotLowered("a padding index that is a symbolic number")
    depth, count = indices.ndim, Expr.of(rows)
    dtype = combining_dtype(lowering, "add")

    def row(at: Index) -> Index:
        return (ops.checked_index(indices.at(at[:depth]), count, wrap=False),)

    def value(at: Index) -> Node:
        found = convert(gradient.at(at), dtype)
        if padding < 0:
            return found
        index = ops.cast(indices.at(at[:depth]), torch.int64)
        counts = ops.binary("ne", index, ops.const(padding, torch.int64))
        return ops.where(counts, found, ops.const(0.0, dtype))

    zeros = lowering.lazy(lambda at: ops.const(0.0, dtype))
    summed = sums_of_few_rows(lowering, zeros, (indices, None), value, dtype)
    if summed is not None:
        return summed
    if _few(lowering, indices):
        return _sums_of_few(lowering, gradient, indices, row, value)
    table = dense_meta(lowering.meta().shape, dtype, lowering.meta().device)
    target = fill(lowering, table, lambda at: ops.const(0.0, dtype))

    def place(at: Index) -> Index:
        return (*row(at), *at[depth:])

    update(lowering, target, gradient.shape, place, value, "add")
    return finished(lowering, target)


def _few(lowering: Lowering, indices: TensorValue) -> bool:
    """Whether the rows to add are far fewer than the table's, which is in half precision."""
    meta = lowering.meta()
    rows, columns, count = (e.constant for e in (*meta.shape, indices.numel))
    if rows is None or columns is None or not count or columns < _LEAST_COLUMNS:
        return False
    many = lowering.can(meta.device).many_programs
    return many and meta.dtype.itemsize == 2 and 3 * count <= 2 * rows


def _narrow(value: Expr | int) -> Node:
    return ops.cast(ops.index_value(Expr.of(value), torch.int64), torch.int32)


def _ends(lowering: Lowering, indices: TensorValue, row: Place) -> TensorValue:
    """Return where rows go first, counted from the end, and last, for each row of the table.

    Both extremes of the positions are largest values, so that one kernel finds them; -1: nowhere.
    """
    meta, count = lowering.meta(), indices.numel
    ends = dense_meta((Expr.of(2), meta.shape[0]), torch.int32, meta.device)
    found = fill(lowering, ends, lambda at: _narrow(-1))

    def mark(at: Index) -> Node:
        position = flatten(at[1:], indices.shape)
        from_end = ops.binary("eq", _narrow(at[0]), _narrow(0))
        return ops.where(from_end, _narrow(count - 1 - position), _narrow(position))

    shape = (Expr.of(2), *indices.shape)
    update(lowering, found, shape, lambda at: (at[0], *row(at[1:])), mark, "max")
    return found


def _sums_of_few(
    lowering: Lowering,
    gradient: TensorValue,
    indices: TensorValue,
    row: Place,
    value: Element,
) -> TensorValue:
    """Return the table, from sums at the place of the first row that goes to each of its own."""
    meta, count, depth = lowering.meta(), indices.numel, indices.ndim
    found = _ends(lowering, indices, row)

    def first(at: Index) -> Node:
        return ops.binary("sub", _narrow(count - 1), found.at((Expr.of(0), *at)))

    def last(at: Index) -> Node:
        return found.at((Expr.of(1), *at))

    def owner(at: Index) -> Node:
        return ops.cast(first(at), torch.int64)

    def is_shared(at: Index) -> Node:
        return ops.binary("lt", first(at), last(at))

    kept = dense_meta((count, meta.shape[1]), torch.float32, meta.device)
    sums = lowering.from_buffer(lowering.new_buffer(kept))

    def own_place(at: Index) -> Index:
        return (flatten(at[:depth], indices.shape), *at[depth:])

    def place(at: Index) -> Index:
        return (ops.checked_index(owner(row(at)), count, wrap=False), *at[depth:])

    def begins(at: Index) -> Node:
        return ops.binary("eq", first(row(at)), _narrow(own_place(at)[0]))

    # what is not written, and what would be added as nothing, is not read either
    def start(at: Index) -> Node:
        here = ops.binary("logical_and", is_shared(row(at)), begins(at))
        return ops.masked(here, value(at), 0.0)

    def rest(at: Index) -> Node:
        here = ops.binary("logical_and", is_shared(row(at)), ops.unary("logical_not", begins(at)))
        return ops.masked(here, value(at), 0.0)

    update(lowering, sums, gradient.shape, own_place, start, "some")
    update(lowering, sums, gradient.shape, place, rest, "add")

    def element(at: Index) -> Node:
        place = indirect(owner(at[:1]), count)
        total = ops.masked(is_shared(at[:1]), sums.at((place, *at[1:])), 0.0)
        alone = ops.binary("eq", first(at[:1]), last(at[:1]))
        only = ops.masked(alone, value((*unflatten(place, indices.shape), *at[1:])), 0.0)
        return convert(ops.where(alone, only, total), meta.dtype)

    return lowering.pointwise(element)
