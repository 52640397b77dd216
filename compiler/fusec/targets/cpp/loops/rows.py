"""Row reductions: for each outer point, passes over the reduced axes.

The innermost reduced axis is a vector loop.  Long or nested sums add up a chunk as float and the
chunks as double, so that rounding errors do not grow with the length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from fusec.ir.body import Store, axis_sizes
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, Scan
from fusec.ir.shapes import flatten, product
from fusec.targets.cpp.dtypes import C_TYPES, ELEMENT_TYPES
from fusec.targets.cpp.loops.cache_blocks import write_lanes
from fusec.targets.cpp.loops.running_sums import write_running
from fusec.targets.cpp.memory.prefetch import find_next_row, write_requests
from fusec.targets.cpp.memory.staging import through_arrays
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import extent
from fusec.targets.cpp.plan.loop_plan import Rows
from fusec.targets.cpp.plan.scan_passes import Stretch
from fusec.targets.cpp.text.expressions import from_memory
from fusec.targets.cpp.text.loop_heads import head, outer_loops, whole_vectors
from fusec.targets.cpp.text.reductions import (
    Accumulator,
    accumulator,
    beats,
    end_nans,
    identity,
    merge,
    position,
    simd,
    start,
    start_nans,
    take,
    take_number,
    take_position,
)
from fusec.targets.cpp.text.scans import declarations, running_values
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.writer import Writer

Span = tuple[str, str]


def write_rows(kernel: KernelWriter, plan: Rows, scope: Scope, writer: Writer) -> None:
    """Write a body with reductions, a row at a time; threads share the rows."""
    with outer_loops(kernel, scope, writer, kernel.body.axes, plan.sharing) as row:
        write_row(kernel, plan, row, writer, scope)


def write_row(
    kernel: KernelWriter, plan: Rows, row: Scope, writer: Writer, around: Scope | None = None
) -> None:
    """Write all that is done for one row; ``around`` is the scope of the loop over the rows."""
    everything = set(kernel.body.nodes())
    rows = RowWriter(kernel, writer, plan)
    rows.declare_scratch(row)
    for number, step in enumerate(plan.steps.passes):
        later = everything - set(step.before)
        row.compute(step.before, writer, stores=step.row_stores, later=later)
        for store in step.row_stores:
            row.store(store, writer)
        if number == 0 and around is not None and plan.next_row:
            rows.ask_for_next(row, around)
        if step.loops:
            rows.write_pass(row, number)


class RowWriter:
    """Writes the passes over a row.

    Attributes:
        scratch: Kept node to the array that holds its row.
        loops: How the innermost loop of each pass runs.
    """

    def __init__(self, kernel: KernelWriter, writer: Writer, plan: Rows) -> None:
        self.kernel = kernel
        self.writer = writer
        self.plan = plan
        self.steps = plan.steps
        self.scratch: dict[Node, str] = {}
        self.loops = [each.loop for each in plan.passes]

    def declare_scratch(self, row: Scope) -> None:
        """Declare an array for every value that is kept for later passes."""
        extent = product(axis_sizes(self.kernel.body.reduce_axes))
        for node in self.steps.kept:
            name = row.name(f"{row.word(node).removesuffix('_val')}_row")
            turns = max((loop.turns for loop in self.loops), default=0)
            size = str(turns) if turns else self.kernel.index_text(extent, {})
            kind = ELEMENT_TYPES[node.dtype]
            self.writer.line(f"alignas(64) {kind} {name}[{size}];", node.source)
            self.scratch[node] = name

    def ask_for_next(self, row: Scope, around: Scope) -> None:
        """Have a pass ask for the next row, whose place is computed."""
        found = find_next_row(self.kernel, around, row, self.writer, self.plan.next_row)
        loop = self.loops[self.plan.busiest]
        self.loops[self.plan.busiest] = replace(loop, requests=(*loop.requests, *found))

    def write_pass(self, row: Scope, number: int) -> None:
        """Write one pass, and bind the results of its reductions."""
        plan = self.plan.passes[number]
        scans = self.scans(number)
        split = len(self.kernel.body.reduce_axes) > 1 or plan.chunk is not None or bool(scans)
        items = [accumulator(row, node, "row", total=split) for node in plan.step.reductions]
        for item in items:
            start(item, self.writer)
        row.running = running_values(scans, row.taken)
        for running in dict.fromkeys(row.running.values()):
            for kind, name, first in declarations(running):
                self.writer.line(f"{kind} {name} = {first};", running.node.source)
        self.write_loops(row, number, items, {})
        for item in items:
            row.bind_result(item.node, item.result, self.writer)

    def write_loops(
        self, scope: Scope, number: int, items: Sequence[Accumulator], spans: Mapping[Symbol, Span]
    ) -> None:
        """Write the loops of a pass.

        Args:
            scope: Where they go.
            number: The pass.
            items: What its reductions add to.
            spans: First and last + 1 position of axes that are not run over whole.
        """
        self._levels(scope, number, items, list(self.kernel.body.reduce_axes), spans)

    def _levels(
        self,
        scope: Scope,
        number: int,
        items: Sequence[Accumulator],
        axes: list[Symbol],
        spans: Mapping[Symbol, Span],
    ) -> None:
        """Write the loop over the first of ``axes`` and what can be computed above it."""
        step = self.steps.passes[number]
        free = self.kernel.free
        level = [node for node in step.inside if not free[node] & set(axes)]
        level = [node for node in level if node not in self.scratch]
        later = set(step.inside) - set(level) | set(step.reductions)
        scope.compute(level, self.writer, later=later)
        inner = Scope(self.kernel, scope)
        axis, *rest = axes
        if rest:
            if extent(axis) == 1 and axis not in spans:
                inner.axes[axis], inner.taken = "0", scope.taken  # no block begins here
                self._levels(inner, number, items, rest, spans)
                return
            with self.writer.block(head(inner, axis, *spans.get(axis, ()))):
                self._levels(inner, number, items, rest, spans)
            return
        # No block begins here either: parts, flags, arrays of a pass stand beside those of others.
        inner.taken = scope.taken
        begin, end = spans.get(axis, ("0", self.kernel.extent(axis)))
        if scope.running:
            self._ordered_loop(inner, number, items, axis, begin, end)
            return
        chunk = self.plan.passes[number].chunk
        parted = [i for i in items if i.is_index or (i.dtype != i.node.dtype)]
        if chunk is None and not parted:
            self._vector_loop(inner, number, items, axis, begin, end)
        elif chunk is None:
            self._chunk(inner, number, items, axis, begin, end)
        else:
            chunks = Scope(self.kernel, inner)
            first, last = chunks.name(f"{axis.name}_chunk"), chunks.name(f"{axis.name}_end")
            self.kernel.use("at_most")
            loop = f"for (int64_t {first} = {begin}; {first} < {end}; {first} += {chunk})"
            with self.writer.block(loop):
                self.writer.line(f"const int64_t {last} = at_most({first} + {chunk}, {end});")
                self._chunk(Scope(self.kernel, chunks), number, items, axis, first, last)

    def _chunk(
        self,
        scope: Scope,
        number: int,
        items: Sequence[Accumulator],
        axis: Symbol,
        begin: str,
        end: str,
    ) -> None:
        """Write a vector loop with accumulators of its own for sums and positions."""
        parts = []
        for item in items:
            if item.is_index:
                part = accumulator(scope, item.node, "chunk")
                part = Accumulator(item.node, part.place, item.dtype)
            elif item.dtype != item.node.dtype:
                part = accumulator(scope, item.node, "chunk")
            else:
                parts.append(item)
                continue
            self.writer.line(
                f"{C_TYPES[part.dtype]} {part.place} = {identity(item.node, part.dtype)};",
                item.node.source,
            )
            parts.append(part)
        self._vector_loop(scope, number, parts, axis, begin, end)
        for item, part in zip(items, parts, strict=True):
            if item.is_index:
                self._find(scope, number, item, part, (begin, end))
            elif item is not part:
                merge(self.kernel, item, part, self.writer)

    def _vector_loop(
        self,
        outer: Scope,
        number: int,
        items: Sequence[Accumulator],
        axis: Symbol,
        begin: str,
        end: str,
    ) -> None:
        """Write the innermost loop, in blocks where it asks the memory for what comes later."""
        step, plan = self.steps.passes[number], self.loops[number]

        def element(scope: Scope, items: Sequence[Accumulator], nans: Mapping[str, str]) -> None:
            self._elements(scope, step.inside, number, items, step.stores)
            for item in items:
                self._feed(scope, item, nans)
            for store in step.stores:
                scope.store(store, self.writer)

        if extent(axis) == 1 and (begin, end) == ("0", "1"):
            single = Scope(self.kernel, outer)
            single.axes[axis] = "0"
            with self.writer.block(""):
                element(single, items, {})
            return
        if plan.blocks:
            write_lanes(outer, self.writer, plan, (begin, end), items, element)
            return
        size = extent(axis)
        if plan.requests and size is not None and size < choices.MIN_BLOCKED:
            write_requests(outer, self.writer, plan.requests, {axis: begin}, str(size))
        nans: dict[str, str] = {}
        with ExitStack() as stack:
            bind: Callable[[Scope], None] = lambda scope: None  # noqa: E731
            if self.kernel.may_thread:
                nans = start_nans(outer, items, self.writer)
                arrays = through_arrays(plan.staging, outer, self.writer, axis)
                bind = stack.enter_context(arrays)
                simd(self.kernel, items, self.writer, nans)
            scope = Scope(self.kernel, outer)
            whole = plan.turns and (begin, end) == ("0", str(size))
            loop = (
                whole_vectors(scope, axis, plan.turns) if whole else head(scope, axis, begin, end)
            )
            with self.writer.block(loop):
                bind(scope)
                element(scope, items, nans)
        end_nans(items, nans, self.writer)

    def scans(self, number: int) -> list[Scan]:
        """Return the scans that a pass runs; the results of others have been kept."""
        return [
            node
            for node in self.steps.passes[number].inside
            if isinstance(node, Scan) and not self._kept_before(node, number)
        ]

    def _kept_before(self, node: Node, number: int) -> bool:
        return node in self.steps.kept and self.steps.first[node] < number

    def _ordered_loop(
        self,
        scope: Scope,
        number: int,
        items: Sequence[Accumulator],
        axis: Symbol,
        begin: str,
        end: str,
    ) -> None:
        """Write the innermost loop of a pass with scans, in blocks where that gives vector code."""
        plan = self.plan.passes[number]
        if plan.running:

            def write(
                inner: Scope,
                stretch: Stretch,
                arrays: Mapping[Node, str],
                first: str,
                last: str,
                bind: Callable[[Scope, str], None],
            ) -> None:
                self._stretch(inner, number, stretch, items, arrays, (first, last), bind)

            write_running(Scope(self.kernel, scope), self.writer, plan, (begin, end), write)
            return
        if len(plan.stretches) == 1:
            self._stretch(scope, number, plan.stretches[0], items, {}, (begin, end))
            return
        size, count = choices.SCAN_BLOCK, extent(axis)
        if count is not None and count <= size and (begin, end) == ("0", str(count)):
            self._block(scope, number, items, (begin, end), count)
            return
        blocks = Scope(self.kernel, scope)
        first, last = blocks.name(f"{axis.name}_block"), blocks.name(f"{axis.name}_end")
        loop = f"for (int64_t {first} = {begin}; {first} < {end}; {first} += {size})"
        with self.writer.block(loop):
            stop = self.kernel.at_most(f"{first} + {size}", end)
            self.writer.line(f"const int64_t {last} = {stop};")
            self._block(Scope(self.kernel, blocks), number, items, (first, last), size)

    def _block(
        self, block: Scope, number: int, items: Sequence[Accumulator], span: Span, size: int
    ) -> None:
        """Write the loops of a block of at most ``size`` elements, and the arrays between them."""
        arrays: dict[Node, str] = {}
        stretches = self.plan.passes[number].stretches
        for stretch in stretches:
            for node in stretch.kept:
                if node not in self.scratch:
                    name = block.name(f"{block.word(node).removesuffix('_val')}_block")
                    kind = ELEMENT_TYPES[node.dtype]
                    self.writer.line(f"{kind} {name}[{max(size, 1)}];", node.source)
                    arrays[node] = name
        for stretch in stretches:
            self._stretch(block, number, stretch, items, arrays, span)

    def _stretch(
        self,
        outer: Scope,
        number: int,
        stretch: Stretch,
        items: Sequence[Accumulator],
        arrays: Mapping[Node, str],
        span: Span,
        bind: Callable[[Scope, str], None] = lambda scope, place: None,
    ) -> None:
        """Write one loop over a block of a row, or over all of it."""
        kernel, writer, axis = self.kernel, self.writer, self.loops[number].axis
        by_node = {item.node: item for item in items}
        own = [by_node[node] for node in stretch.items]
        nans: dict[str, str] = {}
        if stretch.vector and kernel.may_thread:
            nans = start_nans(outer, own, writer)
            simd(kernel, own, writer, nans)
        scope = Scope(kernel, outer)
        with writer.block(head(scope, axis, *span)):
            place = scope.offset(axis, span[0])
            for node, name in arrays.items():
                if node not in stretch.nodes:
                    scope.values[node] = from_memory(f"{name}[{place}]", node.dtype)
            bind(scope, place)
            kept = [node for node in stretch.kept if node in arrays]
            self._elements(scope, stretch.nodes, number, own, stretch.stores, kept=kept)
            for node in kept:
                writer.line(f"{arrays[node]}[{place}] = {scope.values[node].text};", node.source)
            for item in own:
                if item.is_index:
                    value = scope.values[item.node.args[0]].text
                    take_position(item, value, position(scope, item.node), writer)
                else:
                    self._feed(scope, item, nans)
            for store in stretch.stores:
                scope.store(store, writer)
        end_nans(own, nans, writer)

    def _elements(
        self,
        scope: Scope,
        nodes: Sequence[Node],
        number: int,
        items: Sequence[Accumulator],
        stores: Sequence[Store],
        *,
        kept: Sequence[Node] = (),
    ) -> None:
        """Write elementwise values of a pass, reading and writing the scratch rows.

        Args:
            scope: The loop's.
            nodes: What to compute, arguments first.
            number: The pass.
            items: The reductions that take values here.
            stores: The stores that follow.
            kept: Values that go into arrays.
        """
        there = {
            node
            for node in self.scratch
            if self._kept_before(node, number) or (scope.running and node not in nodes)
        }
        place = self._bind_rows(scope, there)
        written = [n for n in self.scratch if self.steps.first[n] == number and n in nodes]
        ends = {item.node for item in items}
        positions = [item.node.args[0] for item in items if item.index]
        # A value that is kept has two uses at least: the scratch row and the pass itself.
        named = [*written, *positions]
        scope.compute(nodes, self.writer, ends=ends, stores=stores, named=named, kept=kept)
        for node in written:
            text = scope.values[node].text
            self.writer.line(f"{self.scratch[node]}[{place}] = {text};", node.source)

    def _bind_rows(self, scope: Scope, nodes: Collection[Node]) -> str:
        """Make what scratch rows have of ``nodes`` known; return the place in a row."""
        if not self.scratch:
            return ""
        axes = self.kernel.body.reduce_axes
        place = scope.index(flatten([Expr.of(a) for a in axes], axis_sizes(axes)))
        for node, row in self.scratch.items():
            if node in nodes:
                scope.values[node] = from_memory(f"{row}[{place}]", node.dtype)
        return place

    def _feed(self, scope: Scope, item: Accumulator, nans: Mapping[str, str]) -> None:
        other = identity(item.node, item.dtype)
        value = scope.where_there(item.node.args[0], item.dtype, other)
        if item.place in nans:
            take_number(scope, item, nans[item.place], value, self.writer)
        else:
            take(self.kernel, item, value, self.writer)

    def _find(
        self, scope: Scope, number: int, item: Accumulator, part: Accumulator, span: Span
    ) -> None:
        """Write the search for the position of a chunk's extreme, where it is a new one.

        Only a chunk that beats all before is run over again, so most are read once.
        """
        writer, node, axis = self.writer, item.node, self.loops[number].axis
        arg = node.args[0]
        with writer.block(f"if ({beats(item, part.place)})", node.source):
            inner = Scope(self.kernel, scope)
            left = inner.name("left")
            points = product(axis_sizes(node.axes))
            limit = self.kernel.index_text(points, {})
            # How many are left from the first such on: 0 is none, so that a select needs no more
            # than a mask. As wide as a float where it can be: twice as many in a vector, and SSE2
            # and AVX2 have no extremes of 64 bits. A row of 1024 takes 0.34 of the time with
            # SSE2, 0.84 with AVX2, 0.87 with AVX-512.
            short = points.constant is not None and points.constant < 2**31
            kind, cast = ("int32_t", "(int32_t)") if short else ("int64_t", "")
            writer.line(f"{kind} {left} = 0;")
            writer.directive(f"omp simd reduction(max : {left})")
            with writer.block(head(inner, axis, *span)):
                self._bind_rows(inner, {n for n in self.scratch if self._kept_before(n, number)})
                inner.compute(self.kernel.closure([arg], inner.values), writer, named=[arg])
                value = inner.values[arg].text
                same = f"{value} == {part.place}"
                if part.dtype.is_floating_point:
                    same = f"({same}) | ({value} != {value})"
                here = inner.name("here")
                where = f"{cast}({position(inner, node)})"
                writer.line(f"const {kind} {here} = {same} ? {limit} - {where} : 0;")
                writer.line(f"{left} = {here} > {left} ? {here} : {left};")
            writer.line(f"{item.place} = {part.place};")
            writer.line(f"{item.index} = {limit} - {left};")


__all__ = ["RowWriter", "Span", "write_row", "write_rows"]
