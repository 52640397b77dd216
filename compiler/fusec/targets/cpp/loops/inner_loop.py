"""The innermost loop of a body without reductions, as its plan says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import MappingProxyType

from fusec.ir.node import Node
from fusec.targets.cpp.loops.cache_blocks import blocks
from fusec.targets.cpp.memory.deinterleave import bind_deinterleaved, deinterleave
from fusec.targets.cpp.memory.loop_tables import Tables, bind_tables
from fusec.targets.cpp.memory.prefetch import LINE, write_requests
from fusec.targets.cpp.memory.staging import through_arrays
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import extent
from fusec.targets.cpp.plan.loop_plan import InnerLoop
from fusec.targets.cpp.text.loop_heads import head
from fusec.targets.cpp.text.reductions import simd
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.writer import Writer
from fusec.targets.cpp.vector.interleave import Marks
from fusec.targets.cpp.vector.moderate_angles import both_forms


def write_inner(
    kernel: KernelWriter,
    plan: InnerLoop,
    scope: Scope,
    writer: Writer,
    span: tuple[str, str],
    tables: Tables = MappingProxyType({}),
) -> None:
    """Write an innermost loop.

    Args:
        kernel: The part of the kernel that it computes.
        plan: How it runs.
        scope: Around it.
        writer: Where to.
        span: The positions that it runs over; to the end if that is empty.
        tables: What is known of all rows.
    """
    axis = plan.axis
    if plan.once:
        write_elements(kernel, scope, writer)
        return
    span = (span[0], span[1] or kernel.extent(axis))
    with ExitStack() as stack:
        bind: Callable[[Scope], None] = lambda at: None  # noqa: E731
        marks = ""
        if plan.deinterleaved:
            stack.enter_context(writer.block(""))
        places = deinterleave(scope, writer, axis, plan.deinterleaved)
        if plan.blocks:
            block = stack.enter_context(blocks(scope, writer, plan, span))
            span, bind, marks = (block.first, block.end), block.bind, block.marks
        else:
            size = extent(axis)
            if plan.requests and size is not None and size < choices.MIN_BLOCKED:
                write_requests(scope, writer, plan.requests, {axis: span[0]}, str(size))
            bind = stack.enter_context(through_arrays(plan.staging, scope, writer, axis))
        if plan.angles:
            scope = stack.enter_context(both_forms(scope, writer, axis, span, plan.angles, bind))
        own = Marks(scope, marks, LINE)
        inner = Scope(kernel, scope)
        own.declare(writer)
        simd(kernel, (), writer, scalar=plan.scalar)
        with writer.block(head(inner, axis, *span)):
            own.set(writer, inner.offset(axis, span[0]))
            bind_tables(inner, axis, tables)
            bind(inner)
            bind_deinterleaved(inner, axis, places)
            write_elements(kernel, inner, writer)
        own.end(writer)


def write_elements(kernel: KernelWriter, scope: Scope, writer: Writer) -> None:
    """Write what is left to compute for the stores, and the stores."""
    stores = kernel.body.stores
    places = (s.payload for store in stores for e in store.index for s in e.symbols())
    # what is converted later is wanted before it is
    roots = [s.value.args[0] if s in scope.staged else s.value for s in stores]
    roots += [p for p in places if isinstance(p, Node)]
    scope.compute(kernel.closure(roots, scope.values), writer, stores=stores)
    for store in stores:
        scope.store(store, writer)


__all__ = ["write_elements", "write_inner"]
