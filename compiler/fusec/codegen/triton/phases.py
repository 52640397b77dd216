"""Results that lie between the elements of a tensor: several of them in one step of the loops.

An image that is enlarged twice has two results for each element along a row, and four of them are
made of the same nine neighbors.  One by one, each computes its places and shares in floating point
and loads four elements (1024 images of 128 x 128 halves: 84 us, bicubic 150 for a quarter of them;
with phases 51 and 40).  Here the axes are cut into *phases*:
``j`` becomes ``2 * j + 0`` and ``2 * j + 1`` in a loop of half the length, each with a store of
its own.  Within a phase a place is ``j`` plus a constant, but for the ends of a row, and a share is
a constant: both are found by computing them for every position while the kernel is written, so that
it does not matter which formula they were computed by.  Loads and what comes of them are shared by
the phases because equal nodes are one.

Several rows go together for the same reason (unroll and jam: Callahan, Carr and Kennedy,
"Improving register allocation for subscripted variables", 1990): two rows of results need three of
the image, eight need six.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product as combinations

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.codegen.triton.choice import SMS, known, power_of_two
from fusec.codegen.triton.names import is_check
from fusec.codegen.triton.tiling import by_stride
from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol, product
from fusec.ir.interpret import Along
from fusec.ir.node import (
    Const,
    IndexValue,
    Load,
    Node,
    Op,
    Reduce,
    Scan,
    const,
    index_value,
    indirect_nodes,
)

LONGEST = 1 << 14  # positions that are computed while a kernel is written
PHASES = (1, 2, 4)
TOGETHER = (4, 2, 1)  # rows of phases in one step
MOST_STORES = 32
LEAST_PROGRAMS = 8 * SMS


def cut_into_phases(body: Body, buffers: Mapping[str, Buffer]) -> Body:
    """Return a body with as many stores a step as there are phases; ``body`` where none are found.

    Args:
        body: What to compute, over axes of known sizes.
        buffers: By name.
    """
    if body.reduce_axes or any(store.mode != "set" for store in body.stores):
        return body
    with unset_fake_temporarily():  # graphs are compiled while torch traces with fake tensors
        return found_phases(body, buffers)


def found_phases(body: Body, buffers: Mapping[str, Buffer]) -> Body:
    """Return what ``cut_into_phases`` does, of a body that stores elements and no more."""
    places = list(dict.fromkeys(n for load in body.loads() for n in indirect_nodes(load.index)))
    settler = Settler()
    axes = {place: settler.axis_of(place) for place in places}
    if not places or None in axes.values():
        return body
    counts: dict[Symbol, int] = {}
    for axis in dict.fromkeys(axes.values()):
        assert axis is not None
        tables = [settler.table(place, axis) for place, along in axes.items() if along is axis]
        count = next((c for c in PHASES if all(are_places(t, c) for t in tables)), 0)
        if not count:
            return body
        counts[axis] = count
    order = [a for a in by_stride(body, buffers, body.axes) if a.size != 1]
    inner = order[-1]
    if counts.get(inner, 0) not in (1, 2) or not fills_tile(size_of(inner) // counts[inner]):
        return body
    row = order[-2] if len(order) > 1 else None
    if row is not None and counts.get(row, 1) > 1:
        points = known(product(a.size for a in body.axes if a.size is not None))
        phases = math.prod(counts.values())
        for rows in TOGETHER:
            if rows == 1 or (
                size_of(row) % (4 * counts[row] * rows) == 0
                and points // (phases * rows) >= LEAST_PROGRAMS * 128
                and phases * rows * len(body.stores) <= MOST_STORES
            ):
                counts[row] *= rows
                break
    return cut(body, counts, settler)


def size_of(axis: Symbol) -> int:
    """Return the extent of an axis of known size."""
    assert axis.size is not None
    assert axis.size.constant is not None
    return axis.size.constant


def fills_tile(columns: int) -> bool:
    """Whether rows of so many columns make tiles of which at most a quarter is idle."""
    across = min(power_of_two(columns), 128)
    return columns >= 16 and -(-columns // across) * across * 3 <= columns * 4


def cut(body: Body, counts: Mapping[Symbol, int], settler: Settler) -> Body:
    """Return ``body`` with each axis of ``counts`` cut into so many phases."""
    axes = {a: Symbol(a.name, "axis", Expr.of(size_of(a) // counts[a])) for a in counts}
    moved = tuple(axes.get(axis, axis) for axis in body.axes)
    stores: list[Store] = []
    for phases in combinations(*(range(count) for count in counts.values())):
        mapping = {
            axis: counts[axis] * Expr.of(axes[axis]) + phase
            for axis, phase in zip(counts, phases, strict=True)
        }
        stores += body.moved(moved, (), mapping, settler.settle).stores
    return Body(moved, (), tuple(stores))


class Settler:
    """Writes values that depend on the place along one axis alone as what they turn out to be."""

    def __init__(self) -> None:
        self._axes: dict[Node, Symbol | bool | None] = {}
        self._settled: dict[Node, Node | None] = {}
        self._tables: dict[Symbol, Along] = {}

    def axis_of(self, node: Node) -> Symbol | None:
        """Return the axis, of known size, that ``node`` is a function of; None if it is not."""
        found = self._axis(node)
        return found if isinstance(found, Symbol) else None

    def _axis(self, node: Node) -> Symbol | bool | None:
        """Return the axis; True for a constant, None where something else matters as well."""
        if node not in self._axes:
            found: Symbol | bool | None = True
            symbols = {s for e in node.exprs() for s in e.symbols() if s.kind != "indirect"}
            if isinstance(node, Load | Reduce | Scan) or is_check(node) or _is_random(node):
                found = None
            elif symbols:
                (symbol, *more) = symbols
                found = symbol if not more and _is_short(symbol) else None
            for arg in node.args:
                found = _both(found, self._axis(arg))
            self._axes[node] = found
        return self._axes[node]

    def table(self, node: Node, axis: Symbol) -> torch.Tensor:
        """Return the values of a node for every position of the axis that it depends on."""
        if axis not in self._tables:
            self._tables[axis] = Along(axis)
        return self._tables[axis](node)

    def settle(self, node: Node) -> Node | None:
        """Return a simpler node of equal value at every position; None where there is none."""
        if isinstance(node, Const | IndexValue):
            return None
        if node not in self._settled:
            axis = self.axis_of(node)
            found = simplest(node, self.table(node, axis), axis) if axis is not None else None
            self._settled[node] = found
        return self._settled[node]


def _is_short(symbol: Symbol) -> bool:
    size = symbol.size.constant if symbol.size is not None else None
    return symbol.kind == "axis" and size is not None and 0 < size <= LONGEST


def _is_random(node: Node) -> bool:
    return isinstance(node, Op) and node.name in (ops.RANDOM_BITS, ops.RANDOM_WORD)


def _both(a: Symbol | bool | None, b: Symbol | bool | None) -> Symbol | bool | None:
    if a is True or b is True:
        return b if a is True else a
    return a if a is b else None


def simplest(node: Node, table: torch.Tensor, axis: Symbol) -> Node | None:
    """Return a constant, a constant but for one end of the axis, or a place; None otherwise."""
    first, last = table[:1], table[-1:]
    at = index_value(Expr.of(axis), torch.int64)

    def number(value: torch.Tensor) -> Node:
        return const(value.item(), node.dtype)

    if _same(table, first):
        return number(first)
    if node.dtype.is_floating_point and len(table) > 2:
        if _same(table[1:], last):
            at_first = ops.binary("eq", at, const(0, torch.int64))
            return ops.where(at_first, number(first), number(last))
        if _same(table[:-1], first):
            at_last = ops.binary("eq", at, const(len(table) - 1, torch.int64))
            return ops.where(at_last, number(last), number(first))
    if node.dtype in (torch.int32, torch.int64):
        return place_of(table, axis, node.dtype)
    return None


def _same(table: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether all have the bits of ``value``; a NaN has its own."""
    return bool(((table == value) & (torch.signbit(table) == torch.signbit(value))).all())


