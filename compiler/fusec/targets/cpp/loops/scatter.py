"""Bodies that update elements which the data choose: scatter, index_put, gradients of gathers.

Two points of such a loop may name the same element, so a loop runs in order unless its variable is
itself an index of what is updated: then no two of its turns touch the same element, and it may be
shared among threads or run as a vector loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusec.ir.body import Body, axis_sizes
from fusec.ir.index import Expr, Symbol, product
from fusec.ir.node import Node, Op, free_axes
from fusec.ir.ops import CHECK_PREFIX
from fusec.targets.cpp.loops.loop_heads import cost, head
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.text.scope import Kernel, Scope
from fusec.targets.cpp.text.writer import Writer


def write_updates(kernel: Kernel, scope: Scope, writer: Writer) -> None:
    """Write the loops of a body without reductions, some of whose stores are updates."""
    body = kernel.body
    outside = Scope(kernel, scope)
    constants = [node for node in kernel.nodes if not kernel.free[node]]
    stores = body.stores if not body.axes else ()
    outside.compute(constants, writer, stores=stores, later=_rest(kernel, constants))
    if not body.axes:
        for store in body.stores:
            outside.store(store, writer)
        return
    separate = separate_axes(body)
    shared = _shared_axis(kernel, separate)
    last = body.axes[-1]
    loops = [axis for axis in body.axes[:-1] if axis is not shared]
    begin, end = "0", ""
    if shared is None:
        _write_loops(kernel, outside, writer, loops, last, begin, end, separate)
        return
    clauses = ["omp parallel for num_threads(threads)"]
    if kernel.checked:
        clauses.append("reduction(max : failed)")
    if shared is not last:
        inner = Scope(kernel, outside)
        writer.directive(" ".join(clauses))
        with writer.block(head(inner, shared)):
            _write_loops(kernel, inner, writer, loops, last, begin, end, separate)
        return
    begin, end = outside.name(f"{last.name}_block"), kernel.extent(last)
    least = kernel.tunable(
        "BLOCK",
        choices.UPDATE_BLOCK,
        choices.UPDATE_BLOCKS,
        "elements of a row, at least",
    )
    # An even share each: a thread goes through all rows once for every block that it takes.
    share, size = outside.name("share"), outside.name("block")
    writer.line(f"const int64_t {share} = ({end} + threads - 1) / threads;")
    even = f"({share} + {choices.UPDATE_STEP - 1}) / {choices.UPDATE_STEP} * {choices.UPDATE_STEP}"
    writer.line(f"const int64_t {size} = {share} > {least} ? {even} : {least};")
    writer.directive(" ".join(clauses))
    with writer.block(f"for (int64_t {begin} = 0; {begin} < {end}; {begin} += {size})"):
        limit = kernel.at_most(f"{begin} + {size}", end)
        end = outside.name(f"{last.name}_end")
        writer.line(f"const int64_t {end} = {limit};")
        _write_loops(kernel, outside, writer, loops, last, begin, end, separate)


def _write_loops(
    kernel: Kernel,
    scope: Scope,
    writer: Writer,
    loops: Sequence[Symbol],
    last: Symbol,
    begin: str,
    end: str,
    separate: frozenset[Symbol],
) -> None:
    """Write nested loops, each level computing what the ones inside of it do not change."""
    inner = Scope(kernel, scope)
    if loops:
        with writer.block(head(inner, loops[0])):
            # what only the loops so far decide
            known = {*inner.axes}
            here = [n for n in kernel.nodes if kernel.free[n] <= known and n not in inner.values]
            inner.compute(here, writer, later=_rest(kernel, here))
            _write_loops(kernel, inner, writer, loops[1:], last, begin, end, separate)
        return
    here = [n for n in kernel.nodes if last not in kernel.free[n] and n not in inner.values]
    inner.compute(here, writer, later=_rest(kernel, here))
    if last in separate:
        checked = any(_is_check(n) and last in kernel.free[n] for n in kernel.nodes)
        writer.directive("omp simd" + (" reduction(max : failed)" if checked else ""))
    element = Scope(kernel, inner)
    with writer.block(head(element, last, begin, end)):
        element.compute(kernel.nodes, writer, stores=kernel.body.stores)
        for store in kernel.body.stores:
            element.store(store, writer)


def separate_axes(body: Body) -> frozenset[Symbol]:
    """Return the loops of which no two turns touch the same element of anything updated."""
    free = free_axes(body.computed)
    found = set(body.axes)
    for store in body.stores:
        if not store.updates:
            continue
        places: set[Symbol] = set()
        for position, expr in enumerate(store.index):
            axis = next((a for a in body.axes if expr == Expr.of(a)), None)
            others = (e for n, e in enumerate(store.index) if n != position)
            if axis is not None and not any(_depends(e, axis, free) for e in others):
                places.add(axis)
        found &= places
    return frozenset(found)


def _depends(expr: Expr, axis: Symbol, free: dict[Node, frozenset[Symbol]]) -> bool:
    return any(
        symbol is axis or (isinstance(symbol.payload, Node) and axis in free[symbol.payload])
        for symbol in expr.symbols()
    )


def _shared_axis(kernel: Kernel, separate: frozenset[Symbol]) -> Symbol | None:
    """Return the loop that threads share; None where there is none or that cannot pay."""
    work = product(axis_sizes(kernel.body.axes)).constant
    if work is not None and work < choices.grain(cost(kernel.nodes)):
        return None
    wide = [a for a in kernel.body.axes if a in separate and _extent(a) >= choices.UPDATE_SHARES]
    return wide[0] if wide else None


def _extent(axis: Symbol) -> int:
    size = axis.size.constant if axis.size is not None else 1
    return choices.UPDATE_SHARES if size is None else size


def _is_check(node: Node) -> bool:
    return isinstance(node, Op) and node.name.startswith(CHECK_PREFIX)


def _rest(kernel: Kernel, without: Sequence[Node]) -> set[Node]:
    return set(kernel.nodes) - set(without)


__all__ = ["separate_axes", "write_updates"]
