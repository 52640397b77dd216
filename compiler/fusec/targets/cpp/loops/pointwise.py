"""Bodies without reductions: nested loops, the innermost one a vector loop."""

from __future__ import annotations

from contextlib import ExitStack

from fusec.ir.node import Node
from fusec.targets.cpp.loops.inner_loop import write_elements, write_inner
from fusec.targets.cpp.loops.row_reuse import declare_repeated, fill_repeated
from fusec.targets.cpp.loops.tiles import write_tiles
from fusec.targets.cpp.memory.loop_tables import Tables, write_tables
from fusec.targets.cpp.plan.loop_plan import Nest, Pointwise
from fusec.targets.cpp.text.loop_heads import head, shared_loops
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.writer import Writer


def write_pointwise(kernel: KernelWriter, plan: Pointwise, scope: Scope, writer: Writer) -> None:
    """Write the loops of a body without reductions."""
    for nest in plan.nests:
        part = kernel.part(nest.body)
        outside = Scope(part, scope)
        # What depends on no axis is computed once, above the loops.
        constants = [node for node in part.nodes if not part.free[node]]
        stores = nest.body.stores if not nest.body.axes else ()
        outside.compute(constants, writer, stores=stores, later=set(part.nodes) - set(constants))
        if not nest.body.axes:
            for store in nest.body.stores:
                outside.store(store, writer)
        elif nest.tile is not None:
            write_tiles(part, nest, nest.tile, outside, writer)
        elif len(nest.body.axes) == 1 and nest.block is None:
            _write_single(part, nest, outside, writer)
        else:
            _write_nest(part, nest, outside, writer)
        scope.taken |= outside.taken  # the next nest's values and tables are written beside these


def _write_single(kernel: KernelWriter, nest: Nest, scope: Scope, writer: Writer) -> None:
    """Write loops that threads and vectors share, one after the other."""
    middle = Scope(kernel, scope)
    for body, plan in nest.inner:
        part = kernel.part(body)
        only, sharing = Scope(part, middle), plan.sharing or nest.sharing
        if plan.once:
            with writer.block(""):
                write_elements(part, only, writer)
            continue
        with shared_loops(part, writer, [head(only, plan.axis)], sharing, simd=True):
            write_elements(part, only, writer)


def _write_nest(kernel: KernelWriter, nest: Nest, scope: Scope, writer: Writer) -> None:
    """Write the outer loops, and in them the innermost ones."""
    *outer, last = kernel.body.axes
    middle = Scope(kernel, scope)
    heads = [head(middle, axis) for axis in outer]
    begin, end = "0", ""
    if nest.block is not None:
        begin, end = middle.name(f"{last.name}_block"), kernel.extent(last)
        size = kernel.tunable(nest.block)
        heads.append(f"for (int64_t {begin} = 0; {begin} < {end}; {begin} += {size})")
    tables = write_tables(kernel, scope, writer, nest.tables) if nest.tables else {}
    middle.taken |= scope.taken
    # A thread keeps repeated rows from one turn of the second innermost loop to the next, and what
    # all of them share from before the first.
    own = [heads.pop()] if nest.repeated or nest.shared else []
    names: dict[Node, str] = {}
    with shared_loops(kernel, writer, heads, nest.sharing), ExitStack() as stack:
        if nest.repeated:
            names = declare_repeated(middle, writer, nest.repeated)
            stack.enter_context(writer.block(own[0]))
        if nest.shared:
            tables = write_tables(kernel, middle, writer, nest.shared)
            stack.enter_context(writer.block(own[0]))
        if nest.block is not None:
            limit = kernel.at_most(f"{begin} + {nest.block.name}", end)
            end = middle.name(f"{last.name}_end")
            writer.line(f"const int64_t {end} = {limit};")
        for body, plan in nest.inner:
            part = kernel.part(body)
            row = Scope(part, middle)
            rows = [node for node in part.nodes if plan.axis not in part.free[node]]
            row.compute(rows, writer, later=set(part.nodes) - set(rows))
            middle.taken |= row.taken
            known: Tables = tables
            if nest.repeated:
                fill_repeated(row, writer, nest.repeated, names, tables)
                known = {**tables, **{n: names[n] for each in nest.repeated for n in each.nodes}}
            write_inner(part, plan, row, writer, (begin, end), known)


__all__ = ["write_pointwise"]
