"""Running sums of floats along a row, a vector at a time.

One element after the other, a sum waits four cycles for the one before.  So a block of a few cache
lines is summed up by ``running_sums`` (in double, as everywhere), what is added is computed by a
vector loop before, and what is made of the sums by one after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from fusec.codegen.common.c_language import ATOM, UNARY, Expression
from fusec.ir.index import Symbol
from fusec.ir.node import Load, Node, Scan
from fusec.targets.cpp.dtypes import C_TYPES, ELEMENT_TYPES
from fusec.targets.cpp.loops.cache_blocks import blocks
from fusec.targets.cpp.memory.prefetch import LINE
from fusec.targets.cpp.plan.loop_plan import RowPass
from fusec.targets.cpp.plan.scan_passes import Stretch, is_direct
from fusec.targets.cpp.text.scope import Scope
from fusec.targets.cpp.text.writer import Writer

# Writes a vector loop over a block: its scope, what it does, the arrays of the block, its first and
# last + 1 position, and what makes further values known at a place of the block.
Write = Callable[[Scope, Stretch, Mapping[Node, str], str, str, Callable[[Scope, str], None]], None]


def write_running(
    outer: Scope, writer: Writer, plan: RowPass, span: tuple[str, str], write: Write
) -> None:
    """Write the innermost loop of a pass, a block of a few cache lines at a time.

    Args:
        outer: Around the loop.
        writer: Where to.
        plan: Of the pass.
        span: The positions that it runs over.
        write: Writes a vector loop.
    """
    kernel = outer.kernel
    axis = plan.loop.axis
    with blocks(outer, writer, plan.loop, span) as block:
        first, last = block.first, block.end
        inner = Scope(kernel, outer)
        values: dict[Node, str] = {}
        sums: dict[Scan, str] = {}
        for stretch in plan.stretches:
            for node in stretch.nodes if not stretch.vector else ():
                assert isinstance(node, Scan)
                sums[node] = _array(inner, writer, node, "double")
            for node in stretch.kept if stretch.vector else ():
                if not is_direct(kernel, node, axis):
                    values[node] = _array(inner, writer, node, ELEMENT_TYPES[node.dtype])

        def bind(scope: Scope, place: str) -> None:
            block.bind(scope)
            for node, name in sums.items():
                text, level = f"{name}[{place}]", ATOM
                if node.dtype != torch.float64:
                    text, level = f"({C_TYPES[node.dtype]}){text}", UNARY
                scope.values[node] = Expression(text, level)

        for stretch in plan.stretches:
            if not stretch.vector:
                for node in stretch.nodes:
                    assert isinstance(node, Scan)
                    kernel.use("running_sums")
                    place, source = inner.running[node].place, node.args[0]
                    given = values.get(source) or _direct(inner, source, axis, first)
                    count = LINE if plan.loop.even else f"{last} - {first}"
                    call = f"running_sums({sums[node]}, {given}, {count}, {place})"
                    writer.line(f"{place} = {call};", node.source)
            elif stretch.stores or any(node in values for node in stretch.kept):
                write(inner, stretch, values, first, last, bind)


def _array(scope: Scope, writer: Writer, node: Node, kind: str) -> str:
    name = scope.name(f"{scope.word(node).removesuffix('_val')}_block")
    writer.line(f"alignas(64) {kind} {name}[{LINE}];", node.source)
    return name


def _direct(scope: Scope, node: Node, axis: Symbol, first: str) -> str:
    assert isinstance(node, Load)
    corner = Scope(scope.kernel, scope)
    corner.axes[axis] = first
    return f"&{corner.element(node.buffer, node.index)}"


__all__ = ["write_running"]
