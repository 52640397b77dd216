"""Plans of reductions a row at a time, in passes over the row; or in pieces that threads share."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from fusec.codegen.common.c_language import HALVES
from fusec.codegen.common.reduction_passes import ReductionPass
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node, Reduce, Scan
from fusec.report import counted
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.cache_blocks import in_blocks, is_position
from fusec.targets.cpp.plan.facts import Facts, cost, extent, is_even, points
from fusec.targets.cpp.plan.interleave import mark_type
from fusec.targets.cpp.plan.loop_plan import InnerLoop, LoopConstant, RowAndColumn, RowPass, Rows
from fusec.targets.cpp.plan.pointwise import note_loop
from fusec.targets.cpp.plan.prefetch import Request, busiest_pass, gathered_loads, row_requests
from fusec.targets.cpp.plan.row_passes import RowSteps, plan_steps
from fusec.targets.cpp.plan.scan_passes import plan_stretches, running_stretches
from fusec.targets.cpp.plan.staging import Staging, staged, staged_row
from fusec.targets.cpp.plan.threads import plan_sharing


def plan_rows(facts: Facts) -> Rows:
    """Return the passes over each row; threads share the rows."""
    axes = facts.body.axes
    steps = _steps(facts)
    requests = _requests(facts, steps)
    next_row = []
    asks = facts.may_thread and facts.allows("prefetch")
    if asks and not facts.body.sums:
        next_row = gathered_loads(facts, steps)
    busiest = busiest_pass(steps) if next_row else -1
    if next_row:
        names = facts.called(load.buffer for load in next_row)
        facts.note("next_row", names, "its place is computed, where no hardware expects it")
    passes = [_pass(facts, steps, n, requests, asks_more=n == busiest) for n in _numbers(steps)]
    sharing = plan_sharing(facts, axes[0] if len(axes) == 1 and not facts.body.sums else None)
    return Rows(sharing, steps, tuple(passes), tuple(next_row), busiest)


def plan_crossed(facts: Facts) -> RowAndColumn:
    """Return the passes over each row, which also adds to the sums of a piece of the rows."""
    body = facts.body
    piece = Symbol("piece", "axis", facts.buffers[body.sums[0].buffer].shape[0])
    stores = tuple(
        replace(store, index=(Expr.of(piece), *store.index[1:])) if store.mode == "sum" else store
        for store in body.stores
    )
    of_piece = replace(body, stores=stores)
    count = body.rows_of_piece
    facts.note("piece", f"{count} rows", "their sums of the columns stay in the cache")
    return RowAndColumn(of_piece, piece, count, plan_rows(facts.part(of_piece)))


def plan_pieces(facts: Facts) -> Rows:
    """Return the passes over rows that are long and few: threads share pieces of each."""
    steps = plan_steps(facts, keep=False)
    requests = _requests(facts, steps)
    line = choices.LINE
    if requests and _only_reads(facts, steps):
        requests, line = {}, choices.quiet_line(_widest_result(steps))
        facts.note(
            "prefetch", "none", "the processor reads ahead of so little arithmetic by itself"
        )
    axis = _split_axis(facts)
    value = facts.wanted.size("PIECES", choices.PIECES, choices.PIECE_CHOICES)
    pieces = LoopConstant(
        "PIECES", value, choices.PIECE_CHOICES, "parts of a row for threads to share"
    )
    reason = "always as many, so that the result does not hang on the number of threads"
    facts.note("pieces", f"{value} of {axis.name}", reason)
    passes = [_pass(facts, steps, n, requests, cut=axis) for n in _numbers(steps)]
    passes = [replace(each, loop=replace(each.loop, line=line)) for each in passes]
    return Rows(plan_sharing(facts), steps, tuple(passes), cut=axis, pieces=pieces)


def _only_reads(facts: Facts, steps: RowSteps) -> bool:
    """Whether passes over long rows are best left to the processor's own reading ahead."""
    passes = [number for number, step in enumerate(steps.passes) if step.loops]
    nodes = [node for number in passes for node in steps.passes[number].inside]
    loads = [node for node in nodes if isinstance(node, Load)]
    stores = [store for number in passes for store in steps.passes[number].stores]
    items = [item for number in passes for item in steps.passes[number].reductions]
    if stores or any(load.dtype in HALVES for load in loads):
        return False
    if not all(choices.reads_well_alone(item.kind, item.dtype) for item in items):
        return False
    return all(choices.hardware_prefetches(cost(steps.fresh(number))) for number in passes)


def _widest_result(steps: RowSteps) -> int:
    """Return the bytes of an element of the widest running result."""
    items = [item for step in steps.passes for item in step.reductions]
    return max((item.dtype.itemsize for item in items), default=4)


def _numbers(steps: RowSteps) -> range:
    return range(len(steps.passes))


def _steps(facts: Facts) -> RowSteps:
    steps = plan_steps(facts, keep=facts.allows("keep_rows"))
    loops = sum(step.loops for step in steps.passes)
    facts.note("passes", f"{loops} over a row", "each needs what the one before found")
    if steps.kept:
        count = counted(len(steps.kept), "value")
        facts.note("keep_rows", count, "computing them again costs more than reading")
    return steps


def _requests(facts: Facts, steps: RowSteps) -> dict[int, tuple[Request, ...]]:
    return row_requests(facts, steps) if facts.may_thread and facts.allows("prefetch") else {}


