"""What depends on the innermost loop alone, computed once into a table rather than in every row.

The source positions and weights of an interpolation, a rotary embedding's angles, a window: each
row of the result would compute the same ones again.

An image's channels are all read at the places that a grid names, which is other ones for the next
image: several rows in a row have them in common.  So the loop over such rows goes inside of one
over blocks of a row, and what does not depend on it goes into tables of a block, in the first-level
cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusec.ir.body import Body
from fusec.ir.bounds import bounds
from fusec.ir.checks import is_check
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Const, IndexValue, Load, Node
from fusec.targets.cpp.dtypes import C_TYPES
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, cost, extent, may_be_empty, points


def tabled_nodes(facts: Facts) -> list[Node]:
    """Return the values to keep in tables along the last axis; none where that would not pay."""
    *outer, last = facts.body.axes
    size = extent(last)
    rows = points(outer)
    if not outer or size is None or not 0 < size <= choices.TABLE_LENGTH:
        return []
    if (rows is not None and rows < choices.TABLE_ROWS) or _may_be_missing(facts):
        return []
    own = [node for node in facts.nodes if facts.free[node] == {last}]
    converted = _conversions(own)
    checks = sum(is_check(node) for node in own)
    extra = converted * choices.CONVERSION_COST + checks * choices.CHECK_COST
    extra += choices.DIVISION_COST * sum(_divides(node) for node in own)
    if cost(own) + extra < choices.TABLE_COST:
        return []
    inside = set(own)
    stored = {store.value for store in facts.body.stores}
    kept = [
        node
        for node in own
        if not isinstance(node, Const | IndexValue | Load)
        and (node in stored or any(u not in inside for u in facts.users.get(node, [])))
    ]
    room = choices.SCRATCH_BYTES - sum(size * node.dtype.itemsize for node in kept)
    return kept if room >= 0 and all(node.dtype in C_TYPES for node in kept) else []


def _divides(node: Node) -> bool:
    """Whether a value is a position that is found by division; a power of two is a shift."""
    if not isinstance(node, IndexValue):
        return False
    divisions = [atom for atom in node.expr.atoms() if not isinstance(atom, Symbol)]
    divisors = [division.divisor.constant for division in divisions]
    return any(divisor is None or divisor & (divisor - 1) for divisor in divisors)


def _conversions(nodes: Sequence[Node]) -> int:
    """Return how many positions are converted from a number, or to one."""
    return sum(isinstance(node, Cast) and _is_position(node) for node in nodes)


def _is_position(node: Cast) -> bool:
    """Whether a conversion is from an integer or to one, rather than of a half."""
    floats = (node.dtype.is_floating_point, node.args[0].dtype.is_floating_point)
    return not node.bitcast and floats[0] != floats[1]


def short_indices(facts: Facts) -> frozenset[Node]:
    """Return the computed indices that 32 bits hold: twice as many of them are a vector."""
    symbols = {
        symbol
        for node in facts.nodes
        if isinstance(node, Load)
        for expr in node.index
        for symbol in expr.symbols()
        if isinstance(symbol.payload, Node) and symbol.payload.dtype == torch.int64
    }
    wide = {symbol.payload for symbol in symbols if not _is_short(symbol)}
    found = {symbol.payload for symbol in symbols} - wide
    return frozenset(node for node in found if isinstance(node, Node))


def _is_short(symbol: Symbol) -> bool:
    """Whether the value of a computed index is one of 32 bits: by its check, or by its bounds."""
    node = symbol.payload
    assert isinstance(node, Node)
    if is_check(node):
        size = symbol.size.constant if symbol.size is not None else None
        return size is not None and size < 1 << 31
    return _fits(node)


def is_wide_mark(node: Node) -> bool:
    """Whether a condition in a table is as long as the numbers that it chooses from."""
    return node.dtype == torch.bool and choices.wide_marks()


def is_short_position(node: Cast) -> bool:
    """Whether a number becomes a position that 32 bits hold: AVX2 converts to no others."""
    (number,) = node.args
    whole = node.dtype == torch.int64 and not node.bitcast
    return whole and number.dtype in (torch.float32, torch.float64) and _fits(number)


def _fits(node: Node) -> bool:
    known = bounds(node)
    return known is not None and known[0] >= -(1 << 31) and known[1] < 1 << 31


def _may_be_missing(facts: Facts) -> bool:
    """Whether a checked index may have no valid value: that is then tested at each load."""
    exprs = [e for load in facts.body.loads() for e in load.index]
    return any(s.kind == "indirect" and may_be_empty(s) for e in exprs for s in e.symbols())


def rows_in_blocks(facts: Facts) -> Body | None:
    """Return a body whose second innermost loop is over rows that share much; None if none do."""
    body = facts.body
    if len(body.axes) < 2 or _may_be_missing(facts):
        return None
    *outer, row, last = body.axes
    size, rows = extent(last), extent(row)
    if not size or rows is None or rows < choices.SHARED_ROWS:
        return None
    length = _block(size)
    others = points(outer)
    if length is None or (others or choices.UNITS) * (size // length) < choices.UNITS:
        return None
    shared = _shared(facts, row, last)
    kept = shared_nodes(facts)
    work = cost(shared) + sum(map(is_check, shared)) * choices.CHECK_COST
    work += _conversions(shared) * choices.CONVERSION_COST
    if not kept or work < choices.SHARED_COST * len(kept):
        return None
    if sum(length * node.dtype.itemsize for node in kept) > choices.SHARED_BYTES:
        return None
    if length == size:
        return body
    block, inner = (Symbol(last.name, "axis", Expr.of(count)) for count in (size // length, length))
    place = Expr.of(block) * length + Expr.of(inner)
    return body.moved((*outer, block, row, inner), body.reduce_axes, {last: place})


def shared_nodes(facts: Facts) -> tuple[Node, ...]:
    """Return the values to keep: what else than rows share is computed from them."""
    *_, row, last = facts.body.axes
    shared = set(_shared(facts, row, last))
    stored = {store.value for store in facts.body.stores}
    kept = [
        node
        for node in facts.nodes
        if node in shared
        and not isinstance(node, Const | IndexValue | Load)
        and (
            node in stored
            or any(user not in shared for user in facts.users.get(node, []))
            or _is_place(facts, node, shared)
        )
    ]
    return tuple(kept) if all(node.dtype in C_TYPES for node in kept) else ()


def _shared(facts: Facts, row: Symbol, last: Symbol) -> list[Node]:
    return [n for n in facts.nodes if last in facts.free[n] and row not in facts.free[n]]


def _is_place(facts: Facts, node: Node, shared: set[Node]) -> bool:
    """Whether something that is not shared is read at a place that a node computes."""
    return any(
        symbol.payload is node
        for load in facts.nodes
        if isinstance(load, Load) and load not in shared
        for expr in load.index
        for symbol in expr.symbols()
    )


def _block(size: int) -> int | None:
    """Return the longest block of whole vectors that divides a row; the row, if it is short."""
    if size <= choices.SHARED_LENGTH:
        return size
    among = range(choices.SHARED_LENGTH, choices.LINE - 1, -16)
    return next((length for length in among if size % length == 0), None)


__all__ = [
    "is_short_position",
    "is_wide_mark",
    "rows_in_blocks",
    "shared_nodes",
    "short_indices",
    "tabled_nodes",
]
