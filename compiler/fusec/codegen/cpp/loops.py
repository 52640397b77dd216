"""Loop heads and the directives above them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from fusec.codegen.cpp import choices
from fusec.codegen.cpp.scope import Kernel, Scope
from fusec.codegen.cpp.writer import Writer
from fusec.ir.body import axis_sizes
from fusec.ir.index import Symbol, product
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


@contextmanager
def outer_loops(
    kernel: Kernel, scope: Scope, writer: Writer, axes: Sequence[Symbol], simd: bool = False
) -> Iterator[Scope]:
    """Open the loops over ``axes`` that threads share; yields the scope inside."""
    if not axes:
        yield scope
        return
    inner = Scope(kernel, scope)
    work = product(axis_sizes(kernel.body.axes + kernel.body.reduce_axes))
    size = work.constant
    least = choices.grain(cost(kernel.body.nodes()))
    words = []
    if may_thread(kernel) and (size is None or size >= least):
        words.append("parallel for")
    if simd:
        words.append("simd")
    if len(axes) > 1 and words and not simd:
        words.append(f"collapse({len(axes)})")
    if words and words[0] == "parallel for":
        words.append("num_threads(threads)")
        if size is None:
            kernel.tunables["GRAIN"] = (
                f"constexpr int64_t GRAIN = {least}; // tunable: 4096 8192 16384 32768 65536 "
                "(elements that are worth a second thread)"
            )
            words.append(f"if ({kernel.index_text(work, {})} >= GRAIN)")
    if words and kernel.checked:
        words.append("reduction(max : failed)")
    if words:
        writer.directive(f"omp {' '.join(words)}")
    with ExitStack() as stack:
        for axis in axes:
            stack.enter_context(writer.block(head(inner, axis)))
        yield inner


__all__ = ["cost", "head", "may_thread", "outer_loops"]
