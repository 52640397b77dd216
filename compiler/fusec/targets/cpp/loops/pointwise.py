"""Bodies without reductions: nested loops, the innermost one a vector loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from types import MappingProxyType

from fusec.ir.body import axis_sizes
from fusec.ir.index import Symbol, product
from fusec.ir.node import Load, Node
from fusec.targets.cpp.loops.cache_blocks import blocks, in_blocks, is_even
from fusec.targets.cpp.loops.loop_heads import cost, head, may_thread, shared_loops
from fusec.targets.cpp.loops.row_reuse import declare_repeated, fill_repeated, repeated_rows
from fusec.targets.cpp.loops.split_ranges import fill_out, split_ranges
from fusec.targets.cpp.memory.deinterleave import bind_apart, rows_apart, take_apart
from fusec.targets.cpp.memory.loop_tables import Tables, bind_tables, tabled_nodes, write_tables
from fusec.targets.cpp.memory.prefetch import (
    LINE,
    Request,
    pointwise_requests,
    tile_requests,
    write_requests,
)
from fusec.targets.cpp.memory.staging import Staging, staged, staged_row
from fusec.targets.cpp.memory.transpose import Turned, turned_loads
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.text.dtypes import ELEMENT_TYPES
from fusec.targets.cpp.text.expressions import from_memory
from fusec.targets.cpp.text.reductions import simd
from fusec.targets.cpp.text.scope import Kernel, Scope
from fusec.targets.cpp.text.writer import Writer
from fusec.targets.cpp.vector.interleave import Marks, mark_type
from fusec.targets.cpp.vector.moderate_angles import angles, both_forms


def write_pointwise(kernel: Kernel, scope: Scope, writer: Writer) -> None:
    """Write the loops of a body without reductions."""
    parts = [kernel]
    if may_thread(kernel) and kernel.body.axes:
        parts = [kernel.part(b) for b in split_ranges(kernel.body, kernel.body.axes[:-1])]
    for part in parts:
        _write_part(part, scope, writer)


def _write_part(kernel: Kernel, scope: Scope, writer: Writer) -> None:
    body = kernel.body
    outside = Scope(kernel, scope)
    # What depends on no axis is computed once, above the loops.
    constants = [node for node in kernel.nodes if not kernel.free[node]]
    stores = body.stores if not body.axes else ()
    outside.compute(constants, writer, stores=stores, later=_rest(kernel, constants))
    scope.taken |= outside.taken  # the next part's are written beside them
    if not body.axes:
        for store in body.stores:
            outside.store(store, writer)
        return
    turned = turned_loads(kernel, body.axes[-1]) if may_thread(kernel) else None
    if turned is not None:
        _write_tiles(kernel, outside, writer, turned)
    else:
        _write_nest(kernel, outside, writer)


def _write_nest(kernel: Kernel, scope: Scope, writer: Writer) -> None:
    *outer, last = kernel.body.axes
    threads = may_thread(kernel)
    middle = Scope(kernel, scope)
    heads = [head(middle, axis) for axis in outer]
    parts = [kernel]
    if threads:
        bodies = fill_out(kernel.body, split_ranges(kernel.body, (last,)), kernel.buffers)
        parts = [kernel.part(body) for body in bodies]
    blocked = len(parts) == 1 and _needs_blocks(kernel, outer, last)
    if not outer and not blocked:
        for part in parts:
            only = Scope(part, middle)
            loop = head(only, part.body.axes[-1])
            with shared_loops(part, writer, [loop], simd=threads):
                _write_elements(part, only, writer)
        return
    begin, end = "0", ""
    if blocked:
        begin, end = middle.name(f"{last.name}_block"), kernel.extent(last)
        size = kernel.tunable(
            "BLOCK", choices.BLOCK, choices.BLOCK_CHOICES, "elements a thread takes"
        )
        heads.append(f"for (int64_t {begin} = 0; {begin} < {end}; {begin} += {size})")
    kept = tabled_nodes(kernel) if threads and len(parts) == 1 and not blocked else []
    tables = write_tables(kernel, scope, writer, kept) if kept else {}
    middle.taken |= scope.taken
    repeated = repeated_rows(kernel, tables) if threads and len(parts) == 1 and not blocked else []
    # A thread keeps such rows from one turn of the second innermost loop to the next.
    own = [heads.pop()] if repeated else []
    with shared_loops(kernel, writer, heads), ExitStack() as stack:
        if repeated:
            names = declare_repeated(middle, writer, repeated)
            stack.enter_context(writer.block(own[0]))
        if blocked:
            limit = kernel.at_most(f"{begin} + BLOCK", end)
            end = middle.name(f"{last.name}_end")
            writer.line(f"const int64_t {end} = {limit};")
        for part in parts:
            row = Scope(part, middle)
            axis = part.body.axes[-1]
            rows = [node for node in part.nodes if axis not in part.free[node]]
            row.compute(rows, writer, later=_rest(part, rows))
            middle.taken |= row.taken
            if repeated:
                fill_repeated(row, writer, repeated, names, tables)
                tables = {**tables, **{n: names[n] for each in repeated for n in each.nodes}}
            requests = pointwise_requests(part, axis) if threads else ()
            _vector_loop(part, row, writer, axis, (begin, end), requests, tables)


def _vector_loop(
    kernel: Kernel,
    scope: Scope,
    writer: Writer,
    axis: Symbol,
    span: tuple[str, str],
    requests: Sequence[Request],
    tables: Tables = MappingProxyType({}),
) -> None:
    """Write the innermost loop, in blocks where it asks the memory for what comes later."""
    body, size = kernel.body, axis.size.constant if axis.size is not None else 1
    whole = span == ("0", "")
    span = (span[0], span[1] or kernel.extent(axis))
    inside = [n for n in _wanted(kernel, scope, tables) if axis in kernel.free[n]]
    staging, arguments, marks = Staging(), [], ""
    gathers = _mostly_gathers(kernel, axis, inside)
    apart = rows_apart(kernel, axis, inside) if whole and may_thread(kernel) else []
    if may_thread(kernel) and in_blocks(axis, inside):
        staging = staged(kernel, axis, inside, kernel.body.stores)
        arguments = [] if tables else angles(kernel, scope, axis, inside)
        marks = "" if gathers else mark_type(inside)
    with ExitStack() as stack:
        if apart:
            stack.enter_context(writer.block(""))
        places = take_apart(scope, writer, axis, apart)
        bind: Callable[[Scope], None] = lambda at: None  # noqa: E731
        if (requests or staging or arguments or marks) and in_blocks(axis, inside):
            even = is_even(axis)
            loop = blocks(scope, writer, axis, span, requests, staging, even=even, marks=marks)
            first, end, bind, marks = stack.enter_context(loop)
            span = (first, end)
        elif size is not None and size < choices.MIN_BLOCKED:
            if requests:
                write_requests(scope, writer, requests, {axis: span[0]}, str(size))
            if whole and may_thread(kernel):
                bind = stack.enter_context(staged_row(scope, writer, axis, inside, body.stores))
        if arguments:
            scope = stack.enter_context(both_forms(scope, writer, axis, span, arguments, bind))
        own = Marks(scope, marks, LINE)
        inner = Scope(kernel, scope)
        own.declare(writer)
        if may_thread(kernel):
            simd(kernel, (), writer, scalar=gathers)
        with writer.block(head(inner, axis, *span)):
            own.set(writer, f"{inner.axes[axis]} - {span[0]}")
            bind_tables(inner, axis, tables)
            bind(inner)
            bind_apart(inner, axis, places)
            _write_elements(kernel, inner, writer)
        own.end(writer)


def _write_elements(kernel: Kernel, scope: Scope, writer: Writer) -> None:
    scope.compute(_wanted(kernel, scope), writer, stores=kernel.body.stores)
    for store in kernel.body.stores:
        scope.store(store, writer)


def _mostly_gathers(kernel: Kernel, axis: Symbol, inside: Sequence[Node]) -> bool:
    """Whether most of a loop's work is reading elements at computed positions."""
    gathers = [
        node
        for node in inside
        if isinstance(node, Load)
        and any(
            isinstance(s.payload, Node) and axis in kernel.free[s.payload]
            for e in node.index
            for s in e.symbols()
        )
    ]
    return bool(gathers) and cost(inside) < choices.GATHER_COST * len(gathers)


