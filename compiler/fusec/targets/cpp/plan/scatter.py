"""Plans of updates: which loop threads share, which one runs by vectors.

Two points of such a loop may name the same element, so a loop runs in order unless its variable is
itself an index of what is updated: then no two of its turns touch the same element.
"""

from __future__ import annotations

from fusec.ir.body import Body
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node
from fusec.ir.walk import free_axes
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, extent, points
from fusec.targets.cpp.plan.loop_plan import LoopConstant, Scatter
from fusec.targets.cpp.plan.threads import grain_of


def plan_scatter(facts: Facts) -> Scatter:
    """Return the loops of a body without reductions, some of whose stores are updates."""
    body = facts.body
    if not body.axes:
        return Scatter(None, None, False)
    separate, last = separate_axes(body), body.axes[-1]
    vector = last in separate and not _finds_places(body, last)
    shared, block = _shared_axis(facts, separate), None
    if vector:
        facts.note("vectors", last.name, "no two of its turns update the same element")
    if shared is not None:
        facts.note("threads", f"share {shared.name}", "no two of its turns update the same element")
    else:
        facts.note("threads", "one", "no loop is long enough whose turns update other elements")
    if shared is last:
        value = facts.wanted.size("BLOCK", choices.UPDATE_BLOCK, choices.UPDATE_BLOCKS)
        block = LoopConstant("BLOCK", value, choices.UPDATE_BLOCKS, "elements of a row, at least")
    return Scatter(shared, block, vector)


def separate_axes(body: Body) -> frozenset[Symbol]:
    """Return the loops of which no two turns touch the same element of anything updated."""
    found = set(body.axes)
    for store in body.stores:
        if store.updates:
            found &= {axis for axis in body.axes if Expr.of(axis) in store.index}
    return frozenset(found)


def _finds_places(body: Body, axis: Symbol) -> bool:
    """Whether a computed index of what is updated is another one in each turn of a loop."""
    free = free_axes(body.computed)
    return any(
        isinstance(symbol.payload, Node) and axis in free[symbol.payload]
        for store in body.stores
        if store.updates
        for expr in store.index
        for symbol in expr.symbols()
    )


def _shared_axis(facts: Facts, separate: frozenset[Symbol]) -> Symbol | None:
    """Return the loop that threads share; None where there is none or that cannot pay."""
    work = points(facts.body.axes)
    if work is not None and work < grain_of(facts):
        return None
    if not facts.allows("threads"):
        return None
    wide = [a for a in facts.body.axes if a in separate and _length(a) >= choices.UPDATE_SHARES]
    return wide[0] if wide else None


def _length(axis: Symbol) -> int:
    size = extent(axis)
    return choices.UPDATE_SHARES if size is None else size


__all__ = ["plan_scatter", "separate_axes"]
