"""Long reductions to few results: threads share pieces of the row, combined in order.

The number of pieces is fixed, so the result is the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.ir.body import axis_sizes
from fusec.ir.index import Symbol, product
from fusec.targets.cpp.loops.loop_heads import head, may_thread, shared_loops
from fusec.targets.cpp.loops.rows import Rows
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.row_passes import plan_steps
from fusec.targets.cpp.text.dtypes import C_TYPES
from fusec.targets.cpp.text.reductions import Accumulator, accumulator, merge, start
from fusec.targets.cpp.text.scope import Kernel, Scope
from fusec.targets.cpp.text.writer import Writer


def should_split(kernel: Kernel) -> bool:
    """Whether threads should share each row rather than the rows."""
    points = product(axis_sizes(kernel.body.axes)).constant
    work = product(axis_sizes(kernel.body.axes + kernel.body.reduce_axes)).constant
    return may_thread(kernel) and not kernel.body.scans() and choices.split_rows(points, work)


def write_pieces(kernel: Kernel, scope: Scope, writer: Writer) -> None:
    """Write a body with reductions whose rows are long and few."""
    steps = plan_steps(kernel, keep=False)
    everything = set(kernel.nodes)
    axis = split_axis(kernel)
    row = Scope(kernel, scope)
    heads = [head(row, outer) for outer in kernel.body.axes]
    with shared_loops(kernel, writer, heads, alone=True):
        rows = Rows(kernel, writer, steps, cut=True)
        for number, step in enumerate(steps.passes):
            later = everything - set(step.before)
            row.compute(step.before, writer, stores=step.row_stores, later=later)
            for store in step.row_stores:
                row.store(store, writer)
            if step.loops:
                _write_pass(kernel, row, writer, rows, number, axis)


def split_axis(kernel: Kernel) -> Symbol:
    """Return the reduced axis to cut: the outermost one that is long enough."""
    axes = kernel.body.reduce_axes
    ordered = any(getattr(node, "kind", "").startswith("arg") for node in kernel.nodes)
    for axis in axes:
        size = axis.size.constant if axis.size is not None else 1
        if ordered or size is None or size >= choices.PIECES:
            return axis  # the first position of an extreme is found in the first piece
    return max(axes, key=lambda axis: (axis.size.constant or 0) if axis.size is not None else 0)


def _write_pass(
    kernel: Kernel, row: Scope, writer: Writer, rows: Rows, number: int, axis: Symbol
) -> None:
    step = rows.steps.passes[number]
    pieces = kernel.tunable(
        "PIECES", choices.PIECES, choices.PIECE_CHOICES, "parts of a row for threads to share"
    )
    parts = [accumulator(row, node, "piece", total=True) for node in step.reductions]
    for part in parts:
        writer.line(f"{C_TYPES[part.dtype]} {part.place}[{pieces}];", part.node.source)
        if part.index:
            writer.line(f"int64_t {part.index}[{pieces}];", part.node.source)
    inner = Scope(kernel, row)
    piece = inner.name("piece")
    loop = f"for (int64_t {piece} = 0; {piece} < {pieces}; ++{piece})"
    with shared_loops(kernel, writer, [loop]):
        _write_piece(kernel, inner, writer, rows, number, axis, piece, pieces, parts)
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
    kernel: Kernel,
    scope: Scope,
    writer: Writer,
    rows: Rows,
    number: int,
    axis: Symbol,
    piece: str,
    pieces: str,
    parts: Sequence[Accumulator],
) -> None:
    """Write what one thread does for a piece: the same loops, over a part of one axis."""
    extent = kernel.extent(axis)
    length, begin = scope.name("length"), scope.name(f"{axis.name}_begin")
    end = scope.name(f"{axis.name}_stop")
    writer.line(f"const int64_t {length} = ({extent} + {pieces} - 1) / {pieces};")
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
