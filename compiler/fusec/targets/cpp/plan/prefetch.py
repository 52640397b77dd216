"""What a loop asks the memory for before it needs it.

The processor fetches ahead by itself, but only within a page and only while its window of pending
operations reaches the next read; a loop with arithmetic in it waits at every cache line.  A request
made one row or a few lines earlier does not wait, and what is written is fetched for writing at
once.  On a chain of loads, arithmetic and stores beyond the caches that is worth a fifth to a third
of the time; where everything is in the cache it costs one instruction a cache line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from fusec.ir.body import Store, axis_sizes
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Reduce, Scan, indirect_nodes
from fusec.ir.shapes import product
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, cost, extent
from fusec.targets.cpp.plan.row_passes import RowSteps


@dataclass(frozen=True)
class Request:
    """A stretch of one buffer to ask for.

    Attributes:
        buffer: Which.
        index: The element that the stretch begins with.
        writes: Whether it is going to be written.
        axis: The loop of which a later turn is meant; None for the current one.
        turns: How many turns later.
        far: Whether it is for the second-level cache, as the first has no room for it until then.
    """

    buffer: str
    index: tuple[Expr, ...]
    writes: bool
    axis: Symbol | None = None
    turns: int = 0
    far: bool = False


def pointwise_requests(facts: Facts, last: Symbol) -> tuple[Request, ...]:
    """Return what the loop along ``last`` of a body without reductions asks for."""
    streams = _streams(facts, facts.body.loads(), facts.body.stores, last)
    size = last.size.constant if last.size is not None else 1
    if size is None or size >= 2 * choices.PREFETCH_DISTANCE:
        return _later(facts, streams, last, choices.PREFETCH_DISTANCE)
    outer = facts.body.axes[-2:-1]
    return (
        _later(facts, streams, outer[0], -(-choices.PREFETCH_DISTANCE // max(size, 1)))
        if outer
        else ()
    )


def tile_requests(
    facts: Facts, last: Symbol, across: Symbol, turned: Collection[Load]
) -> tuple[Request, ...]:
    """Return what a row of a tile asks for: the next row of all that is not turned over."""
    loads = [load for load in facts.body.loads() if load not in turned]
    return _later(facts, _streams(facts, loads, facts.body.stores, last), across, 1)


def row_requests(facts: Facts, steps: RowSteps) -> dict[int, tuple[Request, ...]]:
    """Return what the passes over a row ask for, by the number of the pass.

    All that the next row needs is asked for in the pass with the most arithmetic, where the memory
    would be idle.  Where no pass has much, that is one that finds its row in the cache and writes
    nothing; what is written is then asked for a few lines ahead.  Rows that do not stay in the
    cache from pass to pass are read anew in each, so each asks for its own.
    """
    body = facts.body
    last = body.reduce_axes[-1]
    passes = [n for n, step in enumerate(steps.passes) if step.loops]
    points = product(axis_sizes(body.reduce_axes)).constant
    if points == 0:
        return {}
    if not passes or points is None or points > choices.ROW_IN_CACHE or not body.axes:
        return {
            number: _later(
                facts,
                _streams(facts, _loads(steps, [number]), steps.passes[number].stores, last),
                last,
                choices.PREFETCH_DISTANCE,
            )
            for number in passes
        }
    busiest = busiest_pass(steps)
    if (
        len(passes) > 1
        and points >= choices.PREFETCH_DISTANCE
        and choices.leaves_time(_cost(steps, busiest))
    ):
        return _around(facts, steps, passes)
    stores = [s for step in steps.passes for s in step.stores]
    streams = _streams(facts, _loads(steps, passes), stores, last)
    done = {s.buffer for number in passes if number <= busiest for s in steps.passes[number].stores}
    if points < choices.PREFETCH_DISTANCE:
        done = {s.buffer for s in stores}  # this row's turn comes too soon
    later = [s for s in streams if not s.writes or s.buffer in done]
    own = [s for s in streams if s not in later]
    turns = -(-choices.PREFETCH_DISTANCE // points)
    return {busiest: (*_later(facts, later, body.axes[-1], turns), *own)}


def _around(facts: Facts, steps: RowSteps, passes: Sequence[int]) -> dict[int, tuple[Request, ...]]:
    """Return requests for the row to come, where memory is idle, and for results in their pass.

    Rows of short loops ask for nothing: a request for each is more work than what it saves.
    """
    *_, last = facts.body.reduce_axes
    size = extent(last)
    if size is not None and size < choices.MIN_BLOCKED:
        return {}
    idle = next((n for n in passes[1:] if not steps.passes[n].stores), passes[-1])
    streams = _streams(facts, _loads(steps, passes), [], last)
    points = product(axis_sizes(facts.body.reduce_axes)).constant or 0
    row = points * max((facts.buffers[s.buffer].dtype.itemsize for s in streams), default=0)
    far = row >= choices.FAR_ROW
    found = {idle: _later(facts, streams, facts.body.axes[-1], 1, far=far)}
    for number in passes:
        written = _streams(facts, [], steps.passes[number].stores, last)
        if written:
            ahead = _later(facts, written, last, choices.PREFETCH_DISTANCE)
            found[number] = (*found.get(number, ()), *ahead)
    return found


def busiest_pass(steps: RowSteps) -> int:
    """Return the number of the pass over a row that computes most."""
    passes = [n for n, step in enumerate(steps.passes) if step.loops]
    return max(passes, key=lambda number: _cost(steps, number))


def _cost(steps: RowSteps, number: int) -> int:
    return cost(steps.fresh(number))


def gathered_loads(facts: Facts, steps: RowSteps) -> list[Load]:
    """Return the loads of a whole row at a place that is computed from the row's number."""
    body = facts.body
    if not body.axes:
        return []
    axis = body.axes[-1]
    points = product(axis_sizes(body.reduce_axes)).constant
    if points is None or not choices.MIN_BLOCKED <= points <= choices.ROW_IN_CACHE:
        return []
    last = body.reduce_axes[-1]
    found: dict[tuple[str, Expr], Load] = {}
    for load in _loads(steps, [n for n, step in enumerate(steps.passes) if step.loops]):
        buffer = facts.buffers[load.buffer]
        size = buffer.elements.constant
        offset, nodes = buffer.offset(load.index), indirect_nodes(load.index)
        free = {symbol for node in nodes for symbol in facts.free[node]}
        wanted = facts.closure(nodes, ())
        if (
            load.mask is None
            and (size is None or size * buffer.dtype.itemsize >= choices.WORTH_ASKING)
            and axis in free
            and free.isdisjoint(body.reduce_axes)
            and offset.is_affine_in(last)
            and offset.coefficient(last) == 1
            and not any(isinstance(node, Reduce | Scan) for node in wanted)
            and cost(wanted) <= choices.NEXT_ROW_COST
        ):
            found.setdefault((load.buffer, offset), load)
    return list(found.values())[: choices.MOST_STREAMS]


