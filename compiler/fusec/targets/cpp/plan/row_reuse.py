"""Rows of values that several rows of the result share, computed when they change.

Enlarging an image reads each of its rows for several of the result, and interpolates along it each
time: what a row of the result needs depends on its own position only by way of the source row.
Such values go into an array with the source row's number beside it; the next row of the result
finds them there, unless its source row is another one.  Where the lower of two source rows becomes
the upper one further down, its values are copied from one array into the other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.ir.body import Body, Store
from fusec.ir.checks import is_check
from fusec.ir.index import Expr, Symbol
from fusec.ir.interpret import run_body
from fusec.ir.node import Load, Node, recording
from fusec.ir.walk import rewrite
from fusec.targets.cpp.dtypes import C_TYPES
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, extent, points


@dataclass(frozen=True)
class Repeated:
    """Values of a row that stay what they are while ``key`` does.

    Attributes:
        key: An index, computed from the position in the second innermost loop alone.
        nodes: The values.
    """

    key: Node
    nodes: tuple[Node, ...]


def repeated_rows(facts: Facts, tables: Collection[Node]) -> list[Repeated]:
    """Return what rows share; empty where the loops are too few, or it would not pay.

    Args:
        facts: Of a kernel with loops outside of the two innermost, which threads share.
        tables: What is known of all rows.
    """
    if len(facts.body.axes) < 3:
        return []
    *outer, middle, last = facts.body.axes
    units, size = points(outer), extent(last)
    if size is None or (units is not None and units < choices.UNITS):
        return []
    keys = [node for node in _indices(facts) if facts.free[node] == {middle}]
    keys = [key for key in keys if _seldom_changes(facts, key, middle)]
    if not keys:
        return []
    sources = _sources(facts, keys, middle)
    stored = {store.value for store in facts.body.stores}
    found = []
    for key in keys:
        own = {n for n in facts.nodes if sources[n] == {key} and last in facts.free[n]}
        ends = [
            node
            for node in own
            if node not in tables
            and node.dtype in C_TYPES
            and (node in stored or any(user not in own for user in facts.users.get(node, [])))
        ]
        needed = facts.closure(ends, tables)
        gathers = [node for node in needed if isinstance(node, Load) and node in own]
        checks = [n for n in needed if is_check(n)]
        if len(gathers) < 2 * len(ends) or any(last in facts.free[check] for check in checks):
            continue
        found.append(Repeated(key, tuple(node for node in facts.nodes if node in set(ends))))
    room = sum(size * node.dtype.itemsize for each in found for node in each.nodes)
    return found if room <= choices.REPEATED_BYTES else []


def are_equal(one: Repeated, other: Repeated) -> bool:
    """Whether the values of both are the same wherever their keys are."""
    with recording():  # interns nodes, so that what is equal is the same
        (key,), (instead,) = rewrite((one.key,), {}), rewrite((other.key,), {})
        moved = rewrite(one.nodes, {}, lambda node: instead if node is key else None)
        return moved == rewrite(other.nodes, {})


def _indices(facts: Facts) -> list[Node]:
    """Return the computed indices of loads, without what is loaded itself."""
    payloads = {
        symbol.payload: None
        for node in facts.nodes
        if isinstance(node, Load)
        for expr in node.index
        for symbol in expr.symbols()
        if isinstance(symbol.payload, Node)
    }
    return [
        node
        for node in payloads
        if node.dtype == torch.int64
        and not any(isinstance(each, Load) for each in facts.closure([node], ()))
    ]


def _seldom_changes(facts: Facts, key: Node, middle: Symbol) -> bool:
    """Whether the rows that a key has the same value for come one after the other."""
    count = extent(middle)
    if count is None or not 1 < count <= choices.REPEATED_ROWS:
        return False
    # an index that is out of range is reported by the facts, not here
    nodes = facts.closure([key], ())
    if any(symbol.kind == "size" for n in nodes for e in n.exprs() for symbol in e.symbols()):
        return False
    body = Body((middle,), (), (Store("values", (Expr.of(middle),), key),))
    with unset_fake_temporarily():  # the graph's own tensors are fake while it is compiled
        values = torch.empty(count, dtype=torch.int64)
        try:
            run_body(body, {"values": values})
        except IndexError:
            return False
        changes = 1 + int((values[1:] != values[:-1]).sum())
    return changes <= choices.REPEATED_SHARE * count


def _sources(
    facts: Facts, keys: Sequence[Node], middle: Symbol
) -> dict[Node, frozenset[Node | None]]:
    """Return by which keys each node depends on ``middle``; None among them: in another way."""
    found: dict[Node, frozenset[Node | None]] = {}
    for node in facts.nodes:
        if node in keys:
            found[node] = frozenset({node})
            continue
        ways: set[Node | None] = set()
        for arg in node.args:
            ways |= found[arg]
        if any(middle in expr.symbols() for expr in node.exprs()):
            ways.add(None)
        found[node] = frozenset(ways)
    return found


__all__ = ["Repeated", "are_equal", "repeated_rows"]
