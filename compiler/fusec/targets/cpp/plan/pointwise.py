"""Plans of bodies without reductions: nests of loops, the innermost one a vector loop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from fusec.ir.body import Body
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node, Op
from fusec.report import counted
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.axes import split_last_axis, without_unit_axes
from fusec.targets.cpp.plan.cache_blocks import in_blocks
from fusec.targets.cpp.plan.deinterleave import deinterleaved_rows
from fusec.targets.cpp.plan.facts import Facts, cost, extent, is_even, points
from fusec.targets.cpp.plan.interleave import mark_type
from fusec.targets.cpp.plan.loop_plan import InnerLoop, LoopConstant, Nest, Pointwise, Sharing
from fusec.targets.cpp.plan.loop_tables import rows_in_blocks, shared_nodes, tabled_nodes
from fusec.targets.cpp.plan.moderate_angles import angles
from fusec.targets.cpp.plan.prefetch import Request, pointwise_requests, tile_requests
from fusec.targets.cpp.plan.row_reuse import Repeated, repeated_rows
from fusec.targets.cpp.plan.split_ranges import fill_out, split_ranges
from fusec.targets.cpp.plan.staging import Staging, staged, staged_row
from fusec.targets.cpp.plan.threads import grain_of, plan_sharing
from fusec.targets.cpp.plan.tiles import Turned, turned_loads


def plan_pointwise(facts: Facts) -> Pointwise:
    """Return the loops of a body without reductions."""
    parts = [facts.body]
    if facts.body.axes and facts.allows("split_ranges"):
        parts = split_ranges(facts.body, facts.body.axes[:-1])
    return Pointwise(tuple(_nest(_as_several(facts, without_unit_axes(body))) for body in parts))


def _as_several(facts: Facts, body: Body) -> Facts:
    """Return what decisions about a body go by, its last axis several where it is."""
    part = facts.part(body)
    several = split_last_axis(part) if facts.allows("split_axes") else None
    if several is None:
        return part
    lengths = " x ".join(str(extent(axis)) for axis in several.axes[len(body.axes) - 1 :])
    reason = f"places along {body.axes[-1].name} are found by division"
    facts.note("split_axes", lengths, reason)
    return facts.part(several)


def _nest(facts: Facts) -> Nest:
    body = facts.body
    if not body.axes:
        return Nest(body, plan_sharing(facts))
    last = body.axes[-1]
    turned = turned_loads(facts, last) if facts.allows("tiles") else None
    if turned is not None:
        return _tiled(facts, turned)
    in_common = _in_common(facts)
    if in_common is not None:
        return _of_shared_rows(facts.part(in_common))
    *outer, last = body.axes
    bodies = [body]
    if facts.allows("split_ranges"):
        bodies = fill_out(body, split_ranges(body, (last,)), facts.buffers)
    if len(bodies) > 1:
        facts.note("split_ranges", f"{len(bodies)} loops", "conditions change along the way")
    alone = len(bodies) == 1
    block = _block(facts, outer, last) if alone else None
    if not outer and block is None:
        return Nest(body, Sharing(False), tuple(_single(facts, each) for each in bodies))
    tables: tuple[Node, ...] = ()
    repeated: list[Repeated] = []
    if alone and block is None:
        if facts.allows("tables"):
            tables = tuple(tabled_nodes(facts))
        if facts.allows("row_reuse"):
            repeated = repeated_rows(facts, tables)
    _note_kept(facts, tables, repeated)
    known = {*tables, *(node for each in repeated for node in each.nodes)}
    inner = []
    for each in bodies:
        own = each.axes[-1]
        if extent(own) == 1:
            inner.append(_one_turn(each))
            continue
        part = facts.part(each)
        requests = pointwise_requests(part, own) if facts.allows("prefetch") else ()
        inner.append((each, plan_inner(part, own, requests, known, whole=block is None)))
    return Nest(
        body, plan_sharing(facts), tuple(inner), block, tables=tables, repeated=tuple(repeated)
    )


def _in_common(facts: Facts) -> Body | None:
    """Return a body whose rows go inside of blocks; None where other tables serve, or none does."""
    if not facts.allows("tables") or tabled_nodes(facts):
        return None
    if facts.allows("row_reuse") and repeated_rows(facts, ()):
        return None
    return rows_in_blocks(facts)


def _of_shared_rows(facts: Facts) -> Nest:
    """Return loops whose second innermost one has tables before it, of what its turns share."""
    *_, row, last = facts.body.axes
    shared = shared_nodes(facts)
    facts.note(
        "tables",
        f"{counted(len(shared), 'value')} of {extent(last)}",
        f"they are the same for all {extent(row)} turns of {row.name}",
    )
    requests = pointwise_requests(facts, last) if facts.allows("prefetch") else ()
    inner = plan_inner(facts, last, requests, shared, whole=True)
    return Nest(facts.body, plan_sharing(facts), ((facts.body, inner),), shared=shared)


def _one_turn(body: Body) -> tuple[Body, InnerLoop]:
    """Return what is no loop, as an innermost loop."""
    axis = body.axes[-1]
    moved = body.moved(body.axes, body.reduce_axes, {axis: Expr.of(0)})
    return moved, InnerLoop(axis, once=True)


def _single(facts: Facts, body: Body) -> tuple[Body, InnerLoop]:
    """Return how a loop runs that threads and vectors share."""
    axis = body.axes[-1]
    if extent(axis) == 1:
        return _one_turn(body)
    return body, InnerLoop(axis, sharing=plan_sharing(facts.part(body)))


def _tiled(facts: Facts, turned: Turned) -> Nest:
    """Return loops over tiles of two axes, some loads turned over beforehand."""
    last = facts.body.axes[-1]
    # Where every block of a row is taken to be full, those of a tile have to be so as well.
    least = choices.LINE if turned.even else 1
    among = choices.TILE_CHOICES
    widths = tuple(width for width in among if width >= least)
    rows = facts.wanted.size("TILE_ROWS", turned.rows, among)
    columns = facts.wanted.size("TILE_COLUMNS", turned.columns, widths)
    sizes = (
        LoopConstant("TILE_ROWS", rows, among, "rows of a turned tile"),
        LoopConstant("TILE_COLUMNS", columns, widths, "elements of a row"),
    )
    names = facts.called(load.buffer for load, _ in turned.steps)
    facts.note("tiles", f"{rows} x {columns}", f"{names} is contiguous along {turned.across.name}")
    loads = {load: "" for load, _ in turned.steps}
    requests = tile_requests(facts, last, turned.across, loads) if facts.allows("prefetch") else ()
    inner = plan_inner(facts, last, requests, loads, whole=False, turned=True)
    sharing = plan_sharing(facts)
    return Nest(facts.body, sharing, ((facts.body, inner),), tile=turned, tile_sizes=sizes)


def plan_inner(
    facts: Facts,
    axis: Symbol,
    requests: tuple[Request, ...],
    known: Collection[Node],
    *,
    whole: bool,
    turned: bool = False,
) -> InnerLoop:
    """Return how an innermost loop runs.

    Args:
        facts: Of the part of the body that it computes.
        axis: What it runs along.
        requests: What it asks the memory for.
        known: What it finds in tables and arrays.
        whole: Whether it runs over all of the axis.
        turned: Whether these arrays are tiles that were turned over.
    """
    body, size = facts.body, extent(axis)
    roots = [store.value for store in body.stores]
    places = [s.payload for store in body.stores for e in store.index for s in e.symbols()]
    roots += [place for place in places if isinstance(place, Node)]
    there = {*facts.fixed(axis), *known}
    inside = [node for node in facts.closure(roots, there) if axis in facts.free[node]]
    gathers = mostly_gathers(facts, axis, inside)
    loop = InnerLoop(axis, even=is_even(axis), requests=requests, scalar=gathers)
    if gathers:
        facts.note("vectors", "no", "it reads elements from all over, and does little with them")
    if whole and facts.allows("deinterleave"):
        loop = replace(loop, deinterleaved=tuple(deinterleaved_rows(facts, axis, inside)))
        if loop.deinterleaved:
            facts.note("deinterleave", "yes", "windows move by two along contiguous rows")
    if in_blocks(axis, inside):
        staging = staged(facts, axis, inside, body.stores)
        quick: list[tuple[Node, ...]] = []
        if (turned or not known) and facts.allows("moderate_angles"):
            quick = angles(facts, axis, inside, there)
        marks = "" if gathers or not facts.allows("interleave") else mark_type(inside)
        loop = replace(loop, staging=staging, angles=tuple(quick), marks=marks)
        loop = replace(loop, blocks=bool(requests or staging or quick or marks))
    elif whole and size is not None and size < choices.MIN_BLOCKED:
        loop = replace(loop, staging=staged_row(facts, axis, inside, body.stores))
    note_loop(facts, loop)
    return loop


def note_loop(facts: Facts, loop: InnerLoop) -> None:
    """Note what was decided of an innermost loop."""
    if loop.requests and loop.requests[0].axis is not None:
        names = facts.called(request.buffer for request in loop.requests)
        request = loop.requests[0]
        assert request.axis is not None
        reason = f"{request.turns} of {request.axis.name} ahead: they do not stay in a cache"
        facts.note("prefetch", names, reason)
    if loop.blocks:
        full = "all full" if loop.even else "and what is left over"
        facts.note("blocks", f"{choices.LINE} of {loop.axis.name}", f"a few cache lines, {full}")
    _note_staging(facts, loop.staging)
    if loop.turns:
        reason = f"the last vector of {loop.axis.name} is a whole one, of which a part counts"
        facts.note("full_vectors", f"{loop.turns} turns", reason)
    if loop.marks:
        facts.note("interleave", "four vectors", "each waits long for its own last step")
    if loop.angles:
        facts.note("moderate_angles", "two forms", "by the block's largest angle or quotient")


def _note_staging(facts: Facts, staging: Staging) -> None:
    halves = [load.buffer for load, _ in staging.loads]
    halves += [store.buffer for store in staging.stores]
    if halves:
        facts.note(
            "staging",
            facts.called(halves),
            "halves are converted many at a time, outside of the loop",
        )
    if staging.random:
        facts.note("staging", "random words", "64 come of 16 numbers")
    for store in staging.streams:
        facts.note(
            "staging", facts.called([store.buffer]), "whole lines are written past the caches"
        )


def _note_kept(facts: Facts, tables: Sequence[Node], repeated: Sequence[Repeated]) -> None:
    last = facts.body.axes[-1].name
    if tables:
        facts.note(
            "tables",
            f"{counted(len(tables), 'value')} along {last}",
            "every row would compute them again",
        )
    if repeated:
        facts.note(
            "row_reuse", counted(len(repeated), "row"), "neighbors are made from the same ones"
        )


def mostly_gathers(facts: Facts, axis: Symbol, inside: Sequence[Node]) -> bool:
    """Whether most of a loop's work is reading elements at computed positions."""
    gathers = [
        node
        for node in inside
        if isinstance(node, Load)
        and any(
            isinstance(s.payload, Node) and axis in facts.free[s.payload]
            for e in node.index
            for s in e.symbols()
        )
    ]
    branches = [n for n in inside if isinstance(n, Op) and n.name in choices.BRANCHES]
    if any(node.dtype.is_floating_point for node in branches):  # others make positions
        return False
    if all(_is_quick(facts, node, inside) for node in gathers):
        return False
    return cost(inside) < choices.GATHER_COST * len(gathers)


def _is_quick(facts: Facts, gather: Load, inside: Sequence[Node]) -> bool:
    """Whether elements at computed positions are read as a vector, which is there in a table."""
    places = {s.payload for e in gather.index for s in e.symbols() if isinstance(s.payload, Node)}
    if not places.isdisjoint(inside):
        return False
    return choices.gathers_quickly(facts.buffers[gather.buffer].dtype.itemsize)


def _block(facts: Facts, outer: Sequence[Symbol], last: Symbol) -> LoopConstant | None:
    """Return how the last loop is cut where the outer ones are too short for the threads."""
    if not facts.allows("threads"):
        return None
    count, size = points(outer), extent(last)
    if count is None or count >= choices.UNITS:
        return None
    if size is not None and size * count < grain_of(facts):
        return None
    value = facts.wanted.size("BLOCK", choices.BLOCK, choices.BLOCK_CHOICES)
    facts.note("block", f"{value} of {last.name}", f"{count} outer turns are too few for threads")
    return LoopConstant("BLOCK", value, choices.BLOCK_CHOICES, "elements a thread takes")


__all__ = ["mostly_gathers", "note_loop", "plan_inner", "plan_pointwise"]
