"""Bodies that update elements which the data choose: scatter, index_put, gradients of gathers."""

from __future__ import annotations

from collections.abc import Sequence

from fusec.ir.checks import is_check
from fusec.ir.index import Symbol
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.loop_plan import Scatter
from fusec.targets.cpp.text.loop_heads import head
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.writer import Writer


def write_updates(kernel: KernelWriter, plan: Scatter, scope: Scope, writer: Writer) -> None:
    """Write the loops of a body without reductions, some of whose stores are updates."""
    body = kernel.body
    outside = Scope(kernel, scope)
    constants = [node for node in kernel.nodes if not kernel.free[node]]
    stores = body.stores if not body.axes else ()
    outside.compute(constants, writer, stores=stores, later=set(kernel.nodes) - set(constants))
    if not body.axes:
        for store in body.stores:
            outside.store(store, writer)
        return
    last, shared = body.axes[-1], plan.shared
    loops = [axis for axis in body.axes[:-1] if axis is not shared]
    if shared is None:
        _write_loops(kernel, plan, outside, writer, loops, ("0", ""))
        return
    clauses = ["omp parallel for num_threads(threads)"]
    if kernel.checked:
        clauses.append("reduction(max : failed)")
    if shared is not last:
        inner = Scope(kernel, outside)
        writer.directive(" ".join(clauses))
        with writer.block(head(inner, shared)):
            _write_loops(kernel, plan, inner, writer, loops, ("0", ""))
        return
    assert plan.block is not None
    begin, end = outside.name(f"{last.name}_block"), kernel.extent(last)
    least = kernel.tunable(plan.block)
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
        _write_loops(kernel, plan, outside, writer, loops, (begin, end))


def _write_loops(
    kernel: KernelWriter,
    plan: Scatter,
    scope: Scope,
    writer: Writer,
    loops: Sequence[Symbol],
    span: tuple[str, str],
) -> None:
    """Write nested loops, each level computing what the ones inside of it do not change.

    Args:
        kernel: The kernel.
        plan: Its plan.
        scope: Around the loops.
        writer: Where to.
        loops: Those outside of the innermost one.
        span: The first and the last + 1 position of that.
    """
    inner = Scope(kernel, scope)
    if loops:
        with writer.block(head(inner, loops[0])):
            # what only the loops so far decide
            known = {*inner.axes}
            here = [n for n in kernel.nodes if kernel.free[n] <= known and n not in inner.values]
            inner.compute(here, writer, later=set(kernel.nodes) - set(here))
            _write_loops(kernel, plan, inner, writer, loops[1:], span)
        return
    last = kernel.body.axes[-1]
    here = [n for n in kernel.nodes if last not in kernel.free[n] and n not in inner.values]
    inner.compute(here, writer, later=set(kernel.nodes) - set(here))
    if plan.vector:
        checked = any(is_check(n) and last in kernel.free[n] for n in kernel.nodes)
        writer.directive("omp simd" + (" reduction(max : failed)" if checked else ""))
    element = Scope(kernel, inner)
    with writer.block(head(element, last, *span)):
        element.compute(kernel.nodes, writer, stores=kernel.body.stores)
        for store in kernel.body.stores:
            element.store(store, writer)


__all__ = ["write_updates"]
