"""Rows that add to sums of the columns: threads share pieces of the rows.

A piece adds to sums of its own, which stay in the cache while its rows pass; another kernel adds
up the pieces. Their number does not depend on the threads.
"""

from __future__ import annotations

from fusec.ir.index import Expr, Symbol
from fusec.targets.cpp.dtypes import literal
from fusec.targets.cpp.loops.rows import write_row
from fusec.targets.cpp.plan.loop_plan import RowAndColumn
from fusec.targets.cpp.text.loop_heads import head, shared_loops
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.writer import Writer


def write_crossed(kernel: KernelWriter, plan: RowAndColumn, scope: Scope, writer: Writer) -> None:
    """Write a body that reduces rows and has sums of columns."""
    (axis,) = plan.body.axes
    piece, count = plan.piece, plan.count
    kernel = kernel.part(plan.body)
    outer = Scope(kernel, scope)
    with shared_loops(kernel, writer, [head(outer, piece)], plan.rows.sharing):
        name = outer.axes[piece]
        _write_zeros(kernel, outer, writer, piece)
        begin, end = outer.name(f"{axis.name}_begin"), outer.name(f"{axis.name}_end")
        writer.line(f"const int64_t {begin} = {name} * {count};")
        last, rows = f"{begin} + {count}", axis.size.constant if axis.size is not None else 1
        if rows is None or rows % count:
            last = kernel.at_most(last, kernel.extent(axis))
        writer.line(f"const int64_t {end} = {last};")
        row = Scope(kernel, outer)
        with writer.block(head(row, axis, begin, end)):
            write_row(kernel, plan.rows, row, writer)


def _write_zeros(kernel: KernelWriter, outer: Scope, writer: Writer, piece: Symbol) -> None:
    """Write what sets a piece's sums to zero."""
    sums = kernel.body.sums
    place = Scope(kernel, outer)
    column = Symbol("c", "axis", kernel.buffers[sums[0].buffer].shape[1])
    with writer.block(head(place, column)):
        for store in sums:
            target = place.element(store.buffer, (Expr.of(piece), Expr.of(column)))
            zero = literal(0, kernel.buffers[store.buffer].dtype)
            writer.line(f"{target} = {zero};", store.source)


__all__ = ["write_crossed"]
