"""Running sums of floats along a row, a vector at a time.

One element after the other, a sum waits four cycles for the one before.  So a block of a few cache
lines is summed up by ``running_sums`` (in double, as everywhere), what is added is computed by a
vector loop before, and what is made of the sums by one after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from fusec.codegen.common.reduction_passes import Pass
from fusec.ir.index import Symbol
from fusec.ir.node import Load, Node, Scan
from fusec.targets.cpp.loops.cache_blocks import blocks, in_blocks, is_even
from fusec.targets.cpp.loops.loop_heads import may_thread
from fusec.targets.cpp.loops.scan_passes import Stretch, plan_stretches
from fusec.targets.cpp.memory.prefetch import LINE, Request
from fusec.targets.cpp.memory.staging import staged
from fusec.targets.cpp.text.dtypes import C_TYPES, ELEMENT_TYPES
from fusec.targets.cpp.text.expressions import ATOM, UNARY, Expression
from fusec.targets.cpp.text.reductions import Accumulator
from fusec.targets.cpp.text.scans import Running
from fusec.targets.cpp.text.scope import Kernel, Scope
from fusec.targets.cpp.text.writer import Writer

# Writes a vector loop over a block: its scope, what it does, the arrays of the block, its first and
# last + 1 position, and what makes further values known at a place of the block.
Write = Callable[[Scope, Stretch, Mapping[Node, str], str, str, Callable[[Scope, str], None]], None]
REALS = (torch.float32, torch.float64)


def running_stretches(
    kernel: Kernel,
    step: Pass,
    items: Sequence[Accumulator],
    running: Mapping[Scan, Running],
    axis: Symbol,
    known: Collection[Node],
) -> list[Stretch]:
    """Return the loops of a block of a pass; empty where its scans cannot go by vectors.

    Args:
        kernel: The kernel.
        step: The pass.
        items: What its reductions add to.
        running: Its scans.
        axis: The innermost loop.
        known: The values that are there already.
    """
    if items or not may_thread(kernel) or not in_blocks(axis, step.inside):
        return []
    sums = all(node.kind == "sum" and node.dtype in REALS for node in running)
    given = [node.args[0] for node in running]
    if not sums or any(isinstance(n, Scan) or n.dtype not in REALS for n in given):
        return []
    stretches = plan_stretches(kernel, step.inside, step.stores, items, known, apart=True)
    alone = all(s.vector or all(isinstance(n, Scan) for n in s.nodes) for s in stretches)
    kept = {node for stretch in stretches for node in stretch.kept}
    # what is the same all along a row is in no array
    alone = alone and all(n in kept or _is_direct(kernel, n, axis) for n in given)
    return stretches if alone and len(stretches) > 1 else []


def write_running(
    outer: Scope,
    writer: Writer,
    step: Pass,
    stretches: Sequence[Stretch],
    axis: Symbol,
    span: tuple[str, str],
    requests: Sequence[Request],
    write: Write,
) -> None:
    """Write the innermost loop of a pass, a block of a few cache lines at a time.

    Args:
        outer: Around the loop.
        writer: Where to.
        step: The pass.
        stretches: From ``running_stretches``.
        axis: The innermost loop.
        span: The positions that it runs over.
        requests: What each block asks the memory for.
        write: Writes a vector loop.
    """
    kernel = outer.kernel
    staging = staged(kernel, axis, step.inside, step.stores)
    with blocks(outer, writer, axis, span, requests, staging, even=is_even(axis)) as block:
        first, last, converts, _ = block
        inner = Scope(kernel, outer)
        values: dict[Node, str] = {}
        sums: dict[Scan, str] = {}
        for stretch in stretches:
            for node in stretch.nodes if not stretch.vector else ():
                assert isinstance(node, Scan)
                sums[node] = _array(inner, writer, node, "double")
            for node in stretch.kept if stretch.vector else ():
                if not _is_direct(kernel, node, axis):
                    values[node] = _array(inner, writer, node, ELEMENT_TYPES[node.dtype])

        def bind(scope: Scope, place: str) -> None:
            converts(scope)
            for node, name in sums.items():
                text, level = f"{name}[{place}]", ATOM
                if node.dtype != torch.float64:
                    text, level = f"({C_TYPES[node.dtype]}){text}", UNARY
                scope.values[node] = Expression(text, level)

        for stretch in stretches:
            if not stretch.vector:
                for node in stretch.nodes:
                    assert isinstance(node, Scan)
                    kernel.use("running_sums")
                    place, source = inner.running[node].place, node.args[0]
                    given = values.get(source) or _direct(inner, source, axis, first)
                    count = LINE if is_even(axis) else f"{last} - {first}"
                    call = f"running_sums({sums[node]}, {given}, {count}, {place})"
                    writer.line(f"{place} = {call};", node.source)
            elif stretch.stores or any(node in values for node in stretch.kept):
                write(inner, stretch, values, first, last, bind)


def _array(scope: Scope, writer: Writer, node: Node, kind: str) -> str:
    name = scope.name(f"{scope.word(node).removesuffix('_val')}_block")
    writer.line(f"alignas(64) {kind} {name}[{LINE}];", node.source)
    return name


def _is_direct(kernel: Kernel, node: Node, axis: Symbol) -> bool:
    """Whether a scan can take its values from where they lie in memory."""
    if not isinstance(node, Load) or node.mask is not None or node.buffer in kernel.updated:
        return False
    if not all(isinstance(user, Scan) for user in kernel.users.get(node, [])):
        return False
    if any(store.value is node for store in kernel.body.stores):
        return False
    offset = kernel.buffers[node.buffer].offset(node.index)
    return (
        not any(s.kind == "indirect" for s in offset.symbols())
        and offset.is_affine_in(axis)
        and offset.coefficient(axis) == 1
    )


def _direct(scope: Scope, node: Node, axis: Symbol, first: str) -> str:
    assert isinstance(node, Load)
    corner = Scope(scope.kernel, scope)
    corner.axes[axis] = first
    return f"&{corner.element(node.buffer, node.index)}"


__all__ = ["running_stretches", "write_running"]
