"""Loop heads and the directives above them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from fusec.ir.body import axis_sizes
from fusec.ir.index import Symbol, product
from fusec.ir.node import Node, Op
from fusec.ir.ops import EXPENSIVE
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.text.scope import Kernel, Scope
from fusec.targets.cpp.text.writer import Writer


def cost(nodes: Sequence[Node]) -> int:
    """Return what one evaluation of ``nodes`` costs, in additions."""
    return sum(EXPENSIVE.get(node.name, 1) for node in nodes if isinstance(node, Op))


def may_thread(kernel: Kernel) -> bool:
    """Whether the outer points may be shared out: none updates what another may update."""
    return not kernel.body.updated()


def head(scope: Scope, axis: Symbol, begin: str = "0", end: str = "") -> str:
    """Name ``axis`` in ``scope`` and return the loop over it, or over a part of it."""
    name = scope.bind(axis)
    return f"for (int64_t {name} = {begin}; {name} < {end or scope.kernel.extent(axis)}; ++{name})"


def threaded(kernel: Kernel) -> list[str]:
    """Return the clauses that share a loop among threads; none where that cannot pay."""
    work = product(axis_sizes(kernel.body.axes + kernel.body.reduce_axes))
    least = choices.grain(cost(kernel.nodes))
    if work.constant is not None and work.constant < least:
        return []
    if not may_thread(kernel):
        return []
    clauses = ["num_threads(threads)"]
    if work.constant is None:
        name = kernel.tunable("GRAIN", least, choices.GRAINS, "elements worth threads")
        clauses.append(f"if ({kernel.index_text(work, {})} >= {name})")
    return clauses


@contextmanager
def shared_loops(
    kernel: Kernel,
    writer: Writer,
    heads: Sequence[str],
    *,
    rows: Symbol | None = None,
    simd: bool = False,
    alone: bool = False,
) -> Iterator[None]:
    """Open loops that threads share.

    Args:
        kernel: The kernel.
        writer: Where to.
        heads: The loops, outermost first.
        rows: The axis of the one loop, if it goes over rows, of which a thread may take several.
        simd: Whether the one loop is a vector loop as well.
        alone: Whether one thread runs them after all.
    """
    clauses = [] if alone else threaded(kernel)
    words = ["parallel for"] if clauses else []
    if simd:
        words.append("simd")
    elif len(heads) > 1 and words:
        words.append(f"collapse({len(heads)})")
    words += clauses
    count = rows.size.constant if rows is not None and rows.size is not None else None
    if clauses and count is not None and count >= choices.ROWS_WORTH_CHUNKS:
        chunk = kernel.tunable("ROWS", choices.ROWS, choices.ROWS_TRIED, "rows a thread takes")
        words.append(f"schedule(static, {chunk})")
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
    kernel: Kernel, scope: Scope, writer: Writer, axes: Sequence[Symbol]
) -> Iterator[Scope]:
    """Open the loops over ``axes`` that threads share; yields the scope inside."""
    inner = Scope(kernel, scope)
    rows = axes[0] if len(axes) == 1 else None
    with shared_loops(kernel, writer, [head(inner, axis) for axis in axes], rows=rows):
        yield inner


__all__ = ["cost", "head", "may_thread", "outer_loops", "shared_loops", "threaded"]