def _pass(
    facts: Facts,
    steps: RowSteps,
    number: int,
    requests: dict[int, tuple[Request, ...]],
    *,
    asks_more: bool = False,
    cut: Symbol | None = None,
) -> RowPass:
    """Return how one pass runs.

    Args:
        facts: What decisions go by.
        steps: The passes.
        number: Which.
        requests: What each asks the memory for.
        asks_more: Whether this one asks for the next row as well.
        cut: The axis of which only a part is run over.
    """
    step, axis = steps.passes[number], facts.body.reduce_axes[-1]
    chunk = _chunk(step.reductions, axis)
    earlier = {node for node in steps.kept if steps.first[node] < number}
    # pieces of an axis of whole lines are cut between lines
    loop = InnerLoop(axis, even=is_even(axis), requests=requests.get(number, ()))
    if not step.loops:
        return RowPass(step, loop)
    if any(isinstance(node, Scan) and node not in earlier for node in step.inside):
        return _scans(facts, RowPass(step, loop), earlier, kept=bool(steps.kept))
    fresh = [node for node in step.inside if node not in earlier]
    if not facts.may_thread:
        return RowPass(step, loop, chunk)
    if in_blocks(axis, step.inside, step.reductions):
        staging = staged(facts, axis, fresh, step.stores)
        marks = mark_type(fresh) if facts.allows("interleave") else ""
        # one vector of sums would wait for each addition before the next
        blocks = bool(asks_more or loop.requests or staging or marks or step.reductions)
        loop = replace(loop, blocks=blocks, staging=staging if blocks else Staging(), marks=marks)
    elif chunk is None and axis is not cut:
        read = choices.read_as_floats([node.kind for node in step.reductions])
        loop = replace(loop, staging=staged_row(facts, axis, fresh, step.stores, read))
        loop = replace(loop, turns=_turns(facts, step, loop, fresh))
    note_loop(facts, loop)
    if chunk is not None:
        searched = any(is_position(node) for node in step.reductions)
        reason = "only one that beats all before is searched" if searched else "then as double"
        facts.note("chunk", f"{chunk} of {axis.name}", reason)
    return RowPass(step, loop, chunk)


def _turns(facts: Facts, step: ReductionPass, loop: InnerLoop, fresh: Collection[Node]) -> int:
    """Return how many turns a pass over a short row has for whole vectors; 0 for its own."""
    found = choices.full_turns(extent(loop.axis))
    plain = all(
        node.dtype == torch.float32
        and (not isinstance(node, Load) or _is_next_to_it(facts, node, loop.axis))
        for node in fresh
        if loop.axis in facts.free[node] or isinstance(node, Load)
    )
    numbers = all(n.dtype == torch.float32 and not is_position(n) for n in step.reductions)
    alone = len(facts.body.reduce_axes) == 1 and step.reductions and not step.stores
    if not (found and plain and numbers and alone and not facts.checked):
        return 0
    if loop.staging != Staging() or not facts.allows("full_vectors"):
        return 0
    return found


def _is_next_to_it(facts: Facts, load: Load, axis: Symbol) -> bool:
    """Whether a load reads neighbors in memory, or one element for the whole row."""
    strides = facts.buffers[load.buffer].strides
    if load.mask is not None or any(not e.is_affine_in(axis) for e in load.index):
        return False
    step = sum(
        (e.coefficient(axis) * s for e, s in zip(load.index, strides, strict=True)), Expr.of(0)
    )
    return step.constant in (0, 1)


def _scans(facts: Facts, plan: RowPass, earlier: Collection[Node], *, kept: bool) -> RowPass:
    """Return the loops of a pass with scans, in blocks where that gives vector code."""
    step, axis = plan.step, plan.loop.axis
    known = {*facts.fixed(axis), *earlier}
    scans = [n for n in step.inside if isinstance(n, Scan) and n not in earlier]
    if not kept:
        stretches = running_stretches(facts, step, scans, axis, known)
        if stretches:
            staging = staged(facts, axis, step.inside, step.stores)
            loop = replace(plan.loop, blocks=True, staging=staging)
            facts.note("scan", "by vectors", "sums of a few elements need a few steps")
            note_loop(facts, loop)
            return replace(plan, loop=loop, stretches=tuple(stretches), running=True)
    stretches = plan_stretches(facts, step.inside, step.stores, step.reductions, known)
    if len(stretches) > 1:
        facts.note("scan", f"{len(stretches)} loops a block", "only the scan itself is in order")
    else:
        facts.note("scan", "one element after the other", "there is little else to do")
    return replace(plan, stretches=tuple(stretches))


def _chunk(reductions: Collection[Reduce], axis: Symbol) -> int | None:
    """Return how many elements the innermost loop runs over at a time; None for all."""
    size, limit = extent(axis), None
    if any(node.kind == "sum" and node.dtype.is_floating_point for node in reductions):
        limit = choices.SUM_CHUNK
    if any(node.kind in ("argmax", "argmin") for node in reductions):
        limit = choices.INDEX_CHUNK
    return None if limit is None or (size is not None and size <= limit) else limit


def should_split(facts: Facts) -> bool:
    """Whether threads should share each row rather than the rows."""
    body = facts.body
    return may_split(facts) and choices.split_rows(
        points(body.axes), points(body.axes + body.reduce_axes)
    )


def may_split(facts: Facts) -> bool:
    """Whether rows can be cut into pieces."""
    return facts.may_thread and not facts.body.scans()


def _split_axis(facts: Facts) -> Symbol:
    """Return the reduced axis to cut: the outermost one that is long enough."""
    axes = facts.body.reduce_axes
    ordered = any(getattr(node, "kind", "").startswith("arg") for node in facts.nodes)
    for axis in axes:
        size = extent(axis)
        if ordered or size is None or size >= choices.PIECES:
            return axis  # the first position of an extreme is found in the first piece
    return max(axes, key=lambda axis: (extent(axis) or 0) if axis.size is not None else 0)


__all__ = ["may_split", "plan_crossed", "plan_pieces", "plan_rows", "should_split"]
