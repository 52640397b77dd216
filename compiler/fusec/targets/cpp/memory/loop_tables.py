"""What depends on the innermost loop alone, computed once into a table rather than in every row.

The source positions and weights of an interpolation, a rotary embedding's angles, a window: each
row of the result would compute the same ones again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fusec.ir.body import axis_sizes
from fusec.ir.bounds import bounds
from fusec.ir.index import Symbol, product
from fusec.ir.node import Const, IndexValue, Load, Node, Op
from fusec.ir.ops import CHECK_PREFIX
from fusec.targets.cpp.loops.loop_heads import cost, head
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.text.dtypes import C_TYPES, ELEMENT_TYPES
from fusec.targets.cpp.text.expressions import Expression, from_memory
from fusec.targets.cpp.text.scope import Kernel, Scope, may_be_empty
from fusec.targets.cpp.text.writer import Writer

Tables = Mapping[Node, str]


def tabled_nodes(kernel: Kernel) -> list[Node]:
    """Return the values to keep in tables along the last axis; none where that would not pay."""
    *outer, last = kernel.body.axes
    size = last.size.constant if last.size is not None else 1
    rows = product(axis_sizes(tuple(outer))).constant
    if not outer or size is None or not 0 < size <= choices.TABLE_LENGTH:
        return []
    if (rows is not None and rows < choices.TABLE_ROWS) or _may_be_empty(kernel):
        return []
    own = [node for node in kernel.nodes if kernel.free[node] == {last}]
    if cost(own) < choices.TABLE_COST:
        return []
    inside = set(own)
    stored = {store.value for store in kernel.body.stores}
    kept = [
        node
        for node in own
        if not isinstance(node, Const | IndexValue | Load)
        and (node in stored or any(u not in inside for u in kernel.users.get(node, [])))
    ]
    room = choices.SCRATCH_BYTES - sum(size * node.dtype.itemsize for node in kept)
    return kept if room >= 0 and all(node.dtype in C_TYPES for node in kept) else []


def write_tables(kernel: Kernel, scope: Scope, writer: Writer, kept: list[Node]) -> Tables:
    """Write the loop that fills the tables; return their names."""
    last = kernel.body.axes[-1]
    tables, narrow = {}, short_indices(kernel)
    for node in kept:
        name = scope.name(f"{_word(scope, node)}_table")
        kind = "int32_t" if node in narrow else ELEMENT_TYPES[node.dtype]
        writer.line(f"alignas(64) {kind} {name}[{kernel.extent(last)}];", node.source)
        tables[node] = name
    inner = Scope(kernel, scope)
    with writer.block(head(inner, last)):
        inner.compute(kernel.closure(kept, inner.values), writer, named=kept)
        for node, name in tables.items():
            text = inner.values[node].text
            if node in narrow:
                text = f"int32_t({text})"
            writer.line(f"{name}[{inner.axes[last]}] = {text};", node.source)
    return tables


def short_indices(kernel: Kernel) -> frozenset[Node]:
    """Return the computed indices that 32 bits hold: twice as many of them are a vector."""
    symbols = {
        symbol
        for node in kernel.nodes
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
    if isinstance(node, Op) and node.name.startswith(CHECK_PREFIX):
        size = symbol.size.constant if symbol.size is not None else None
        return size is not None and size < 1 << 31
    known = bounds(node)
    return known is not None and known[0] >= -(1 << 31) and known[1] < 1 << 31


def _word(scope: Scope, node: Node) -> str:
    is_check = isinstance(node, Op) and node.name.startswith(CHECK_PREFIX)
    return "index" if is_check else scope.word(node).removesuffix("_val")


def bind_tables(scope: Scope, axis: Symbol, tables: Tables) -> None:
    """Make what is in tables known inside of the loop along ``axis``."""
    if not tables:
        return
    narrow = short_indices(scope.kernel)
    for node, name in tables.items():
        place = f"{name}[{scope.axes[axis]}]"
        if node in narrow:  # as long as other indices before it is multiplied
            scope.values[node] = Expression(f"int64_t({place})")
            continue
        value = from_memory(place, node.dtype)
        scope.values[node] = Expression(place) if value.text == place else value


def _may_be_empty(kernel: Kernel) -> bool:
    """Whether a checked index may have no valid value: that is then tested at each load."""
    exprs = [e for load in kernel.body.loads() for e in load.index]
    return any(s.kind == "indirect" and may_be_empty(s) for e in exprs for s in e.symbols())


__all__ = ["Tables", "bind_tables", "tabled_nodes", "write_tables"]
