"""Loop heads and the directives above them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from fusec.ir.index import Symbol
from fusec.targets.cpp.plan.loop_plan import Sharing
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.writer import Writer


def head(scope: Scope, axis: Symbol, begin: str = "0", end: str = "") -> str:
    """Name ``axis`` in ``scope`` and return the loop over it, or over a part of it."""
    name = scope.bind(axis)
    return f"for (int64_t {name} = {begin}; {name} < {end or scope.kernel.extent(axis)}; ++{name})"


def whole_vectors(scope: Scope, axis: Symbol, turns: int) -> str:
    """Return a loop over ``axis`` that goes on beyond its end, where loads read nothing.

    Its counter is of 32 bits, so that one comparison says which elements of a vector count.
    """
    name = scope.bind(axis)
    scope.within = f"{name} < {scope.kernel.extent(axis)}"
    return f"for (int32_t {name} = 0; {name} < {turns}; ++{name})"


@contextmanager
def shared_loops(
    kernel: KernelWriter,
    writer: Writer,
    heads: Sequence[str],
    sharing: Sharing,
    *,
    simd: bool = False,
) -> Iterator[None]:
    """Open loops that threads share.

    Args:
        kernel: The kernel.
        writer: Where to.
        heads: The loops, outermost first.
        sharing: How threads share them.
        simd: Whether the one loop is a vector loop as well.
    """
    words = ["parallel for"] if sharing.shared else []
    if simd:
        words.append("simd")
    elif len(heads) > 1 and words:
        words.append(f"collapse({len(heads)})")
    if sharing.shared:
        words.append("num_threads(threads)")
    if sharing.grain is not None and sharing.work is not None:
        work, name = kernel.index_text(sharing.work, {}), kernel.tunable(sharing.grain)
        words.append(f"if ({work} >= {name})")
    if sharing.rows is not None:
        words.append(f"schedule(static, {kernel.tunable(sharing.rows)})")
    if words and kernel.checked:
        words.append("reduction(max : failed)")
    if words and heads:
        writer.directive(f"omp {' '.join(words)}")
    with ExitStack() as stack:
        for text in heads:
            stack.enter_context(writer.block(text))
        yield


@contextmanager
def outer_loops(
    kernel: KernelWriter, scope: Scope, writer: Writer, axes: Sequence[Symbol], sharing: Sharing
) -> Iterator[Scope]:
    """Open the loops over ``axes`` that threads share; yields the scope inside."""
    inner = Scope(kernel, scope)
    with shared_loops(kernel, writer, [head(inner, axis) for axis in axes], sharing):
        yield inner


__all__ = ["head", "outer_loops", "shared_loops", "whole_vectors"]
