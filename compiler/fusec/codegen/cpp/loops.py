"""Loop heads and the directives above them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from fusec.codegen.cpp import choices
from fusec.codegen.cpp.scope import Kernel, Scope
from fusec.codegen.cpp.writer import Writer
from fusec.ir.body import axis_sizes
from fusec.ir.index import Expr, Symbol, product
from fusec.ir.node import Node, Op
from fusec.ir.ops import EXPENSIVE


def cost(nodes: Sequence[Node]) -> int:
    """Return what one evaluation of ``nodes`` costs, in additions."""
    return sum(EXPENSIVE.get(node.name, 1) for node in nodes if isinstance(node, Op))


def may_thread(kernel: Kernel) -> bool:
    """Whether the outer points may be shared out: none adds to what another may add to."""
    return all(store.mode == "set" for store in kernel.body.stores)


def head(scope: Scope, axis: Symbol, begin: str = "0", end: str = "") -> str:
    """Name ``axis`` in ``scope`` and return the loop over it, or over a part of it."""
    name = scope.bind(axis)
    return f"for (int64_t {name} = {begin}; {name} < {end or scope.kernel.extent(axis)}; ++{name})"


def threaded(kernel: Kernel, units: Expr | None = None) -> list[str]:
    """Return the clauses that share a loop among threads; none where that cannot pay.

    Args:
        kernel: The kernel.
        units: How many units of work the loop hands out; a single one needs no threads.
    """
    work = product(axis_sizes(kernel.body.axes + kernel.body.reduce_axes))
    least = choices.grain(cost(kernel.nodes))
    if work.constant is not None and work.constant < least:
        return []
    if not may_thread(kernel) or (units is not None and units.constant in (0, 1)):
        return []
    clauses = ["num_threads(threads)"]
    if work.constant is None:
        name = kernel.tunable(
            "GRAIN", least, choices.GRAINS, "elements that are worth a second thread"
        )
        clauses.append(f"if ({kernel.index_text(work, {})} >= {name})")
    return clauses


@contextmanager
def shared_loops(
    kernel: Kernel, writer: Writer, heads: Sequence[str], *, simd: bool = False, alone: bool = False
) -> Iterator[None]:
    """Open loops that threads share.

    Args:
        kernel: The kernel.
        writer: Where to.
        heads: The loops, outermost first.
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
    rows_known = product(axis_sizes(kernel.body.axes)).constant or 0
    if clauses and len(heads) == 1 and not simd and rows_known >= choices.ROWS_WORTH_CHUNKS:
        rows = kernel.tunable("ROWS", choices.ROWS, choices.ROWS_TRIED, "rows a thread takes")
        words.append(f"schedule(static, {rows})")
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
    kernel: Kernel, scope: Scope, writer: Writer, axes: Sequence[Symbol], simd: bool = False
) -> Iterator[Scope]:
    """Open the loops over ``axes`` that threads share; yields the scope inside."""
    inner = Scope(kernel, scope)
    with shared_loops(kernel, writer, [head(inner, axis) for axis in axes], simd=simd):
        yield inner


__all__ = ["cost", "head", "may_thread", "outer_loops", "shared_loops", "threaded"]
