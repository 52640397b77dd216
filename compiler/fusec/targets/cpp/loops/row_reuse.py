"""Rows of values that several rows of the result share, computed when they change.

Enlarging an image reads each of its rows for several of the result, and interpolates along it each
time: what a row of the result needs depends on its own position only by way of the source row.
Such values go into an array with the source row's number beside it; the next row of the result
finds them there, unless its source row is another one.  Where the lower of two source rows becomes
the upper one further down, its values are copied from one array into the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.ir.body import Body, Store, axis_sizes
from fusec.ir.index import Expr, Symbol, product
from fusec.ir.interpret import run_body
from fusec.ir.node import Load, Node, Op, recording, rewrite
from fusec.ir.ops import CHECK_PREFIX
from fusec.targets.cpp.loops.loop_heads import head
from fusec.targets.cpp.memory.loop_tables import Tables, bind_tables
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.text.dtypes import C_TYPES, ELEMENT_TYPES
from fusec.targets.cpp.text.reductions import simd
from fusec.targets.cpp.text.scope import Kernel, Scope
from fusec.targets.cpp.text.writer import Writer


@dataclass(frozen=True)
class Repeated:
    """Values of a row that stay what they are while ``key`` does.

    Attributes:
        key: An index, computed from the position in the second innermost loop alone.
        nodes: The values.
    """

    key: Node
    nodes: tuple[Node, ...]


def repeated_rows(kernel: Kernel, tables: Tables) -> list[Repeated]:
    """Return what rows share; empty where the loops are too few, or it would not pay.

    Args:
        kernel: One with loops outside of the two innermost, which threads share.
        tables: What is known of all rows.
    """
    if len(kernel.body.axes) < 3:
        return []
    *outer, middle, last = kernel.body.axes
    units = product(axis_sizes(tuple(outer))).constant
    size = last.size.constant if last.size is not None else 1
    if size is None or (units is not None and units < choices.UNITS):
        return []
    keys = [node for node in _indices(kernel) if kernel.free[node] == {middle}]
    keys = [key for key in keys if _seldom_changes(kernel, key, middle)]
    if not keys:
        return []
    sources = _sources(kernel, keys, middle)
    stored = {store.value for store in kernel.body.stores}
    found = []
    for key in keys:
        own = {n for n in kernel.nodes if sources[n] == {key} and last in kernel.free[n]}
        ends = [
            node
            for node in own
            if node not in tables
            and node.dtype in C_TYPES
            and (node in stored or any(user not in own for user in kernel.users.get(node, [])))
        ]
        needed = kernel.closure(ends, tables)
        gathers = [node for node in needed if isinstance(node, Load) and node in own]
        checks = [n for n in needed if isinstance(n, Op) and n.name.startswith(CHECK_PREFIX)]
        if len(gathers) < 2 * len(ends) or any(last in kernel.free[check] for check in checks):
            continue
        found.append(Repeated(key, tuple(node for node in kernel.nodes if node in set(ends))))
    room = sum(size * node.dtype.itemsize for each in found for node in each.nodes)
    return found if room <= choices.REPEATED_BYTES else []


def declare_repeated(scope: Scope, writer: Writer, rows: Sequence[Repeated]) -> dict[Node, str]:
    """Write the arrays, and which row is in them; return the names, of keys and of values."""
    last = scope.kernel.body.axes[-1]
    names = {}
    for each in rows:
        names[each.key] = scope.name("row_held")
        writer.line(f"int64_t {names[each.key]} = INT64_MIN; // none yet", each.key.source)
        for node in each.nodes:
            names[node] = scope.name(f"{scope.word(node).removesuffix('_val')}_row")
            kind, extent = ELEMENT_TYPES[node.dtype], scope.kernel.extent(last)
            writer.line(f"alignas(64) {kind} {names[node]}[{extent}];", node.source)
    return names


def fill_repeated(
    scope: Scope,
    writer: Writer,
    rows: Sequence[Repeated],
    names: Mapping[Node, str],
    tables: Tables,
) -> None:
    """Write what computes the rows anew where they change.

    Args:
        scope: The second innermost loop's, in which the keys are known.
        writer: Where to.
        rows: From ``repeated_rows``.
        names: From ``declare_repeated``.
        tables: What is known of all rows.
    """
    kernel, last = scope.kernel, scope.kernel.body.axes[-1]
    for number, each in enumerate(rows):
        name, key = names[each.key], scope.values[each.key].text
        other = next((row for row in rows[number + 1 :] if are_equal(each, row)), None)
        with writer.block(f"if ({name} != {key})"):
            writer.line(f"{name} = {key};", each.key.source)
            with ExitStack() as stack:
                if other is not None:
                    with writer.block(f"if ({names[other.key]} == {key})"):
                        simd(kernel, (), writer)
                        copied = Scope(kernel, scope)
                        with writer.block(head(copied, last)):
                            place = f"[{copied.axes[last]}]"
                            for node, same in zip(each.nodes, other.nodes, strict=True):
                                text = f"{names[node]}{place} = {names[same]}{place};"
                                writer.line(text, node.source)
                    stack.enter_context(writer.block("else"))
                simd(kernel, (), writer, scalar=True)
                inner = Scope(kernel, scope)
                with writer.block(head(inner, last)):
                    bind_tables(inner, last, tables)
                    needed = kernel.closure(each.nodes, {*inner.values})
                    inner.compute(needed, writer, named=each.nodes)
                    for node in each.nodes:
                        text = inner.values[node].text
                        writer.line(f"{names[node]}[{inner.axes[last]}] = {text};", node.source)


def are_equal(one: Repeated, other: Repeated) -> bool:
    """Whether the values of both are the same wherever their keys are."""
    with recording():  # interns nodes, so that what is equal is the same
        (key,), (instead,) = rewrite((one.key,), {}), rewrite((other.key,), {})
        moved = rewrite(one.nodes, {}, lambda node: instead if node is key else None)
        return moved == rewrite(other.nodes, {})


def _indices(kernel: Kernel) -> list[Node]:
    """Return the computed indices of loads, without what is loaded itself."""
    payloads = {
        symbol.payload: None
        for node in kernel.nodes
        if isinstance(node, Load)
        for expr in node.index
        for symbol in expr.symbols()
        if isinstance(symbol.payload, Node)
    }
    return [
        node
        for node in payloads
        if node.dtype == torch.int64
        and not any(isinstance(each, Load) for each in kernel.closure([node], ()))
    ]


def _seldom_changes(kernel: Kernel, key: Node, middle: Symbol) -> bool:
    """Whether the rows that a key has the same value for come one after the other."""
    extent = middle.size.constant if middle.size is not None else 1
    if extent is None or not 1 < extent <= choices.REPEATED_ROWS:
        return False
    # an index that is out of range is reported by the kernel, not here
    nodes = kernel.closure([key], ())
    if any(symbol.kind == "size" for n in nodes for e in n.exprs() for symbol in e.symbols()):
        return False
    body = Body((middle,), (), (Store("values", (Expr.of(middle),), key),))
    with unset_fake_temporarily():  # the graph's own tensors are fake while it is compiled
        values = torch.empty(extent, dtype=torch.int64)
        try:
            run_body(body, {"values": values})
        except IndexError:
            return False
        changes = 1 + int((values[1:] != values[:-1]).sum())
    return changes <= choices.REPEATED_SHARE * extent


def _sources(
    kernel: Kernel, keys: Sequence[Node], middle: Symbol
) -> dict[Node, frozenset[Node | None]]:
    """Return by which keys each node depends on ``middle``; None among them: in another way."""
    found: dict[Node, frozenset[Node | None]] = {}
    for node in kernel.nodes:
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


__all__ = ["Repeated", "declare_repeated", "fill_repeated", "repeated_rows"]
