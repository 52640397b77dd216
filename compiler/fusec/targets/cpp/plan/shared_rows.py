"""What several rows have in common, computed once for all of them, a block at a time.

An image's channels are all read at the places that a grid names: as the rows of a result come one
after the other, each would compute these anew.  So the loop over such rows goes inside of one over
blocks of a row, and what does not depend on it goes into tables of a block, in the first-level
cache.
"""

from __future__ import annotations

from fusec.ir.body import Body
from fusec.ir.checks import is_check
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Const, IndexValue, Load, Node
from fusec.targets.cpp.dtypes import C_TYPES
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, cost, extent, points
from fusec.targets.cpp.plan.loop_tables import conversions, may_be_missing


def rows_in_blocks(facts: Facts) -> Body | None:
    """Return a body whose second innermost loop is over rows that share much; None if none do."""
    body = facts.body
    if len(body.axes) < 2 or may_be_missing(facts):
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
    work += conversions(shared) * choices.CONVERSION_COST
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


__all__ = ["rows_in_blocks", "shared_nodes"]
