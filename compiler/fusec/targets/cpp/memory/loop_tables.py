"""Tables of what only the innermost loop decides, as text; ``plan/loop_tables.py`` decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusec.codegen.common.c_language import Expression
from fusec.ir.checks import is_check
from fusec.ir.index import Symbol
from fusec.ir.node import Node
from fusec.targets.cpp.dtypes import ELEMENT_TYPES
from fusec.targets.cpp.plan.loop_tables import is_wide_mark, short_indices
from fusec.targets.cpp.text.expressions import from_memory
from fusec.targets.cpp.text.loop_heads import head
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.writer import Writer

Tables = Mapping[Node, str]


def write_tables(
    kernel: KernelWriter, scope: Scope, writer: Writer, kept: Sequence[Node]
) -> Tables:
    """Write the loop that fills the tables; return their names."""
    last = kernel.body.axes[-1]
    tables, narrow = {}, short_indices(kernel)
    for node in kept:
        name = scope.name(f"{_word(scope, node)}_table")
        short = node in narrow or is_wide_mark(node)
        kind = "int32_t" if short else ELEMENT_TYPES[node.dtype]
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


def _word(scope: Scope, node: Node) -> str:
    return "index" if is_check(node) else scope.word(node).removesuffix("_val")


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


__all__ = ["Tables", "bind_tables", "write_tables"]
