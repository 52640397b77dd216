"""Results that are written past the caches.

A store to a line that is in no cache reads the line first, to change a part of it; what a kernel
writes in order is overwritten whole, so that a third of the traffic of a copy is for nothing.
Stores that go past the caches do without.  What is written so is not in the cache either when
somebody reads it, so they are for kernels that read and write more than the caches hold.  And
they take a turn through an array, whose lines are stored whole: where arithmetic takes the time,
that is for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusec.codegen.common.operation_count import count_operations
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts


def streamed_buffers(body: Body, buffers: Mapping[str, Buffer]) -> frozenset[str]:
    """Return the results of a body that are worth writing past the caches.

    Args:
        body: Of a facts.
        buffers: Every buffer that it names.
    """
    read = {load.buffer for load in body.loads()}
    written = set(body.writes())
    moved = sum(buffers[name].bytes for name in read | written)  # a size that is not known: -1
    operations = count_operations(body)
    return frozenset(
        name
        for name in written - read
        if not buffers[name].dtype.is_complex
        and choices.worth_streaming(buffers[name].bytes, moved, operations)
    )


def runs_along(facts: Facts, access: Load | Store, axis: Symbol) -> bool:
    """Whether the elements of an access lie side by side in memory along ``axis``."""
    offset = facts.buffers[access.buffer].offset(access.index)
    return (
        not any(s.kind == "indirect" for s in offset.symbols())
        and offset.is_affine_in(axis)
        and offset.coefficient(axis) == 1
    )


def is_streamed(facts: Facts, store: Store, axis: Symbol) -> bool:
    """Whether the loop along ``axis`` writes such a result.

    Its blocks have to begin where a cache line does, whatever the outer loops are at; that the
    memory itself begins with one is asked when the kernel runs.
    """
    size = axis.size.constant if axis.size is not None else 1
    buffer = facts.buffers[store.buffer]
    if (
        store.mode != "set"
        or store.buffer not in facts.streamed
        or size is None
        or size < choices.MIN_BLOCKED
        or not runs_along(facts, store, axis)
    ):
        return False
    line = choices.CACHE_LINE // buffer.dtype.itemsize
    begin = buffer.offset(store.index).substitute({axis: Expr.of(0)})
    return all(factor % line == 0 for factor in begin.terms.values())


__all__ = ["is_streamed", "runs_along", "streamed_buffers"]
