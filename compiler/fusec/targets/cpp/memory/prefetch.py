"""What a loop asks the memory for before it needs it.

The processor fetches ahead by itself, but only within a page and only while its window of pending
operations reaches the next read; a loop with arithmetic in it waits at every cache line.  A request
made one row or a few lines earlier does not wait, and what is written is fetched for writing at
once.  On a chain of loads, arithmetic and stores beyond the caches that is worth a fifth to a third
of the time; where everything is in the cache it costs one instruction a cache line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fusec.ir.body import Store, axis_sizes
from fusec.ir.index import Expr, Symbol, product
from fusec.ir.node import Load, Reduce, Scan, indirect_nodes
from fusec.targets.cpp.loops.loop_heads import cost
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.row_passes import Steps
from fusec.targets.cpp.text.scope import Kernel, Scope
from fusec.targets.cpp.text.writer import Writer

LINE = "LINE"


@dataclass(frozen=True)
class Request:
    """A stretch of one buffer to ask for.

    Attributes:
        buffer: Which.
        index: The element that the stretch begins with.
        writes: Whether it is going to be written.
        axis: The loop of which a later turn is meant; None for the current one.
        turns: How many turns later.
        place: Where the indices are known, if that is not where the request is written.
    """

    buffer: str
    index: tuple[Expr, ...]
    writes: bool
    axis: Symbol | None = None
    turns: int = 0
    place: Scope | None = None


def declare_line(kernel: Kernel) -> str:
    """Declare how many elements one request is for; return the constant's name."""
    kernel.tunables[LINE] = (
        f"constexpr int64_t {LINE} = {choices.LINE}; // elements asked for at a time"
    )
    return LINE


def write_requests(
    scope: Scope,
    writer: Writer,
    requests: Iterable[Request],
    first: Mapping[Symbol, str],
    count: str,
    streamed: Collection[str] = (),
) -> None:
    """Write the requests of one block of a loop.

    Args:
        scope: Where all loops but the block's own have names.
        writer: Where to.
        requests: What to ask for.
        first: Axis to the position at which the block begins.
        count: Elements of the block.
        streamed: Buffers that the block writes past the caches.
    """
    for request in requests:
        if request.writes and request.buffer in streamed:
            continue
        place = Scope(scope.kernel, request.place or scope)
        place.axes.update(first)
        moved = {axis: Expr.of(0) for axis, text in first.items() if text == "0"}
        if request.axis is not None:
            own = moved.get(request.axis, Expr.of(request.axis))
            moved[request.axis] = own + request.turns
        helper = "ahead_to_write" if request.writes else "ahead"
        scope.kernel.use(helper)
        index = tuple(e.substitute(moved) for e in request.index)
        element = place.element(request.buffer, index)
        writer.line(f"{helper}<{count}>(&{element});")


