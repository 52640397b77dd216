"""Values that depend on the place along one axis alone: known before anything runs.

They are computed for every position of the axis, so that it does not matter which formula they
were written by: ``(i + 0.5) * 0.5 - 0.5``, rounded down and kept in bounds, turns out to be a
place, and what is left of it a constant.
"""

from __future__ import annotations

import torch

from fusec.ir import ops
from fusec.ir.checks import is_check
from fusec.ir.index import Expr, Symbol
from fusec.ir.interpret import Along
from fusec.ir.node import Const, IndexValue, Load, Node, Op, Reduce, Scan, const, index_value

LONGEST = 1 << 14  # positions that are computed while a kernel is made


class KnownValues:
    """Writes values that depend on the place along one axis alone as what they turn out to be."""

    def __init__(self) -> None:
        self._axes: dict[Node, Symbol | bool | None] = {}
        self._simplified: dict[Node, Node | None] = {}
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

    def simplified(self, node: Node) -> Node | None:
        """Return a simpler node of equal value at every position; None where there is none."""
        if isinstance(node, Const | IndexValue):
            return None
        if node not in self._simplified:
            axis = self.axis_of(node)
            found = simplest(node, self.table(node, axis), axis) if axis is not None else None
            self._simplified[node] = found
        return self._simplified[node]


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


__all__ = ["KnownValues", "line_of"]
