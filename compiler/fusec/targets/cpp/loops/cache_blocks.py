"""Innermost loops in blocks of a few cache lines, with requests to the memory between them.

What a block adds up goes into an array with an element for each of its lanes, so that the loop
over the lanes is a vector loop with nothing to carry; the lanes are combined when all blocks are
done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fusec.codegen.common.c_language import Expression
from fusec.targets.cpp.dtypes import C_TYPES
from fusec.targets.cpp.memory.prefetch import LINE, declare_line, write_requests
from fusec.targets.cpp.memory.staging import bind_staged, name_arrays, write_after, write_before
from fusec.targets.cpp.plan.loop_plan import InnerLoop
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


@dataclass(frozen=True)
class OpenBlock:
    """A block of a loop, open to be written into.

    Attributes:
        first: Its first position.
        end: Its last + 1 position.
        bind: Makes what was converted for it known in the scope of the loop over its elements.
        marks: The type of its marks.
    """

    first: str
    end: str
    bind: Callable[[Scope], None]
    marks: str


@contextmanager
def blocks(
    scope: Scope, writer: Writer, plan: InnerLoop, span: tuple[str, str]
) -> Iterator[OpenBlock]:
    """Open a loop over blocks.

    Args:
        scope: Where it goes.
        writer: Likewise.
        plan: How the innermost loop runs.
        span: The positions that it runs over.
    """
    kernel, axis = scope.kernel, plan.axis
    (begin, end), line = span, declare_line(kernel, plan.line)
    first = scope.name(f"{axis.name}_line")
    if plan.marks and not plan.even:
        with (
            _twice(scope, writer, plan, first, span, plan.marks),
            _staged(scope, writer, plan, first, "count") as bind,
        ):
            yield OpenBlock(first, f"{first} + count", bind, "decltype(mark)")
        return
    with writer.block(f"for (int64_t {first} = {begin}; {first} < {end}; {first} += {line})"):
        write_requests(scope, writer, plan.requests, {axis: first}, line, plan.staging.streamed)
        last, count = f"{first} + {line}", line
        if not plan.even:
            stop = scope.name(f"{axis.name}_stop")
            writer.line(f"const int64_t {stop} = {kernel.at_most(last, end)};")
            last, count = stop, f"{stop} - {first}"
        with _staged(scope, writer, plan, first, count, asked=True) as bind:
            yield OpenBlock(first, last, bind, plan.marks)


@contextmanager
def _staged(
    scope: Scope, writer: Writer, plan: InnerLoop, first: str, count: str, *, asked: bool = False
) -> Iterator[Callable[[Scope], None]]:
    """Write what comes before and after the loop over a block."""
    staging, places = plan.staging, {plan.axis: first}
    if not asked:
        write_requests(scope, writer, plan.requests, places, LINE, staging.streamed)
    inner = Scope(scope.kernel, scope)
    arrays = name_arrays(staging, inner)
    write_before(staging, inner, writer, arrays, places, count)
    scope.taken |= inner.taken
    yield lambda at: bind_staged(staging, at, arrays, at.offset(plan.axis, first))
    write_after(staging, inner, writer, arrays, places, count)


@contextmanager
def _twice(
    scope: Scope,
    writer: Writer,
    plan: InnerLoop,
    first: str,
    span: tuple[str, str],
    marks: str = "",
) -> Iterator[None]:
    """Open what is written once for blocks with a known number of lanes, and what is left over.

    Inside, ``count`` is how many lanes there are.  Full blocks have marks of type ``marks``; the
    rest has none to speak of: those of float leave its vectors as they are.
    """
    (begin, end), line = span, declare_line(scope.kernel, plan.line)
    name, at = scope.name("block"), scope.name(f"{plan.axis.name}_at")
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
    plan: InnerLoop,
    span: tuple[str, str],
    items: Sequence[Accumulator],
    element: Element,
) -> None:
    """Write a loop in blocks that feeds ``items``, which are declared.

    Args:
        scope: Where it goes.
        writer: Likewise.
        plan: How it runs.
        span: The positions that it runs over.
        items: What it adds to.
        element: Writes the body for one element.
    """
    kernel, axis = scope.kernel, plan.axis
    begin, end = span
    line = declare_line(kernel, plan.line)
    nans = start_nans(scope, items, writer)
    lanes = [_Lanes(scope, item, nans.get(item.place, "")) for item in items]
    for each in lanes:
        each.declare(writer)
    block = Scope(kernel, scope)
    first = block.name(f"{axis.name}_line")
    if plan.even:
        loop = f"for (int64_t {first} = {begin}; {first} < {end}; {first} += {line})"
        with writer.block(loop):
            own = Marks(block, plan.marks, line)
            _write_block(block, writer, plan, (first, line), lanes, element, own)
    else:
        # A known number of lanes stays in registers.
        own = Marks(block, "decltype(mark)" if plan.marks else "", line)
        with _twice(block, writer, plan, first, span, plan.marks):
            _write_block(block, writer, plan, (first, "count"), lanes, element, own)
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
    plan: InnerLoop,
    span: tuple[str, str],
    lanes: Sequence[_Lanes],
    element: Element,
    marks: Marks,
) -> None:
    """Write what is done for the block that begins at ``span[0]`` and has ``span[1]`` lanes."""
    (first, count), staging = span, plan.staging
    write_requests(scope, writer, plan.requests, {plan.axis: first}, LINE, staging.streamed)
    inner = Scope(scope.kernel, scope)
    arrays = name_arrays(staging, inner)
    write_before(staging, inner, writer, arrays, {plan.axis: first}, count)
    marks.declare(writer)
    writer.directive("GCC ivdep")
    with writer.block(f"for (int64_t lane = 0; lane < {count}; ++lane)"):
        marks.set(writer, "lane")
        position, at = inner.bind(plan.axis), len(writer.lines)
        writer.line(f"const int64_t {position} = {first} + lane;")
        bind_staged(staging, inner, arrays, "lane")
        parts = [each.part for each in lanes]
        element(inner, parts, {each.part.place: each.part_nan for each in lanes if each.nan})
        if not any(re.search(rf"\b{position}\b", line.text) for line in writer.lines[at + 1 :]):
            del writer.lines[at]  # all that is read is staged, by lane
    marks.end(writer)
    after = Scope(scope.kernel, scope)
    write_after(staging, after, writer, arrays, {plan.axis: first}, count)


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
        if has_nan(scope.kernel, self.item):
            take_number(scope, self.item, self.nan, value, writer)
            writer.line(f"{self.nan} |= {self.part_nan};", self.item.node.source)
        else:
            take(scope.kernel, self.item, value, writer)


__all__ = ["OpenBlock", "blocks", "write_lanes"]
