"""Which loops threads share, and how."""

from __future__ import annotations

from fusec.ir.body import axis_sizes
from fusec.ir.index import Symbol
from fusec.ir.shapes import product
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, cost, extent
from fusec.targets.cpp.plan.loop_plan import LoopConstant, Sharing


def plan_sharing(facts: Facts, rows: Symbol | None = None) -> Sharing:
    """Return how threads share the outer loops of a body.

    Args:
        facts: What decisions go by.
        rows: The axis of the one loop, if it goes over rows, of which a thread may take several.
    """
    work = product(axis_sizes(facts.body.axes + facts.body.reduce_axes))
    least = grain_of(facts)
    if work.constant is not None and work.constant < least:
        facts.note("threads", "one", f"{work.constant} elements, fewer than {least}")
        return Sharing(False)
    if not facts.may_thread:
        facts.note("threads", "one", "two threads might update the same element")
        return Sharing(False)
    if not facts.allows("threads"):
        facts.note("threads", "one", "as asked for")
        return Sharing(False)
    grain = chunk = None
    if work.constant is None:
        grain = LoopConstant("GRAIN", least, choices.GRAINS, "elements worth threads")
        facts.note("threads", f"from {grain.value} elements on", "sizes are known at each call")
    else:
        facts.note("threads", "all", f"{work.constant} elements are worth waking them")
    count = extent(rows) if rows is not None else None
    if count is not None and count >= choices.ROWS_WORTH_CHUNKS:
        chunk = _size(facts, "ROWS", choices.ROWS, choices.ROWS_TRIED, "rows a thread takes")
        facts.note("rows", f"{chunk.value} a turn", f"there are {count}: none waits long for one")
    return Sharing(True, work if grain is not None else None, grain, chunk)


def grain_of(facts: Facts) -> int:
    """Return how many elements of a body make a team of threads worth while."""
    return facts.wanted.size("GRAIN", choices.grain(cost(facts.nodes)), choices.GRAINS)


def _size(
    facts: Facts, name: str, value: int, among: tuple[int, ...], meaning: str
) -> LoopConstant:
    return LoopConstant(name, facts.wanted.size(name, value, among), among, meaning)


__all__ = ["grain_of", "plan_sharing"]