def pointwise_requests(kernel: Kernel, last: Symbol) -> tuple[Request, ...]:
    """Return what the loop along ``last`` of a body without reductions asks for."""
    streams = _streams(kernel, kernel.body.loads(), kernel.body.stores, last)
    size = last.size.constant if last.size is not None else 1
    if size is None or size >= 2 * choices.AHEAD:
        return _later(kernel, streams, last, choices.AHEAD)
    outer = kernel.body.axes[-2:-1]
    return _later(kernel, streams, outer[0], -(-choices.AHEAD // max(size, 1))) if outer else ()


def tile_requests(
    kernel: Kernel, last: Symbol, across: Symbol, turned: Collection[Load]
) -> tuple[Request, ...]:
    """Return what a row of a tile asks for: the next row of all that is not turned over."""
    loads = [load for load in kernel.body.loads() if load not in turned]
    return _later(kernel, _streams(kernel, loads, kernel.body.stores, last), across, 1)


def row_requests(kernel: Kernel, steps: Steps) -> dict[int, tuple[Request, ...]]:
    """Return what the passes over a row ask for, by the number of the pass.

    All that the next row needs is asked for in the pass with the most arithmetic, where the memory
    would be idle.  Rows that do not stay in the cache from pass to pass are read anew in each, so
    each asks for its own.
    """
    body = kernel.body
    last = body.reduce_axes[-1]
    passes = [n for n, step in enumerate(steps.passes) if step.loops]
    points = product(axis_sizes(body.reduce_axes)).constant
    if points == 0:
        return {}
    if not passes or points is None or points > choices.ROW_IN_CACHE or not body.axes:
        return {
            number: _later(
                kernel,
                _streams(kernel, _loads(steps, [number]), steps.passes[number].stores, last),
                last,
                choices.AHEAD,
            )
            for number in passes
        }
    busiest = busiest_pass(steps)
    stores = [s for step in steps.passes for s in step.stores]
    streams = _streams(kernel, _loads(steps, passes), stores, last)
    done = {s.buffer for number in passes if number <= busiest for s in steps.passes[number].stores}
    if points < choices.AHEAD:
        done = {s.buffer for s in stores}  # this row's turn comes too soon
    later = [s for s in streams if not s.writes or s.buffer in done]
    own = [s for s in streams if s not in later]
    turns = -(-choices.AHEAD // points)
    return {busiest: (*_later(kernel, later, body.axes[-1], turns), *own)}


def busiest_pass(steps: Steps) -> int:
    """Return the number of the pass over a row that computes most."""
    passes = [n for n, step in enumerate(steps.passes) if step.loops]
    return max(passes, key=lambda number: cost(steps.fresh(number)))


def gathered_requests(
    kernel: Kernel, scope: Scope, row: Scope, writer: Writer, steps: Steps
) -> dict[int, tuple[Request, ...]]:
    """Write what finds out where the next row is, and return the requests for it.

    Rows at computed places, as an embedding's, are where no hardware expects them.

    Args:
        kernel: One whose rows are reduced one after the other.
        scope: Around the loops over the rows.
        row: Inside of them.
        writer: Where to.
        steps: The passes over a row.
    """
    *_, axis = kernel.body.axes
    loads = _gathered(kernel, steps, axis)
    if not loads:
        return {}
    kernel.use("at_most")
    later = Scope(kernel, scope)
    later.taken, later.axes = row.taken, dict(row.axes)
    now, extent = later.axes[axis], kernel.extent(axis)
    name = later.bind(axis, later.name(f"{axis.name}_next"))
    limit = str(int(extent) - 1) if extent.isdigit() else f"{extent} - 1"
    writer.line(f"const int64_t {name} = at_most({now} + 1, {limit});")
    payloads = indirect_nodes(tuple(expr for load in loads for expr in load.index))
    later.compute(kernel.closure(payloads, later.values), writer, named=payloads)
    return {
        busiest_pass(steps): tuple(
            Request(load.buffer, load.index, writes=False, place=later) for load in loads
        )
    }


def _gathered(kernel: Kernel, steps: Steps, axis: Symbol) -> list[Load]:
    """Return the loads of a whole row at a place that is computed from the row's number."""
    body = kernel.body
    points = product(axis_sizes(body.reduce_axes)).constant
    if points is None or not choices.MIN_BLOCKED <= points <= choices.ROW_IN_CACHE:
        return []
    last = body.reduce_axes[-1]
    found: dict[tuple[str, Expr], Load] = {}
    for load in _loads(steps, [n for n, step in enumerate(steps.passes) if step.loops]):
        buffer = kernel.buffers[load.buffer]
        size = buffer.elements.constant
        offset, nodes = buffer.offset(load.index), indirect_nodes(load.index)
        free = {symbol for node in nodes for symbol in kernel.free[node]}
        wanted = kernel.closure(nodes, ())
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
    kernel: Kernel, steps: Steps, number: int, column: Symbol, width: int | None
) -> tuple[Request, ...]:
    """Return what a pass over a tile of columns asks for: the rows to come."""
    step = steps.passes[number]
    streams = _streams(kernel, _loads(steps, [number]), step.stores, column)
    turns = -(-choices.AHEAD // (choices.COLUMNS if width is None else max(width, 1)))
    return _later(kernel, streams, kernel.body.reduce_axes[-1], turns)


def _loads(steps: Steps, numbers: Sequence[int]) -> list[Load]:
    found = (n for number in numbers for n in steps.passes[number].inside if isinstance(n, Load))
    return list(dict.fromkeys(found))


def _streams(
    kernel: Kernel, loads: Iterable[Load], stores: Iterable[Store], along: Symbol
) -> list[Request]:
    """Return the accesses that run through large memory along ``along``, each place once."""
    found: dict[tuple[str, Expr], Request] = {}
    total = 0
    places = [(n.buffer, n.index, False) for n in loads]
    places += [(s.buffer, s.index, True) for s in stores if s.mode == "set"]
    for name, index, writes in places:
        buffer = kernel.buffers[name]
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
    kernel: Kernel, streams: Iterable[Request], axis: Symbol, turns: int
) -> tuple[Request, ...]:
    """Return the requests for ``turns`` turns of ``axis`` later, where that is another place."""
    moved = []
    for stream in streams:
        offset = kernel.buffers[stream.buffer].offset(stream.index)
        if axis in offset.symbols() and offset.is_affine_in(axis):
            moved.append(replace(stream, axis=axis, turns=turns))
    return tuple(moved)


__all__ = [
    "Request",
    "busiest_pass",
    "column_requests",
    "declare_line",
    "gathered_requests",
    "pointwise_requests",
    "row_requests",
    "tile_requests",
    "write_requests",
]
