"""What the choice among reductions asks of a body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusec.codegen.common.reduction_passes import plan_passes
from fusec.ir.body import Body, Buffer
from fusec.ir.index import Symbol
from fusec.ir.node import Load, Op, Reduce
from fusec.ir.scalars import cost_of
from fusec.ir.walk import free_axes
from fusec.targets.triton.plan.choice import (
    known,
)
from fusec.targets.triton.rewrite.online_softmax import carry_online


def walked_axes(
    body: Body, reduced: tuple[Symbol, ...]
) -> tuple[tuple[Symbol, ...], tuple[Symbol, ...]]:
    """Divide reduced axes into those that a loop takes one by one and those of a tile.

    Several axes that were not joined are not one stretch of memory, or something depends on the
    outer ones alone (the weight of a channel).  With the outer ones as numbers of the loop, what
    depends on them is loaded once, and what lies along the inner one in whole cache lines.
    """
    wide = [a for a in reduced if a.size != 1]
    inner = wide[-1].size.constant if wide and wide[-1].size is not None else None
    if len(wide) < 2 or inner is None or inner < 256 or body.scans():
        return (), reduced
    if inner > 8192 and inner % 1024:
        return (), reduced
    if any(isinstance(n, Reduce) and n.kind.startswith("arg") for n in body.nodes()):
        return (), reduced  # their positions are counted over all of a row
    return tuple(wide[:-1]), (wide[-1],)


def bulk_loads(body: Body, buffers: Mapping[str, Buffer], reduced: tuple[Symbol, ...]) -> int:
    """Return how many tensors as large as the largest a row has elements of."""
    along = set(reduced)
    names = {
        load.buffer for load in body.loads() if along & {s for e in load.index for s in e.symbols()}
    }
    sizes = [known(buffers[name].elements) for name in names]
    return sum(size * 2 > max(sizes) for size in sizes)


def overwrites_row_values(body: Body) -> bool:
    """Whether one program of a shared row might overwrite what another still has to read.

    What only the new value of its place is computed from (a running mean) is no matter: the others
    compute that as well, but do not store it.
    """
    free = free_axes(body.computed)
    reduced = frozenset(body.reduce_axes)
    stores = [store for store in body.stores if not body.reads_for_itself(store)]
    writes = {store.buffer for store in stores}
    return any(load.buffer in writes and not free[load] & reduced for load in body.loads())


def reads_once(body: Body) -> bool:
    """Whether a loop over the row would do with one pass: then registers save nothing.

    A program that holds a whole row computes nothing while it loads and loads nothing while it
    computes; a loop of several programs an SM overlaps both.
    """
    passes = plan_passes(carry_online(body)).passes
    return sum(each.loops for each in passes) == 1


def stores_rows(body: Body) -> bool:
    """Whether something is stored for each element of what is reduced."""
    free, reduced = free_axes(body.computed), set(body.reduce_axes)
    return any(reduced & free[store.value] for store in body.stores)


def row_bytes(body: Body, buffers: Mapping[str, Buffer], reduced: tuple[Symbol, ...]) -> int:
    """Return the bytes that are loaded for one element of a row."""
    along = set(reduced)
    found = {
        load.buffer for load in body.loads() if along & {s for e in load.index for s in e.symbols()}
    }
    return sum(buffers[name].dtype.itemsize for name in found)


def loaded_bytes(body: Body, reduced: Sequence[Symbol]) -> int:
    """Return the bytes that all loads of an element take where steps are loaded ahead."""
    along = set(reduced)
    free = free_axes(tuple(body.loads()))
    return sum(load.dtype.itemsize for load in body.loads() if along & free[load])


def elements_each(body: Body, reduced: Sequence[Symbol]) -> int:
    """Return how many elements a thread takes at a time that adds up columns, one value each.

    32 where it only adds.  16 where it stores what it adds up (the gradient of a bias with that of
    relu, 8192 x 768: 20.7 us instead of 26.6), 4 where that takes functions, which need registers:
    with that of gelu, 4096 x 3072, 36 us instead of 58, of 2048 x 8192 44 instead of 73.
    """
    free = free_axes(body.computed)
    if not any(set(reduced) <= free[store.value] for store in body.stores):
        return 32
    function = cost_of("exp")
    takes = any(isinstance(n, Op) and cost_of(n.name) >= function for n in body.nodes())
    return 4 if takes else 16


def reduces_contiguous(
    body: Body,
    buffers: Mapping[str, Buffer],
    outer: tuple[Symbol, ...],
    reduced: tuple[Symbol, ...],
) -> bool:
    """Whether memory runs along the reduced axes: the loads of most bytes decide."""
    along: dict[bool, int] = {True: 0, False: 0}
    for node in body.nodes():
        if not isinstance(node, Load):
            continue
        buffer = buffers[node.buffer]
        offset = buffer.offset(node.index)
        weight = known(buffer.elements) * buffer.dtype.itemsize
        for axes, key in ((reduced, True), (outer, False)):
            steps = [offset.coefficient(a).constant for a in axes if a in offset.symbols()]
            if any(step is not None and abs(step) == 1 for step in steps):
                along[key] += weight
    return along[False] <= along[True]


__all__ = [
    "bulk_loads",
    "elements_each",
    "loaded_bytes",
    "overwrites_row_values",
    "reads_once",
    "reduces_contiguous",
    "row_bytes",
    "stores_rows",
    "walked_axes",
]