def are_places(table: torch.Tensor, phases: int) -> bool:
    """Whether each phase of a table is a place: ``a * j + b`` within bounds.

    Several phases are worth it only where they share elements: where a place moves by less than
    one a result.
    """
    if len(table) % phases or len(table) < 4 * phases:
        return False
    lines = [line_of(phase) for phase in table.reshape(-1, phases).unbind(1)]
    return all(line is not None and (phases == 1 or abs(line[0]) < phases) for line in lines)


def line_of(table: torch.Tensor) -> tuple[int, int, int, int] | None:
    """Return (a, b, low, high) where a table is ``min(max(a * j + b, low), high)``."""
    count = len(table)
    if count < 3:
        return None
    values = table.to(torch.int64)
    middle = count // 2
    step = int(values[middle] - values[middle - 1])
    start = int(values[middle]) - step * middle
    low, high = int(values.min()), int(values.max())
    line = torch.arange(count) * step + start
    return (step, start, low, high) if bool((line.clamp(low, high) == values).all()) else None


def place_of(table: torch.Tensor, axis: Symbol, dtype: torch.dtype) -> Node | None:
    """Return the node of a place, kept in bounds only where it would leave them."""
    found = line_of(table)
    if found is None:
        return None
    step, start, low, high = found
    ends = (start, start + step * (len(table) - 1))
    place = index_value(step * Expr.of(axis) + start, dtype)
    if min(ends) < low:
        place = ops.binary("maximum", place, const(low, dtype))
    if max(ends) > high:
        place = ops.binary("minimum", place, const(high, dtype))
    return place


__all__ = ["Settler", "cut_into_phases", "line_of"]
