"""Loop structure: drop the loops that run once, order by stride, join what is one in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import IndexValue, Load, Reduce
from fusec.schedule import choices


def arrange_loops(body: Body, buffers: Mapping[str, Buffer]) -> Body:
    """Return an equal body with as few loops as memory allows, slowest first."""
    body = _drop_unit_loops(body)
    body = _order_by_stride(body, buffers)
    return _join_loops(body, buffers)


def _drop_unit_loops(body: Body) -> Body:
    units = {a: Expr.of(0) for a in body.axes + body.reduce_axes if a.size == 1}
    if not units:
        return body
    axes = tuple(a for a in body.axes if a not in units)
    reduce_axes = tuple(a for a in body.reduce_axes if a not in units)
    if body.reduce_axes and not reduce_axes:
        # a reduction over one element: keep a loop for it to run over
        kept, *_ = body.reduce_axes
        reduce_axes = (kept,)
        del units[kept]
    return body.moved(axes, reduce_axes, units)


def _accesses(body: Body, buffers: Mapping[str, Buffer]) -> list[tuple[Expr, int]]:
    """Return every access as (element offset, bytes of the buffer)."""
    found: list[tuple[Expr, int]] = []
    for store in body.stores:
        buffer = buffers[store.buffer]
        found.append((buffer.offset(store.index), choices.buffer_bytes(buffer)))
    for load in body.loads():
        buffer = buffers[load.buffer]
        found.append((buffer.offset(load.index), choices.buffer_bytes(buffer)))
    return found


def _stride_of(offset: Expr, axis: Symbol) -> int | None:
    """Return the step in memory that one step of ``axis`` makes; None where it is irregular."""
    if axis not in offset.symbols():
        return 0
    if not offset.is_affine_in(axis):
        return None
    return choices.estimate(offset.coefficient(axis))


def _order_by_stride(body: Body, buffers: Mapping[str, Buffer]) -> Body:
    """Order the loops so that the innermost one steps through memory in small steps.

    Every access votes with its bytes; what is written counts for more, since a scattered write
    costs more than a scattered read.  The other loops follow the access that the innermost one
    suits best, so that they can be joined where that buffer is gapless.
    """
    written = len(body.stores)
    names = body.reads() + body.writes()
    on_cpu = all(buffers[name].device.type == "cpu" for name in names)
    beyond, writes = (
        (choices.BEYOND_A_LINE, choices.WRITES_ON_CPU) if on_cpu else (1.0, choices.WRITES)
    )
    weighted = [
        (offset, size * (writes if n < written else 1))
        for n, (offset, size) in enumerate(_accesses(body, buffers))
    ]
    axes = _ordered(body.axes, weighted, beyond)
    reduce_axes = body.reduce_axes
    if not any(isinstance(n, Reduce) and n.kind.startswith("arg") for n in body.nodes()):
        reduce_axes = _ordered(reduce_axes, weighted, beyond)
    return replace(body, axes=axes, reduce_axes=reduce_axes)


def _ordered(
    axes: tuple[Symbol, ...], weighted: Sequence[tuple[Expr, int]], beyond: float
) -> tuple[Symbol, ...]:
    if len(axes) < 2:
        return axes
    scores = {axis: _score(axis, weighted, beyond) for axis in axes}
    if beyond < 1.0:
        scores = {axis: score + _too_short(axis) for axis, score in scores.items()}
    innermost = min(reversed(axes), key=scores.__getitem__)
    along = [
        (size, -abs(stride), offset)
        for offset, size in weighted
        if (stride := _stride_of(offset, innermost))
    ]
    leading = max(along, key=lambda each: each[:2], default=None)

    def place(axis: Symbol) -> tuple[float, float]:
        stride = _stride_of(leading[2], axis) if leading is not None else None
        if axis is innermost:
            return (-1.0, -1.0)
        return (float(abs(stride)) if stride else float(1 << 50), scores[axis])

    return tuple(sorted(axes, key=place, reverse=True))


def _too_short(axis: Symbol) -> float:
    """Return what a loop on a CPU loses where it has not even a vector's elements, as a score."""
    return (
        choices.SHORT_LOOP
        if axis.size is not None and choices.estimate(axis.size) < choices.VECTOR
        else 0.0
    )


def _score(axis: Symbol, weighted: Sequence[tuple[Expr, int]], beyond: float) -> float:
    """Return how far apart in memory neighbors along ``axis`` are, over all accesses.

    Strides count by their logarithm, on a GPU throughout: a step of 1 against 64 matters as much
    as 64 against 4096.  On a CPU only ``beyond`` of what is more than a cache line counts: every
    element lies in another line by then, and is read by lines where tiles are turned over.
    """
    total = weight = 0.0
    for offset, size in weighted:
        stride = _stride_of(offset, axis)
        if stride == 0:
            continue
        distance = 40.0 if stride is None else math.log2(abs(stride))
        within_line = min(distance, choices.LINE)
        total += size * (within_line + beyond * (distance - within_line))
        weight += size
    return total / weight if weight else 50.0


def _join_loops(body: Body, buffers: Mapping[str, Buffer]) -> Body:
    """Join neighboring loops that every access steps through as if they were one."""
    while pair := next(
        (
            (outer, inner)
            for group in (body.axes, body.reduce_axes)
            for outer, inner in pairwise(group)
            if _joinable(body, buffers, outer, inner)
        ),
        None,
    ):
        body = _joined(body, *pair)
    return body


def _joinable(body: Body, buffers: Mapping[str, Buffer], outer: Symbol, inner: Symbol) -> bool:
    assert inner.size is not None
    if inner.size == 0:
        return False
    exprs = [buffers[s.buffer].offset(s.index) for s in body.stores]
    for node in body.nodes():
        if isinstance(node, Load):
            exprs.append(buffers[node.buffer].offset(node.index))
        elif isinstance(node, IndexValue):
            exprs.append(node.expr)
        elif isinstance(node, Reduce) and (outer in node.axes) != (inner in node.axes):
            return False
    for expr in exprs:
        if not (expr.is_affine_in(outer) and expr.is_affine_in(inner)):
            return False
        if expr.coefficient(outer) != expr.coefficient(inner) * inner.size:
            return False
    return True


def _joined(body: Body, outer: Symbol, inner: Symbol) -> Body:
    assert outer.size is not None
    assert inner.size is not None
    both = Symbol(outer.name, "axis", outer.size * inner.size)
    place = Expr.of(both)
    mapping = {outer: place // inner.size, inner: place % inner.size}

    def replace(axes: tuple[Symbol, ...]) -> tuple[Symbol, ...]:
        return tuple(both if a is outer else a for a in axes if a is not inner)

    return body.moved(replace(body.axes), replace(body.reduce_axes), mapping)
