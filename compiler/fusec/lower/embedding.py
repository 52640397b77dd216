"""The gradient of an embedding table: rows of a gradient added where their indices say.

In half precision a sum needs float32, and a whole table of that kind would be filled, added to,
read again and converted, where most of its rows stay zero.  Where there are few rows to add, each
row of the table that gets any is known by the first of them; the sums are kept at that one's place
among the rows, and the table is written once.
"""

from __future__ import annotations

import torch

from fusec.ir import ops
from fusec.ir.index import Expr, flatten
from fusec.ir.node import Node, indirect
from fusec.lower.pointwise import convert
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.scatter_steps import Place, combining_dtype, fill, finished, update
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
        raise NotLowered("gradients divided by how often an index occurs")
    if not isinstance(padding, int):
        raise NotLowered("a padding index that is a symbol")
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
    on_gpu = lowering.triton or meta.device.type == "cuda"
    return on_gpu and meta.dtype.itemsize == 2 and 3 * count <= 2 * rows


def _sums_of_few(
    lowering: Lowering,
    gradient: TensorValue,
    indices: TensorValue,
    row: Place,
    value: Element,
) -> TensorValue:
    """Return the table, from sums at the place of the first row that goes to each of its own."""
    meta, count, depth = lowering.meta(), indices.numel, indices.ndim
    number = torch.int32

    def position(at: Index) -> Node:
        return ops.cast(ops.index_value(flatten(at, indices.shape), torch.int64), number)

    none = ops.cast(ops.index_value(count, torch.int64), number)
    first = fill(lowering, dense_meta(meta.shape[:1], number, meta.device), lambda at: none)
    update(lowering, first, indices.shape, row, position, "min")

    def owner(at: Index) -> Node:
        return ops.cast(first.at(at), torch.int64)

    zero = ops.const(0.0, torch.float32)
    kept = dense_meta((count, meta.shape[1]), torch.float32, meta.device)
    sums = fill(lowering, kept, lambda at: zero)

    def place(at: Index) -> Index:
        return (ops.checked_index(owner(row(at)), count, wrap=False), *at[depth:])

    update(lowering, sums, gradient.shape, place, value, "add")

    def element(at: Index) -> Node:
        found = owner(at[:1])
        there = ops.binary("lt", found, ops.index_value(count, torch.int64))
        total = sums.at((indirect(found, count), *at[1:]))
        return convert(ops.masked(there, total, 0.0), meta.dtype)

    return lowering.pointwise(element)
