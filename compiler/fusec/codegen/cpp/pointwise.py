"""Bodies without reductions: nested loops, the innermost one a vector loop."""

from __future__ import annotations

from fusec.codegen.cpp.loops import head, may_thread, outer_loops
from fusec.codegen.cpp.scope import Kernel, Scope
from fusec.codegen.cpp.writer import Writer
from fusec.ir.node import Node


def write_pointwise(kernel: Kernel, scope: Scope, writer: Writer) -> None:
    """Write the loops of a body without reductions."""
    body = kernel.body
    nodes = body.nodes()
    axes = body.axes
    # What depends on no axis is computed once, above the loops.
    constants = [node for node in nodes if not kernel.free[node]]
    stores = body.stores if not axes else ()
    scope.compute(constants, writer, stores=stores, later=_rest(nodes, constants))
    if not axes:
        for store in body.stores:
            scope.store(store, writer)
        return
    if len(axes) == 1:
        with outer_loops(kernel, scope, writer, axes, simd=may_thread(kernel)) as inner:
            inner.compute(nodes, writer, stores=body.stores)
            for store in body.stores:
                inner.store(store, writer)
        return
    *outer, last = axes
    with outer_loops(kernel, scope, writer, outer) as middle:
        rows = [node for node in nodes if last not in kernel.free[node]]
        middle.compute(rows, writer, later=_rest(nodes, rows))
        inner = Scope(kernel, middle)
        if may_thread(kernel):
            writer.directive("omp simd" + (" reduction(max : failed)" if kernel.checked else ""))
        with writer.block(head(inner, last)):
            inner.compute(nodes, writer, stores=body.stores)
            for store in body.stores:
                inner.store(store, writer)


def _rest(nodes: list[Node], without: list[Node]) -> set[Node]:
    return set(nodes) - set(without)


__all__ = ["write_pointwise"]
