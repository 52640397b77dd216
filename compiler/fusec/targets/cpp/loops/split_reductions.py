"""Long reductions to few results: threads share pieces of the row, combined in order.

The number of pieces is fixed, so the result is the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.targets.cpp.dtypes import C_TYPES
from fusec.targets.cpp.loops.rows import RowWriter
from fusec.targets.cpp.memory.prefetch import declare_line
from fusec.targets.cpp.plan.loop_plan import Rows, Sharing
from fusec.targets.cpp.text.loop_heads import head, shared_loops
from fusec.targets.cpp.text.reductions import Accumulator, accumulator, merge, start
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.writer import Writer


def write_pieces(kernel: KernelWriter, plan: Rows, scope: Scope, writer: Writer) -> None:
    """Write a body with reductions whose rows are long and few."""
    everything = set(kernel.nodes)
    row = Scope(kernel, scope)
    heads = [head(row, outer) for outer in kernel.body.axes]
    with shared_loops(kernel, writer, heads, Sharing(False)):
        rows = RowWriter(kernel, writer, plan)
        for number, step in enumerate(plan.steps.passes):
            later = everything - set(step.before)
            row.compute(step.before, writer, stores=step.row_stores, later=later)
            for store in step.row_stores:
                row.store(store, writer)
            if step.loops:
                _write_pass(kernel, row, writer, rows, number)


def _write_pass(
    kernel: KernelWriter, row: Scope, writer: Writer, rows: RowWriter, number: int
) -> None:
    step = rows.steps.passes[number]
    assert rows.plan.pieces is not None
    pieces = kernel.tunable(rows.plan.pieces)
    parts = [accumulator(row, node, "piece", total=True) for node in step.reductions]
    for part in parts:
        writer.line(f"{C_TYPES[part.dtype]} {part.place}[{pieces}];", part.node.source)
        if part.index:
            writer.line(f"int64_t {part.index}[{pieces}];", part.node.source)
    inner = Scope(kernel, row)
    piece = inner.name("piece")
    loop = f"for (int64_t {piece} = 0; {piece} < {pieces}; ++{piece})"
    with shared_loops(kernel, writer, [loop], rows.plan.sharing):
        _write_piece(kernel, inner, writer, rows, number, piece, parts)
    if not parts:
        return
    items = [accumulator(row, node, "row", total=True) for node in step.reductions]
    for item in items:
        start(item, writer)
    with writer.block(loop):
        for item, part in zip(items, parts, strict=True):
            merge(kernel, item, part.at(piece), writer)
    for item in items:
        row.bind_result(item.node, item.result, writer)


def _write_piece(
    kernel: KernelWriter,
    scope: Scope,
    writer: Writer,
    rows: RowWriter,
    number: int,
    piece: str,
    parts: Sequence[Accumulator],
) -> None:
    """Write what one thread does for a piece: the same loops, over a part of one axis."""
    axis, size = rows.plan.cut, rows.plan.pieces
    assert axis is not None
    assert size is not None
    pieces = size.name
    extent = kernel.extent(axis)
    length, begin = scope.name("length"), scope.name(f"{axis.name}_begin")
    end = scope.name(f"{axis.name}_stop")
    loop = rows.loops[number]
    if loop.axis is axis and loop.even and loop.blocks:
        line = declare_line(kernel, loop.line)
        each = f"({extent} / {line} + {pieces} - 1) / {pieces} * {line}"
    else:
        each = f"({extent} + {pieces} - 1) / {pieces}"
    writer.line(f"const int64_t {length} = {each};")
    writer.line(f"const int64_t {begin} = {piece} * {length};")
    writer.line(f"const int64_t {end} = {kernel.at_most(f'{begin} + {length}', extent)};")
    own = []
    for part in parts:
        local = accumulator(scope, part.node, "row", total=True)
        own.append(replace(local, dtype=part.dtype))
    for item in own:
        start(item, writer)
    rows.write_loops(scope, number, own, {axis: (begin, end)})
    for item, part in zip(own, parts, strict=True):
        target = part.at(piece)
        writer.line(f"{target.place} = {item.place};", part.node.source)
        if item.index:
            writer.line(f"{target.index} = {item.index};", part.node.source)
