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
    arguments: Sequence[tuple[Node, ...]],
    bind: Callable[[Scope], None],
) -> Iterator[Scope]:
    """Open what a block's loop is written into; yields the scope for it.

    Args:
        scope: Where it goes.
        writer: Likewise.
        axis: What the loop runs along.
        span: The first and the last + 1 position of the block.
        arguments: Of each function that has two forms, from the plan.
        bind: Makes what was converted for the block known inside a loop over it.
    """
    kernel = scope.kernel
    far, lanes, moderate = scope.name("far"), scope.name("lanes"), scope.name("moderate")
    writer.line(f"int {far} = 0;")
    writer.directive(f"omp simd reduction(| : {far})")
    look = Scope(kernel, scope)
    with writer.block(head(look, axis, *span)):
        bind(look)
        wanted = list(dict.fromkeys(node for args in arguments for node in args))
        look.compute(kernel.closure(wanted, {*look.values}), writer, named=wanted)
        tests = []
        for args in arguments:
            helper = "is_far" if len(args) == 1 else "is_far_quotient"
            kernel.use(f"{helper}.f{args[0].dtype.itemsize * 8}")
            tests.append(f"fx_{helper}({', '.join(look.values[node].text for node in args)})")
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
