"""Both forms of a block's loop, as text; ``plan/moderate_angles.py`` decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fusec.ir.index import Symbol
from fusec.ir.node import Node
from fusec.targets.cpp.text.loop_heads import head
from fusec.targets.cpp.text.scope import Scope
from fusec.targets.cpp.text.writer import Writer


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
        arguments: From the plan.
        bind: Makes what was converted for the block known inside a loop over it.
    """
    kernel = scope.kernel
    kernel.use("is_far.f32")
    far, lanes, moderate = scope.name("far"), scope.name("lanes"), scope.name("moderate")
    writer.line(f"int {far} = 0;")
    writer.directive(f"omp simd reduction(| : {far})")
    look = Scope(kernel, scope)
    with writer.block(head(look, axis, *span)):
        bind(look)
        look.compute(kernel.closure(list(arguments), {*look.values}), writer, named=arguments)
        tests = [f"fx_is_far({look.values[node].text})" for node in arguments]
        writer.line(f"{far} |= {' | '.join(tests)};")
    inner = Scope(kernel, scope)
    inner.moderate = moderate
    with writer.block(
        f"const auto {lanes} = [&](auto {moderate}) __attribute__((always_inline))", end="};"
    ):
        yield inner
    writer.line(f"if ({far}) {lanes}(fx_flag<false>());")
    writer.line(f"else {lanes}(fx_flag<true>());")


__all__ = ["both_forms"]
