"""Rows that several rows of the result are made from, as text; ``plan/row_reuse.py`` decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from fusec.ir.node import Node
from fusec.targets.cpp.dtypes import ELEMENT_TYPES
from fusec.targets.cpp.memory.loop_tables import Tables, bind_tables
from fusec.targets.cpp.plan.row_reuse import Repeated, are_equal
from fusec.targets.cpp.text.loop_heads import head
from fusec.targets.cpp.text.reductions import simd
from fusec.targets.cpp.text.scope import Scope
from fusec.targets.cpp.text.writer import Writer


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


__all__ = ["declare_repeated", "fill_repeated"]
