"""From a body to the plan of its loops: which kind, and then everything else."""

from __future__ import annotations

from collections.abc import Mapping

from fusec.ir.body import Body, Buffer
from fusec.report import counted
from fusec.targets.cpp.plan.columns import (
    column_axis,
    plan_columns,
    plan_short_rows,
    short_row_axis,
)
from fusec.targets.cpp.plan.facts import Facts, extent, points
from fusec.targets.cpp.plan.loop_plan import LoopPlan, Loops
from fusec.targets.cpp.plan.nontemporal import streamed_buffers
from fusec.targets.cpp.plan.pointwise import plan_pointwise
from fusec.targets.cpp.plan.rows import (
    may_split,
    plan_crossed,
    plan_pieces,
    plan_rows,
    should_split,
)
from fusec.targets.cpp.plan.scatter import plan_scatter
from fusec.targets.cpp.plan.wanted import Wanted


def plan_loops(body: Body, buffers: Mapping[str, Buffer], wanted: Wanted | None = None) -> LoopPlan:
    """Decide how the loops of a body run.

    Args:
        body: What to compute.
        buffers: Every buffer that it names.
        wanted: What somebody wants of them; it is taken where it is possible.
    """
    wanted = wanted or Wanted()
    streamed = streamed_buffers(body, buffers) if wanted.allows("nontemporal") else frozenset()
    facts = Facts(body, buffers, streamed=streamed, wanted=wanted)
    loops: Loops
    if body.has_reduction or body.reduce_axes:
        kind, loops = _plan_reduction(facts)
    elif body.updated():
        facts.note("kind", "scatter", "the data choose which elements are updated")
        kind, loops = "scatter", plan_scatter(facts)
    else:
        axes = " x ".join(axis.name for axis in body.axes) or "one point"
        facts.note("kind", "pointwise", f"every result stands for itself: {axes}")
        kind, loops = "pointwise", plan_pointwise(facts)
    if streamed:
        names = facts.called(sorted(streamed))
        facts.note("nontemporal", names, "larger than the caches, and quickly computed")
    for name, value in wanted.settings:
        if value == 0 and name != "threads":
            facts.note(name, "left out", "as asked for")
    return LoopPlan(kind, loops, streamed, wanted, tuple(facts.decisions))


def _plan_reduction(facts: Facts) -> tuple[str, Loops]:
    """Return the kind of loops of a body that reduces, and their plan."""
    body, kind = facts.body, facts.wanted.kind
    if body.sums:
        facts.note("kind", "row_and_column", "each row is read once for itself and its columns")
        return "row_and_column", plan_crossed(facts)
    by_columns = column_axis(facts, forced=kind == "columns")
    by_short_rows = short_row_axis(facts, forced=kind == "short_rows")
    # what somebody wants comes first, where it is possible
    possible = {
        "columns": by_columns is not None,
        "short_rows": by_short_rows is not None,
        "split_reduction": should_split(facts) or (kind == "split_reduction" and may_split(facts)),
        "rows": True,
    }
    chosen = kind if kind and possible[kind] else next(k for k, may in possible.items() if may)
    refused = f"; {kind} is not possible" if kind and chosen != kind else ""
    last = body.reduce_axes[-1]
    if chosen == "columns":
        assert by_columns is not None
        reason = f"memory is contiguous along {by_columns.name}, not along {last.name}"
        facts.note("kind", chosen, (("as asked for" if kind == chosen else reason) + refused))
        return chosen, plan_columns(facts, by_columns)
    reasons = {
        "short_rows": f"rows of {extent(last)} fill no vectors",
        "split_reduction": f"{counted(points(body.axes) or 0, 'row')} would not keep threads busy",
        "rows": f"memory is contiguous along {last.name}",
    }
    facts.note("kind", chosen, ("as asked for" if kind == chosen else reasons[chosen]) + refused)
    if chosen == "short_rows":
        assert by_short_rows is not None
        return chosen, plan_short_rows(facts, by_short_rows)
    return chosen, plan_pieces(facts) if chosen == "split_reduction" else plan_rows(facts)


__all__ = ["plan_loops"]
