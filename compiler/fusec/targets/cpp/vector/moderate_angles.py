"""Sines and cosines a block at a time, by a third of the work where no argument of it is large.

Bringing an angle of any size into the first quadrant takes three dozen operations in double; one
below 2**15 takes five in float.  A vector loop has no branches, so the choice is made before it: a
loop of its own looks whether any argument in the block is far from zero, and the block's loop,
written once, exists in two forms, for near arguments alone and for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from fusec.ir.index import Symbol
from fusec.ir.node import Load, Node, Op, Reduce, Scan
from fusec.targets.cpp.loops.loop_heads import cost, head
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.text.scope import NEAR_FORMS, Kernel, Scope
from fusec.targets.cpp.text.writer import Writer


def angles(kernel: Kernel, scope: Scope, axis: Symbol, inside: Sequence[Node]) -> list[Node]:
    """Return the arguments of sines and cosines in a loop along ``axis``.

    Empty where there are none, or where looking at them first would be most of the work.
    """
    found = {
        node.args[0]: None
        for node in inside
        if isinstance(node, Op) and node.name in NEAR_FORMS and node.dtype == torch.float32
    }
    if not found or kernel.checked or not all(axis in kernel.free[node] for node in found):
        return []
    nodes = kernel.closure(list(found), {*scope.values})
    if any(isinstance(node, Reduce | Scan) for node in nodes):
        return []
    # a load under a condition may stay a branch, which is worth doing once only
    if any(isinstance(node, Load) and node.mask is not None for node in nodes):
        return []
    return list(found) if cost(nodes) <= choices.ANGLE_COST * len(found) else []


@contextmanager
def both_forms(
    scope: Scope,
    writer: Writer,
    axis: Symbol,
    span: tuple[str, str],
    arguments: Sequence[Node],
    bind: Callable[[Scope], None],
) -> Iterator[Scope]:
    """Open what a block's loop is written into; yields the scope for it.

    Args:
        scope: Where it goes.
        writer: Likewise.
        axis: What the loop runs along.
        span: The first and the last + 1 position of the block.
        arguments: From ``angles``.
        bind: Makes what was converted for the block known inside a loop over it.
    """
    kernel = scope.kernel
    kernel.use("is_far.f32")
    far, lanes, near = scope.name("far"), scope.name("lanes"), scope.name("near")
    writer.line(f"int {far} = 0;")
    writer.directive(f"omp simd reduction(| : {far})")
    look = Scope(kernel, scope)
    with writer.block(head(look, axis, *span)):
        bind(look)
        look.compute(kernel.closure(list(arguments), {*look.values}), writer, named=arguments)
        tests = [f"fx_is_far({look.values[node].text})" for node in arguments]
        writer.line(f"{far} |= {' | '.join(tests)};")
    inner = Scope(kernel, scope)
    inner.near = near
    with writer.block(
        f"const auto {lanes} = [&](auto {near}) __attribute__((always_inline))", end="};"
    ):
        yield inner
    writer.line(f"if ({far}) {lanes}(fx_flag<false>());")
    writer.line(f"else {lanes}(fx_flag<true>());")


__all__ = ["angles", "both_forms"]
