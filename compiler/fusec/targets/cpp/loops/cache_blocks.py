"""Innermost loops in blocks of a few cache lines, with requests to the memory between them.

What a block adds up goes into an array with an element for each of its lanes, so that the loop
over the lanes is a vector loop with nothing to carry; the lanes are combined when all blocks are
done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from fusec.ir.body import Store
from fusec.ir.index import Symbol
from fusec.ir.node import Load, Node, Op
from fusec.ir.ops import CHECK_PREFIX
from fusec.targets.cpp.memory.prefetch import LINE, Request, declare_line, write_requests
from fusec.targets.cpp.memory.staging import Staging
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.text.dtypes import C_TYPES
from fusec.targets.cpp.text.expressions import Expression
from fusec.targets.cpp.text.reductions import (
    Accumulator,
    clause,
    end_nans,
    has_nan,
    identity,
    start_nans,
    take,
    take_number,
)
from fusec.targets.cpp.text.scope import Scope
from fusec.targets.cpp.text.writer import Writer
from fusec.targets.cpp.vector.interleave import Marks

# Writes what one element does to the accumulators of its lane; with them their flags for NaN.
Element = Callable[[Scope, Sequence[Accumulator], dict[str, str]], None]
_KINDS = {"sum", "prod", "max", "min", "argmax", "argmin"}


def in_blocks(axis: Symbol, nodes: Iterable[Node] = (), items: Sequence[Accumulator] = ()) -> bool:
    """Whether a loop can be cut into blocks, and is long enough.

    Args:
        axis: What it runs along.
        nodes: What is computed in it.
        items: What it adds to.
    """
    size = axis.size.constant if axis.size is not None else 1
    if size is not None and size < choices.MIN_BLOCKED:
        return False
    if any(isinstance(n, Op) and n.name.startswith(CHECK_PREFIX) for n in nodes):
        return False  # a check that fails is a result that the lanes would have to carry
    return all(i.dtype.is_floating_point and i.node.kind in _KINDS for i in items)


def is_even(axis: Symbol) -> bool:
    """Whether the blocks of a whole loop along ``axis`` are all full."""
    size = axis.size.constant if axis.size is not None else 1
    return size is not None and size % choices.LINE == 0


@contextmanager
def blocks(
    scope: Scope,
    writer: Writer,
    axis: Symbol,
    span: tuple[str, str],
    requests: Sequence[Request],
    staging: Staging,
    *,
    even: bool,
    marks: str = "",
) -> Iterator[tuple[str, str, Callable[[Scope], None], str]]:
    """Open a loop over blocks; yields the first and the last + 1 position of a block.

    Third comes a function that makes what was converted for the block known in the scope of the
    loop over its elements; fourth the type of the block's marks.

    Args:
        scope: Where it goes.
        writer: Likewise.
        axis: What it runs along.
        span: The positions that it runs over.
        requests: What each block asks for.
        staging: What goes through arrays.
        even: Whether all blocks are full.
        marks: The type of the marks of a full block; empty if it has none.
    """
    kernel = scope.kernel
    (begin, end), line = span, declare_line(kernel)
    first = scope.name(f"{axis.name}_line")

    def staged_of(count: str) -> tuple[Scope, dict[Load | Store | Op, str]]:
        inner = Scope(kernel, scope)
        arrays = staging.named(inner)
        staging.before(inner, writer, arrays, {axis: first}, count)
        return inner, arrays

    if marks and not even:
        with _twice(scope, writer, axis, first, span, marks):
            write_requests(scope, writer, requests, {axis: first}, line, staging.streamed)
            inner, arrays = staged_of("count")
            bound = lambda at: staging.bind(at, arrays, f"{at.axes[axis]} - {first}")  # noqa: E731
            scope.taken |= inner.taken
            yield first, f"{first} + count", bound, "decltype(mark)"
            staging.after(inner, writer, arrays, {axis: first}, "count")
        return
    with writer.block(f"for (int64_t {first} = {begin}; {first} < {end}; {first} += {line})"):
        write_requests(scope, writer, requests, {axis: first}, line, staging.streamed)
        last = f"{first} + {line}"
        if not even:
            stop = scope.name(f"{axis.name}_stop")
            writer.line(f"const int64_t {stop} = {kernel.at_most(last, end)};")
            last = stop
        count = line if even else f"{last} - {first}"
        inner, arrays = staged_of(count)
        scope.taken |= inner.taken
        yield first, last, lambda at: staging.bind(at, arrays, f"{at.axes[axis]} - {first}"), marks
        staging.after(inner, writer, arrays, {axis: first}, count)


@contextmanager
def _twice(
    scope: Scope, writer: Writer, axis: Symbol, first: str, span: tuple[str, str], marks: str = ""
) -> Iterator[None]:
    """Open what is written once for blocks with a known number of lanes, and what is left over.

    Inside, ``count`` is how many lanes there are.  Full blocks have marks of type ``marks``; the
    rest has none to speak of: those of float leave its vectors as they are.
    """
    (begin, end), line = span, declare_line(scope.kernel)
    name, at = scope.name("block"), scope.name(f"{axis.name}_at")
    given = f"int64_t {first}, int64_t count" + (", auto mark" if marks else "")
    full, rest = (f", {marks}()", ", float()") if marks else ("", "")
    with writer.block(""):
        lambda_ = f"const auto {name} = [&]({given})"
        with writer.block(f"{lambda_} __attribute__((always_inline))", end="};"):
            yield
        writer.line(f"int64_t {at} = {begin};")
        loop = f"for (; {at} + {line} <= {end}; {at} += {line})"
        writer.line(f"{loop} {name}({at}, {line}{full});")
        writer.line(f"if ({at} < {end}) {name}({at}, {end} - {at}{rest});")


def write_lanes(
    scope: Scope,
    writer: Writer,
    axis: Symbol,
    span: tuple[str, str],
    items: Sequence[Accumulator],
    requests: Sequence[Request],
    staging: Staging,
    element: Element,
    *,
    even: bool,
    marks: str = "",
) -> None:
    """Write a loop in blocks that feeds ``items``, which are declared.

    Args:
        scope: Where it goes.
        writer: Likewise.
        axis: What it runs along.
        span: The positions that it runs over.
        items: What it adds to.
        requests: What each block asks for.
        staging: What goes through arrays.
        element: Writes the body for one element.
        even: Whether all blocks are full.
        marks: The type of the marks of a full block; empty if it has none.
    """
    kernel = scope.kernel
    begin, end = span
    line = declare_line(kernel)
    nans = start_nans(scope, items, writer)
    lanes = [_Lanes(scope, item, nans.get(item.place, "")) for item in items]
    for each in lanes:
        each.declare(writer)
    first = scope.name(f"{axis.name}_line")
    if even:
        loop = f"for (int64_t {first} = {begin}; {first} < {end}; {first} += {line})"
        with writer.block(loop):
            own = Marks(scope, marks, line)
            _write_block(scope, writer, axis, first, line, lanes, requests, staging, element, own)
    else:
        # A known number of lanes stays in registers.
        own = Marks(scope, "decltype(mark)" if marks else "", line)
        with _twice(scope, writer, axis, first, span, marks):
            _write_block(
                scope, writer, axis, first, "count", lanes, requests, staging, element, own
            )
    if not lanes:
        return
    clauses = " ".join(clause(each.item, each.nan) for each in lanes)
    writer.directive(f"omp simd {clauses}")
    with writer.block(f"for (int64_t lane = 0; lane < {line}; ++lane)"):
        inner = Scope(kernel, scope)
        for each in lanes:
            each.combine(inner, writer)
    end_nans(items, nans, writer)


def _write_block(
    scope: Scope,
    writer: Writer,
    axis: Symbol,
    first: str,
    count: str,
    lanes: Sequence[_Lanes],
    requests: Sequence[Request],
    staging: Staging,
    element: Element,
    marks: Marks,
) -> None:
    write_requests(scope, writer, requests, {axis: first}, LINE, staging.streamed)
    inner = Scope(scope.kernel, scope)
    arrays = staging.named(inner)
    staging.before(inner, writer, arrays, {axis: first}, count)
    marks.declare(writer)
    writer.directive("GCC ivdep")
    with writer.block(f"for (int64_t lane = 0; lane < {count}; ++lane)"):
        marks.set(writer, "lane")
        position = inner.bind(axis)
        writer.line(f"const int64_t {position} = {first} + lane;")
        staging.bind(inner, arrays, "lane")
        parts = [each.part for each in lanes]
        element(inner, parts, {each.part.place: each.part_nan for each in lanes if each.nan})
    marks.end(writer)
    staging.after(Scope(scope.kernel, scope), writer, arrays, {axis: first}, count)


class _Lanes:
    """An accumulator and the arrays that its lanes have instead."""

    def __init__(self, scope: Scope, item: Accumulator, nan: str) -> None:
        self.item = item
        self.nan = nan
        self.array = scope.name(f"{item.place}_lanes")
        self.part = Accumulator(item.node, f"{self.array}[lane]", item.dtype)
        self.nan_array = scope.name(f"{nan}_lanes") if nan else ""
        self.part_nan = f"{self.nan_array}[lane]"

    def declare(self, writer: Writer) -> None:
        """Declare the arrays at their first values."""
        first, source = identity(self.item.node, self.item.dtype), self.item.node.source
        zero = first in ("0.0", "0.0f")
        kind = C_TYPES[self.item.dtype]
        writer.line(f"alignas(64) {kind} {self.array}[{LINE}]{' = {}' if zero else ''};", source)
        if not zero:
            writer.line(f"for ({kind}& lane : {self.array}) lane = {first};", source)
        if self.nan:
            writer.line(f"alignas(64) int {self.nan_array}[{LINE}] = {{}};", source)

    def combine(self, scope: Scope, writer: Writer) -> None:
        """Write how the result takes one lane."""
        value = Expression(self.part.place)
        if has_nan(self.item):
            take_number(scope, self.item, self.nan, value, writer)
            writer.line(f"{self.nan} |= {self.part_nan};", self.item.node.source)
        else:
            take(scope.kernel, self.item, value, writer)


__all__ = ["blocks", "in_blocks", "is_even", "write_lanes"]