def column_requests(
    facts: Facts, steps: RowSteps, number: int, column: Symbol, width: int | None
) -> tuple[Request, ...]:
    """Return what a pass over a tile of columns asks for: the rows to come."""
    step = steps.passes[number]
    streams = _streams(facts, _loads(steps, [number]), step.stores, column)
    turns = -(-choices.PREFETCH_DISTANCE // (choices.COLUMNS if width is None else max(width, 1)))
    return _later(facts, streams, facts.body.reduce_axes[-1], turns)


def _loads(steps: RowSteps, numbers: Sequence[int]) -> list[Load]:
    found = (n for number in numbers for n in steps.passes[number].inside if isinstance(n, Load))
    return list(dict.fromkeys(found))


def _streams(
    facts: Facts, loads: Iterable[Load], stores: Iterable[Store], along: Symbol
) -> list[Request]:
    """Return the accesses that run through large memory along ``along``, each place once."""
    found: dict[tuple[str, Expr], Request] = {}
    total = 0
    places = [(n.buffer, n.index, False) for n in loads]
    places += [(s.buffer, s.index, True) for s in stores if s.mode == "set"]
    for name, index, writes in places:
        buffer = facts.buffers[name]
        offset = buffer.offset(index)
        count = buffer.elements.constant
        size = None if count is None else count * buffer.dtype.itemsize
        if size is not None and size <= choices.SMALL_BUFFER:
            continue  # stays in the cache
        if any(s.kind == "indirect" for s in offset.symbols()):
            continue
        if not offset.is_affine_in(along) or offset.coefficient(along) != 1:
            continue
        key = (name, offset - offset.terms.get((), 0))  # neighbors come with the same lines
        if key not in found:
            total += size if size is not None else choices.WORTH_ASKING
        request = Request(name, index, writes)
        found[key] = request if writes or key not in found else found[key]
    if total < choices.WORTH_ASKING:
        return []
    return list(found.values())[: choices.MOST_STREAMS]


def _later(
    facts: Facts, streams: Iterable[Request], axis: Symbol, turns: int, *, far: bool = False
) -> tuple[Request, ...]:
    """Return the requests for ``turns`` turns of ``axis`` later, where that is another place."""
    moved = []
    for stream in streams:
        offset = facts.buffers[stream.buffer].offset(stream.index)
        if axis in offset.symbols() and offset.is_affine_in(axis):
            moved.append(replace(stream, axis=axis, turns=turns, far=far))
    return tuple(moved)


__all__ = [
    "Request",
    "busiest_pass",
    "column_requests",
    "gathered_loads",
    "pointwise_requests",
    "row_requests",
    "tile_requests",
]