def _wanted(kernel: Kernel, scope: Scope, known: Collection[Node] = ()) -> list[Node]:
    """Return what is left to compute for the stores."""
    stores = kernel.body.stores
    places = (s.payload for store in stores for e in store.index for s in e.symbols())
    # what is converted later is wanted before it is
    roots = [s.value.args[0] if s in scope.staged else s.value for s in stores]
    roots += [p for p in places if isinstance(p, Node)]
    return kernel.closure(roots, {*scope.values, *known})


def _needs_blocks(kernel: Kernel, outer: Sequence[Symbol], last: Symbol) -> bool:
    """Whether the outer loops are too short for the threads, so that the last one is cut."""
    if not may_thread(kernel):
        return False
    points = product(axis_sizes(tuple(outer))).constant
    size = last.size.constant if last.size is not None else 1
    if points is None or points >= choices.UNITS:
        return False
    return size is None or size * points >= choices.grain(cost(kernel.nodes))


def _write_tiles(kernel: Kernel, scope: Scope, writer: Writer, turned: Turned) -> None:
    """Write loops over square tiles of two axes, some loads turned over beforehand."""
    last, across = kernel.body.axes[-1], turned.across
    others = [axis for axis in kernel.body.axes if axis not in (last, across)]
    tile = Scope(kernel, scope)
    sizes = _tile_sizes(kernel, turned)
    heads = [head(tile, axis) for axis in others]
    ends: dict[Symbol, tuple[str, str]] = {}
    for axis, size in sizes.items():
        begin = tile.name(f"{axis.name}_tile")
        heads.append(
            f"for (int64_t {begin} = 0; {begin} < {kernel.extent(axis)}; {begin} += {size})"
        )
        ends[axis] = (begin, tile.name(f"{axis.name}_end"))
    with shared_loops(kernel, writer, heads):
        for axis, (begin, end) in ends.items():
            limit = kernel.at_most(f"{begin} + {sizes[axis]}", kernel.extent(axis))
            writer.line(f"const int64_t {end} = {limit};")
        (row, row_end), (column, column_end) = ends[across], ends[last]
        names = {}
        corner = Scope(kernel, tile)
        corner.axes.update({across: row, last: column})
        for load, step in turned.steps:
            dtype = kernel.buffers[load.buffer].dtype
            corner.use_type(dtype)
            names[load] = tile.name(f"{kernel.names[load.buffer]}_tile")
            sides = f"[{sizes[across]}][{sizes[last]}]"
            writer.line(f"{ELEMENT_TYPES[dtype]} {names[load]}{sides};", load.source)
            kernel.use(f"turn_over.{dtype.itemsize}")
            source = corner.element(load.buffer, load.index)
            writer.line(
                f"turn_over_{dtype.itemsize * 8}(&{names[load]}[0][0], {sizes[last]}, &{source}, "
                f"{tile.index(step)}, {row_end} - {row}, {column_end} - {column});",
                load.source,
            )
        inner = Scope(kernel, tile)
        with writer.block(head(inner, across, row, row_end)):
            rows = [node for node in kernel.nodes if last not in kernel.free[node]]
            inner.compute(rows, writer, later=_rest(kernel, rows))
            place = f"[{inner.axes[across]} - {row}]"
            for load, name in names.items():
                text = f"{name}{place}[{last.name} - {column}]"
                inner.values[load] = from_memory(text, load.dtype)
            requests = tile_requests(kernel, last, across, names)
            _vector_loop(kernel, inner, writer, last, (column, column_end), requests)


def _tile_sizes(kernel: Kernel, turned: Turned) -> dict[Symbol, str]:
    """Declare the sides of the tiles."""
    last = kernel.body.axes[-1]
    load, step = turned.steps[0]
    extent = last.size.constant if last.size is not None else 1
    itemsize = kernel.buffers[load.buffer].dtype.itemsize
    rows, columns = choices.tile(itemsize, extent, step.constant)
    # Where every block of a row is taken to be full, those of a tile have to be so as well.
    least = choices.LINE if is_even(last) else 1
    widths = [width for width in choices.TILE_CHOICES if width >= least]
    return {
        turned.across: kernel.tunable(
            "TILE_ROWS", rows, choices.TILE_CHOICES, "rows of a turned tile"
        ),
        last: kernel.tunable("TILE_COLUMNS", columns, widths, "elements of a row"),
    }


def _rest(kernel: Kernel, without: Sequence[Node]) -> set[Node]:
    return set(kernel.nodes) - set(without)


__all__ = ["write_pointwise"]
