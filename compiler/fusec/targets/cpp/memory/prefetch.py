"""Requests to the memory as text; ``plan/prefetch.py`` decides what to ask for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, indirect_nodes
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.prefetch import Request
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.writer import Writer

LINE = "LINE"


@dataclass(frozen=True)
class NextRow(Request):
    """A request for the row to come, whose place is computed.

    Attributes:
        place: Where its indices are known.
    """

    place: Scope | None = None


def declare_line(kernel: KernelWriter, elements: int | None = None) -> str:
    """Declare how many elements one request is for, or a block has; return the constant's name."""
    elements = choices.LINE if elements is None else elements
    meaning = "asked for" if elements == choices.LINE else "taken"
    kernel.tunables[LINE] = (
        f"constexpr int64_t {LINE} = {elements}; // elements {meaning} at a time"
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
        known = request.place if isinstance(request, NextRow) else None
        place = Scope(scope.kernel, known or scope)
        place.axes.update(first)
        moved = {axis: Expr.of(0) for axis, text in first.items() if text == "0"}
        if request.axis is not None:
            own = moved.get(request.axis, Expr.of(request.axis))
            moved[request.axis] = own + request.turns
        helper = "prefetch_to_write" if request.writes else "prefetch"
        helper = "prefetch_to_second" if request.far and not request.writes else helper
        scope.kernel.use(helper)
        index = tuple(e.substitute(moved) for e in request.index)
        element = place.element(request.buffer, index)
        writer.line(f"{helper}<{count}>(&{element});")


def find_next_row(
    kernel: KernelWriter, scope: Scope, row: Scope, writer: Writer, loads: Sequence[Load]
) -> tuple[Request, ...]:
    """Write what finds out where the next row is, and return the requests for it.

    Args:
        kernel: One whose rows are reduced one after the other.
        scope: Around the loops over the rows.
        row: Inside of them.
        writer: Where to.
        loads: What to ask for.
    """
    *_, axis = kernel.body.axes
    kernel.use("at_most")
    later = Scope(kernel, scope)
    later.taken, later.axes = row.taken, dict(row.axes)
    now, extent = later.axes[axis], kernel.extent(axis)
    name = later.bind(axis, later.name(f"{axis.name}_next"))
    limit = str(int(extent) - 1) if extent.isdigit() else f"{extent} - 1"
    writer.line(f"const int64_t {name} = at_most({now} + 1, {limit});")
    payloads = indirect_nodes(tuple(expr for load in loads for expr in load.index))
    later.compute(kernel.closure(payloads, later.values), writer, named=payloads)
    return tuple(NextRow(load.buffer, load.index, writes=False, place=later) for load in loads)


__all__ = ["LINE", "declare_line", "find_next_row", "write_requests"]
