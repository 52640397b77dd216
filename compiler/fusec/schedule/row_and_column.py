"""Sums over the rows, taken by the kernel that goes over the rows anyway.

The gradients of a norm's weight and bias add up the rows of what the gradient of its input reads:
two kernels, one along the rows and one down the columns, that read everything twice.  Here the
kernel of the rows takes over what the other one adds up: it keeps a sum a column for each *piece*
of its rows (``Store.mode == "sum"``), and what is left of the other kernel adds up the pieces.  How
many rows a piece has depends on sizes alone, so results do not change from run to run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from fusec.ir.body import Body, Buffer, Store, axis_sizes
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, Reduce, const, load, reduce, source_line
from fusec.ir.program import Compute
from fusec.ir.shapes import contiguous_strides, flatten, product, unflatten
from fusec.ir.walk import free_axes, walk
from fusec.report import FusionDecision
from fusec.schedule import choices, choices_sums
from fusec.schedule.align import Refusal, merge
from fusec.schedule.fusion_groups import Groups, join_labels
from fusec.schedule.loops import arrange_loops
from fusec.schedule.one_hot import fold_one_hots
from fusec.schedule.overrides import FORBIDDEN, Overrides


@dataclass(frozen=True)
class Crossed:
    """Two computations as a kernel along the rows, and what remains to be done.

    Attributes:
        kernel: Goes over the rows; leaves ``parts``.
        rest: Adds up the parts.
        parts: A sum for each piece of the rows and each column.
    """

    kernel: Body
    rest: Body
    parts: tuple[Buffer, ...]


def cross_all(groups: Groups, overrides: Overrides, mutated: set[str]) -> list[FusionDecision]:
    """Let kernels of rows take over sums of columns wherever that saves memory traffic.

    Args:
        groups: The steps; changed.
        overrides: What somebody wants together or apart.
        mutated: Buffers that calls change in place.

    Returns:
        What was decided about each pair of a row kernel and a column kernel, the last word last.
    """
    decisions: list[FusionDecision] = []
    heap: list[tuple[int, int, int, int, int]] = []

    sums = {n for n, step in enumerate(groups.steps) if _adds_columns(step)}

    def push(pairs: Iterable[tuple[int, int]]) -> None:
        for rows, columns in {*pairs, *((b, a) for a, b in pairs)}:
            if columns in sums:
                saved = groups.saved_bytes(*groups.ordered(rows, columns))
                ages = (groups.version[rows], groups.version[columns])
                heapq.heappush(heap, (-saved, rows, columns, *ages))

    rests: dict[int, int] = {}  # row kernel to what adds up the sums of its pieces
    push({pair for n in sums for pair in groups.pairs_of(n)})
    while heap:
        negative, rows, columns, *ages = heapq.heappop(heap)
        if [groups.version[rows], groups.version[columns]] != ages:
            continue
        first, second = groups.compute(rows), groups.compute(columns)
        if first is None or second is None or not _may_cross(groups, rows, columns, mutated):
            continue
        wanted = overrides.wants(groups.members[rows], groups.members[columns])
        crossed = _cross(groups, rows, columns, -negative, wanted=wanted)
        if crossed is None:
            continue
        if overrides.forbids(groups.members[rows], groups.members[columns]):
            crossed = Refusal(FORBIDDEN)
        if isinstance(crossed, Refusal):
            decisions.append(
                FusionDecision(first.name, second.name, False, crossed.reason, -negative)
            )
            continue
        label = join_labels(first.label, second.label)
        kernel = replace(first, body=crossed.kernel, label=label)
        rest = replace(second, body=crossed.rest)
        moved = sum(2 * choices.buffer_bytes(part) for part in crossed.parts)
        saved = max(-negative - moved, 0)
        reason = f"sums of columns, taken as the rows pass, save {saved:,} bytes"
        decisions.append(FusionDecision(first.name, second.name, True, reason, saved))
        groups.cross(rows, columns, kernel, rest, crossed.parts)
        sums -= {rows, columns}
        joined = _join_rests(groups, rests.get(rows), columns)
        if joined is not None:
            decisions.append(joined)
        else:
            rests[rows] = columns
        push(groups.pairs_of(rows))  # which adds up no columns any more
    return decisions


def _join_rests(groups: Groups, first: int | None, second: int) -> FusionDecision | None:
    """Let one kernel add up all sums of the same pieces: both are small, so a launch counts."""
    if first is None or (groups.before[first] | groups.after[first]) >> second & 1:
        return None  # one needs the other's result
    one, other = groups.compute(first), groups.compute(second)
    assert one is not None
    assert other is not None
    merged = merge(one.body, other.body)
    if isinstance(merged, Refusal) or choices.too_large(merged) is not None:
        return None
    groups.replace(first, second, merged)
    reason = "both add up sums of the same pieces of rows"
    return FusionDecision(one.name, other.name, True, reason, 0)


def _adds_columns(step: object) -> bool:
    return isinstance(step, Compute) and column_sums(step.body) is not None


def column_sums(body: Body) -> tuple[Reduce, ...] | None:
    """Return the sums of a body that does nothing else with what it reads of each row, or None."""
    if body.updated() or body.products or body.scans() or body.sums or not body.reduce_axes:
        return None
    sums = tuple(node for node in body.nodes() if isinstance(node, Reduce))
    wide = {axis for axis in body.reduce_axes if axis.size != 1}
    for node in sums:
        if node.kind != "sum" or {axis for axis in node.axes if axis.size != 1} != wide:
            return None
        if node.dtype not in (torch.float32, torch.float64) or node.args[0].dtype != node.dtype:
            return None
        if any(isinstance(each, Reduce) for each in walk(node.args)):
            return None
    whole, _ = _stores(body)
    if any(isinstance(each, Reduce) for each in walk(tuple(store.value for store in whole))):
        return None
    return sums or None


def _stores(body: Body) -> tuple[list[Store], list[Store]]:
    """Return the stores of whole rows, and those of one value a column."""
    free, reduced = free_axes(body.computed), set(body.reduce_axes)
    whole: list[Store] = []
    single: list[Store] = []
    for store in body.stores:
        symbols = {s for e in store.index for s in e.symbols()}
        for symbol in list(symbols):
            if isinstance(symbol.payload, Node):
                symbols |= free[symbol.payload]
        elementwise = reduced & (symbols | free[store.value])
        (whole if elementwise else single).append(store)
    return whole, single


def _read_after(body: Body) -> set[str]:
    """Return the buffers that a body reads for what it stores once a column, its sums aside."""
    _, single = _stores(body)
    sums: dict[Node, Node] = {node: const(0, node.dtype) for node in column_sums(body) or ()}
    return set(replace(body, stores=tuple(single)).moved(body.axes, (), {}, sums.get).reads())


def _may_cross(groups: Groups, rows: int, columns: int, mutated: set[str]) -> bool:
    """Whether the second step may begin in the kernel of the first."""
    first, second = groups.compute(rows), groups.compute(columns)
    if first is None or second is None or groups.before[rows] >> columns & 1:
        return False  # it needs the sums
    body = first.body
    if not body.reduce_axes or not _turned_sizes(body, second.body):
        return False
    if body.updated() or body.products or body.scans() or not body.has_reduction:
        return False
    touched = set(first.reads() + first.writes() + second.reads() + second.writes())
    if mutated & touched or groups.blocked(rows, columns):
        return False
    if len({groups.buffers[name].device for name in touched}) > 1:
        return False
    loops = [*body.axes, *body.reduce_axes, *second.body.axes, *second.body.reduce_axes]
    return not any(axis.size == 0 for axis in loops) and column_sums(second.body) is not None


def _turned_sizes(first: Body, second: Body) -> bool:
    """Whether what is a row of one is a column of the other: the sizes say so, at least."""
    rows, columns = (product(axis_sizes(axes)) for axes in (first.axes, first.reduce_axes))
    down, across = (product(axis_sizes(axes)) for axes in (second.reduce_axes, second.axes))
    return rows == down and columns == across


def _cross(
    groups: Groups, rows: int, columns: int, saved: int, *, wanted: bool
) -> Crossed | Refusal | None:
    """Return the two kernels; why they do not pay; or None where one is not across the other."""
    first, second = groups.compute(rows), groups.compute(columns)
    assert first is not None
    assert second is not None
    sums = column_sums(second.body)
    assert sums is not None
    whole, _ = _stores(second.body)
    # As if every term of the sums were stored: a body without reductions, which `merge` knows.
    downward, across = second.body.reduce_axes, second.body.axes
    terms = {f"{second.name}_term{n}": node for n, node in enumerate(sums)}
    index = tuple(Expr.of(axis) for axis in (*downward, *across))
    shape = axis_sizes((*downward, *across))
    buffers: dict[str, Buffer] = dict(groups.buffers)
    for name, node in terms.items():
        buffers[name] = Buffer(name, shape, contiguous_strides(shape), node.dtype)
    listed = tuple(Store(name, index, node.args[0], asked=None) for name, node in terms.items())
    merged = merge(first.body, Body((*downward, *across), (), (*whole, *listed)), onto_first=True)
    if isinstance(merged, Refusal) or not _is_across(merged, terms, len(downward)):
        return None
    # What follows the sums stays outside this kernel: it reads what it needs of a row in memory.
    gone = groups.unread(rows, columns) - _read_after(second.body)
    merged = replace(merged, stores=tuple(s for s in merged.stores if s.buffer not in gone))
    arranged = one_row_axis(arrange_loops(fold_one_hots(merged), buffers))
    if not _is_across(arranged, terms, len(downward)) or not _along_rows(arranged, buffers):
        return None
    count = product(axis_sizes(arranged.axes))
    width = product(axis_sizes(across)).constant
    device = buffers[first.writes()[0]].device
    itemsizes = [node.dtype.itemsize for node in sums]
    given = first.body.rows_of_piece if first.body.sums else 0
    piece = choices_sums.rows_of_piece(
        count, width, itemsizes, saved, device, given=given, wanted=wanted
    )
    too_large = None if wanted else choices.too_large(arranged)
    if too_large is not None or isinstance(piece, str):
        return Refusal(too_large or str(piece))
    pieces = (count + piece - 1) // piece
    made = (pieces, Expr.of(width or 0))
    parts = {}
    for n, (name, node) in enumerate(terms.items()):
        own = _free_name(f"{second.name}_part{n}", groups.buffers)
        parts[name] = Buffer(own, made, contiguous_strides(made), node.dtype, device, "column_sums")
    (row,) = arranged.axes
    stores = tuple(
        store
        if store.buffer not in terms
        else Store(
            parts[store.buffer].name,
            (Expr.of(row) // piece, flatten(store.index[len(downward) :], axis_sizes(across))),
            store.value,
            "sum",
            terms[store.buffer].source,
        )
        for store in arranged.stores
    )
    kernel = replace(arranged, stores=stores)
    rest = _rest(second.body, {terms[name]: part for name, part in parts.items()}, pieces)
    return Crossed(kernel, rest, tuple(parts.values()))


def _is_across(body: Body, terms: Mapping[str, Node], rows: int) -> bool:
    """Whether each of ``terms`` has its rows along the outer loops, and its columns inside."""
    outer, inner = set(body.axes), set(body.reduce_axes)
    for store in body.stores:
        if store.buffer in terms:
            downward = {s for e in store.index[:rows] for s in e.symbols()}
            across = {s for e in store.index[rows:] for s in e.symbols()}
            if not ({s for s in downward if s.kind == "axis"} <= outer and across <= inner):
                return False
    return bool(inner)


def one_row_axis(body: Body) -> Body:
    """Return the body with one outer loop, whose positions count the rows."""
    if len(body.axes) == 1:
        return body
    sizes = axis_sizes(body.axes)
    row = Symbol("i0", "axis", product(sizes))
    mapping = dict(zip(body.axes, unflatten(Expr.of(row), sizes), strict=True))
    return body.moved((row,), body.reduce_axes, mapping)


def _along_rows(body: Body, buffers: Mapping[str, Buffer]) -> bool:
    """Whether memory runs along the rows, for more bytes than it does down the columns."""
    last = body.reduce_axes[-1]
    more_along = 0
    for node in body.loads():
        buffer = buffers[node.buffer]
        offset = buffer.offset(node.index)
        size = choices.buffer_bytes(buffer)
        if offset.is_affine_in(last) and offset.coefficient(last) == 1:
            more_along += size
        elif last in offset.symbols():
            more_along -= size
    return more_along > 0


def _rest(body: Body, parts: Mapping[Node, Buffer], pieces: Expr) -> Body:
    """Return what remains of a body: its sums are those of the pieces' sums."""
    axis = Symbol("r0", "axis", pieces)
    place = flatten([Expr.of(a) for a in body.axes], axis_sizes(body.axes))
    sums: dict[Node, Node] = {}
    for node, part in parts.items():
        with source_line(node.source):
            value = load(part.name, (Expr.of(axis), place), part.dtype)
            sums[node] = reduce("sum", value, (axis,), part.dtype)
    _, single = _stores(body)
    return replace(body, stores=tuple(single)).moved(body.axes, (axis,), {}, sums.get)


def _free_name(name: str, buffers: Mapping[str, Buffer]) -> str:
    while name in buffers:
        name += "_"
    return name


__all__ = ["Crossed", "column_sums", "cross_all", "one_row_axis"]
