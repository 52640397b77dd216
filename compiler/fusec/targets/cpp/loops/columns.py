"""Column reductions: the reduced axes are not the fastest in memory.

A tile of neighboring columns is reduced side by side: the loop over the rows is outside, the
vector loop over the columns inside, and every column has its element in an array of running
results.  Threads share the tiles, or, where there are few of them, pieces of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from fusec.codegen.common.c_language import Expression
from fusec.ir.body import Store
from fusec.ir.index import Symbol
from fusec.ir.node import Node, Scan
from fusec.targets.cpp.dtypes import C_TYPES, ELEMENT_TYPES
from fusec.targets.cpp.loops.cache_blocks import blocks
from fusec.targets.cpp.loops.rows import Span
from fusec.targets.cpp.memory.prefetch import LINE, write_requests
from fusec.targets.cpp.memory.staging import through_arrays
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.columns import held_columns
from fusec.targets.cpp.plan.facts import extent
from fusec.targets.cpp.plan.loop_plan import Columns, InnerLoop, Sharing
from fusec.targets.cpp.text.expressions import from_memory
from fusec.targets.cpp.text.loop_heads import head, shared_loops
from fusec.targets.cpp.text.reductions import (
    Accumulator,
    accumulator,
    identity,
    merge,
    position,
    take,
    take_position,
)
from fusec.targets.cpp.text.scans import Running, declarations, running_values
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.writer import Writer
from fusec.targets.cpp.vector.interleave import Marks


def write_columns(kernel: KernelWriter, plan: Columns, scope: Scope, writer: Writer) -> None:
    """Write a body whose reductions run beside each other."""
    ColumnWriter(kernel, plan, scope, writer).write()


class ColumnWriter:
    """Writes the passes over a tile of columns.

    Attributes:
        held: Node to the array that has its value for every column of the tile.
        running: Scan of the current pass to the array of what it has so far.
    """

    def __init__(self, kernel: KernelWriter, plan: Columns, scope: Scope, writer: Writer) -> None:
        self.kernel = kernel
        self.plan = plan
        self.scope = scope
        self.writer = writer
        self.column = plan.column
        self.steps = plan.steps
        self.held: dict[Node, Expression] = {}
        self.running: dict[Scan, Running] = {}
        self.rows_name = ""
        self.others = [axis for axis in kernel.body.axes if axis is not plan.column]
        count = extent(plan.column)
        if plan.whole:
            self.width = str(max(count or 1, 1))
        else:
            self.width = kernel.tunable(plan.width)
        if plan.even and not plan.whole:
            # Then every tile is full, and the compiler knows how long the vector loops are.
            kernel.asserts.append(
                f'static_assert({count} % COLUMNS == 0, "COLUMNS must divide {count}");'
            )

    def write(self) -> None:
        """Write the loops over the tiles and all that is in them."""
        kernel, writer, plan = self.kernel, self.writer, self.plan
        tile = Scope(kernel, self.scope)
        heads = [head(tile, axis) for axis in self.others]
        extent = kernel.extent(self.column)
        self.begin, self.end = "0", extent
        if not plan.whole:
            self.begin = tile.name(f"{self.column.name}_tile")
            loop = f"for (int64_t {self.begin} = 0; {self.begin} < {extent};"
            heads.append(f"{loop} {self.begin} += {self.width})")
        sharing = plan.sharing if plan.pieces is None else Sharing(False)
        with shared_loops(kernel, writer, heads, sharing):
            last = f"{self.begin} + {self.width}"
            if plan.even and not plan.whole:
                self.end = last
            elif not plan.whole:
                self.end = tile.name(f"{self.column.name}_end")
                writer.line(f"const int64_t {self.end} = {kernel.at_most(last, extent)};")
            self.begin_tile(tile)
            for number, step in enumerate(self.steps.passes):
                self.between(tile, step.before, step.row_stores)
                if step.loops:
                    self.write_pass(tile, number)
                    self.end_pass(tile, step.stores)

    # -- what another way of reading and writing adds -----------------------------------------

    def begin_tile(self, tile: Scope) -> None:
        """Write what comes first in a tile."""

    def begin_row(self, scope: Scope, number: int) -> None:
        """Write what comes first in each turn of a loop of pass ``number`` over the rows."""

    def end_pass(self, tile: Scope, stores: Sequence[Store]) -> None:
        """Write what follows the loops of a pass that has ``stores``."""

    def there(self, number: int) -> Collection[Node]:
        """Return what a pass finds in arrays that have every element of the tile."""
        return ()

    def kept(self, number: int) -> Collection[Node]:
        """Return what a pass leaves in such arrays."""
        return ()

    def bind_elements(self, scope: Scope, place: str, number: int) -> None:
        """Make what ``there`` returns known inside the loops of a pass."""

    def keep(self, scope: Scope, node: Node, place: str) -> None:
        """Write one element of what is kept."""

    def put(self, scope: Scope, store: Store, place: str) -> None:
        """Write the store of an element at ``place`` of the tile."""
        scope.store(store, self.writer)

    # -- between the passes -------------------------------------------------------------------

    def between(self, tile: Scope, before: Sequence[Node], stores: Sequence[Store]) -> None:
        """Write what is computed once a column (or once a tile)."""
        kernel, writer = self.kernel, self.writer
        single = [node for node in before if self.column not in kernel.free[node]]
        tile.compute(single, writer, later=set(kernel.nodes) - set(single))
        arrays = {}
        for node in held_columns(kernel, before, self.column):
            name = tile.name(f"{tile.word(node).removesuffix('_val')}_column")
            writer.line(f"{ELEMENT_TYPES[node.dtype]} {name}[{self.width}];", node.source)
            arrays[node] = name
        if not stores and not arrays:
            return
        columns = any(self.column in kernel.free[s.value] for s in stores) or any(
            self.column in e.symbols() for s in stores for e in s.index
        )
        if not columns and not arrays:  # nothing here depends on the column
            for store in stores:
                tile.store(store, writer)
            return
        with self.vector_loop(tile) as (inner, place):
            self.bind(inner, place)
            wanted = [s.value for s in stores] + list(arrays)
            inner.compute(kernel.closure(wanted, inner.values), writer, stores=stores, kept=arrays)
            for node, name in arrays.items():
                writer.line(f"{name}[{place}] = {inner.values[node].text};", node.source)
            for store in stores:
                inner.store(store, writer)
        self.held.update({n: from_memory(f"{name}[@]", n.dtype) for n, name in arrays.items()})

    def bind(self, scope: Scope, place: str) -> None:
        """Make what is held of every column known inside a loop over the columns."""
        for node, array in self.held.items():
            item = array.text.replace("@", place)
            text = item if "@" in array.text else f"{array.text}[{place}]"
            scope.values[node] = replace(array, text=text)
        scope.running = {node: item.at(place) for node, item in self.running.items()}

    @contextmanager
    def vector_loop(
        self, outer: Scope, plan: InnerLoop | None = None
    ) -> Iterator[tuple[Scope, str]]:
        """Open a vector loop over the tile's columns; yields its scope and the column's place.

        Args:
            outer: Around the loop.
            plan: How it runs; plainly if there is none.
        """
        kernel, writer, column = self.kernel, self.writer, self.column
        span, whole = (self.begin, self.end), self.plan.whole
        plan = plan or InnerLoop(column)
        marks, count = plan.marks, self.width
        with ExitStack() as stack:
            if plan.blocks:
                block = stack.enter_context(blocks(outer, writer, plan, span))
                span, count, marks = (block.first, block.end), LINE, block.marks
                bind = block.bind
            else:
                if plan.requests and whole:
                    write_requests(outer, writer, plan.requests, {column: self.begin}, self.width)
                bind = stack.enter_context(through_arrays(plan.staging, outer, writer, column))
            own = Marks(outer, marks, count)
            scope = Scope(kernel, outer)
            text = head(scope, column, *span)
            name = scope.axes[column]
            own.declare(writer)
            if kernel.may_thread:
                clause = " reduction(max : failed)" if kernel.checked else ""
                writer.directive(f"omp simd{clause}")
            with writer.block(text):
                own.set(writer, scope.offset(column, span[0]))
                bind(scope)
                yield scope, name if whole else f"{name} - {self.begin}"
            own.end(writer)

    # -- a pass -------------------------------------------------------------------------------

    def write_pass(self, tile: Scope, number: int) -> None:
        """Write one pass, and hold the results of its reductions."""
        step = self.steps.passes[number]
        chunk, split = self.plan.passes[number].chunk, self.plan.pieces is not None
        items = []
        for node in step.reductions:
            items.append(accumulator(tile, node, "column", total=chunk is not None or split))
        self.declare(items)
        self.start_scans(tile, number)
        if split:
            self.split_pass(tile, number, items)
        else:
            self.chunks(tile, number, items, {}, chunk)
        for item in items:
            # "@" stands for the place of the column.
            self.held[item.node] = item.at("@").result
        self.narrow(tile, [item for item in items if item.dtype != item.node.dtype])

    def start_scans(self, tile: Scope, number: int) -> None:
        """Declare the arrays of what the scans of a pass have so far."""
        nodes = [n for n in self.steps.passes[number].inside if isinstance(n, Scan)]
        self.running = running_values(nodes, tile.taken)
        for item in dict.fromkeys(self.running.values()):
            source = item.node.source
            arrays = declarations(item)
            for kind, name, _ in arrays:
                self.writer.line(f"{kind} {name}[{self.width}];", source)
            with self.writer.block(f"for (int64_t c = 0; c < {self.width}; ++c)"):
                for _, name, first in arrays:
                    self.writer.line(f"{name}[c] = {first};", source)

    def narrow(self, tile: Scope, items: Sequence[Accumulator]) -> None:
        """Convert totals once where every element of a later pass reads them."""
        for item in items:
            users = self.kernel.users.get(item.node, [])
            if item.is_index or not any(user in self.steps.elementwise for user in users):
                continue
            name, kind = tile.name(f"column_{item.node.kind}"), C_TYPES[item.node.dtype]
            self.writer.line(f"{kind} {name}[{self.width}];", item.node.source)
            with self.vector_loop(tile) as (_, place):
                self.writer.line(f"{name}[{place}] = {item.at(place).result.text};")
            self.held[item.node] = Expression(name)

    def declare(self, items: Sequence[Accumulator], *, pieces: str = "") -> None:
        """Declare the arrays of running results, at their first values."""
        for item in items:
            size = f"[{pieces}][{self.width}]" if pieces else f"[{self.width}]"
            first = identity(item.node, item.dtype)
            # A position starts from -1, even if the least value that goes with it is 0.
            zero = first in ("0", "0.0", "0.0f", "false") and not pieces and not item.index
            self.writer.line(
                f"{C_TYPES[item.dtype]} {item.place}{size}{' = {}' if zero else ''};",
                item.node.source,
            )
            if item.index:
                self.writer.line(f"int64_t {item.index}{size};", item.node.source)
            if not zero and not pieces:
                self.initialize([item])

    def initialize(self, items: Sequence[Accumulator]) -> None:
        """Set running results to their first values."""
        for item in items:
            first = identity(item.node, item.dtype)
            texts = [f"{item.place}[c] = {first};"]
            if item.index:
                texts.append(f"{item.index}[c] = -1;")
            with self.writer.block(f"for (int64_t c = 0; c < {self.width}; ++c)"):
                for text in texts:
                    self.writer.line(text, item.node.source)

    def chunks(
        self,
        scope: Scope,
        number: int,
        items: Sequence[Accumulator],
        spans: Mapping[Symbol, Span],
        chunk: int | None,
    ) -> None:
        """Write the loops over the rows, in chunks with sums of their own where rounding asks."""
        kernel, writer = self.kernel, self.writer
        if chunk is None:
            self.rows(scope, number, items, list(kernel.body.reduce_axes), spans)
            return
        axis = kernel.body.reduce_axes[0]
        begin, end = spans.get(axis, ("0", kernel.extent(axis)))
        inner = Scope(kernel, scope)
        first, last = inner.name(f"{axis.name}_chunk"), inner.name(f"{axis.name}_end")
        with writer.block(f"for (int64_t {first} = {begin}; {first} < {end}; {first} += {chunk})"):
            stop = kernel.at_most(f"{first} + {chunk}", end)
            writer.line(f"const int64_t {last} = {stop};")
            parts = []
            for item in items:
                own = item.dtype != item.node.dtype and not item.is_index
                parts.append(accumulator(inner, item.node, "chunk") if own else item)
            own_parts = [p for p, item in zip(parts, items, strict=True) if p is not item]
            self.declare(own_parts)
            here = {**spans, axis: (first, last)}
            self.rows(inner, number, parts, list(kernel.body.reduce_axes), here)
            with self.vector_loop(inner) as (_, place):
                for item, part in zip(items, parts, strict=True):
                    if item is not part:
                        merge(kernel, item.at(place), part.at(place), writer)

    def rows(
        self,
        scope: Scope,
        number: int,
        items: Sequence[Accumulator],
        axes: list[Symbol],
        spans: Mapping[Symbol, Span],
    ) -> None:
        """Write the loops over the rows; what does not depend on the column above the last."""
        kernel, writer = self.kernel, self.writer
        step = self.steps.passes[number]
        known = {*scope.values, *self.held, *self.there(number)}
        wanted = [n.args[0] for n in step.reductions] + [s.value for s in step.stores]
        nodes = kernel.closure(wanted, known)
        if not axes:
            with self.vector_loop(scope, self.plan.passes[number].loop) as (inner, place):
                self.bind(inner, place)
                self.bind_elements(inner, place, number)
                self.elements(inner, place, number, items)
            return
        level = [n for n in nodes if not kernel.free[n] & {*axes, self.column}]
        scope.compute(level, writer, later=set(kernel.nodes) - set(level))
        axis, *rest = axes
        inner = Scope(kernel, scope)
        with writer.block(head(inner, axis, *spans.get(axis, ()))):
            self.begin_row(inner, number)
            below = [n for n in nodes if not kernel.free[n] & {*rest, self.column}]
            inner.compute(below, writer, later=set(kernel.nodes) - set(below))
            self.rows(inner, number, items, rest, spans)

    def elements(self, scope: Scope, place: str, number: int, items: Sequence[Accumulator]) -> None:
        """Write what is done for one element."""
        kernel, writer = self.kernel, self.writer
        step = self.steps.passes[number]
        ends = {item.node for item in items if not item.is_index}
        named = {item.node.args[0] for item in items if item.is_index} | set(self.kept(number))
        wanted = [n.args[0] for n in step.reductions] + [s.value for s in step.stores]
        nodes = kernel.closure(wanted, scope.values)
        scope.compute(nodes, writer, ends=ends, stores=step.stores, named=named)
        for item in items:
            arg = item.node.args[0]
            if item.is_index:
                text = scope.values[arg].text
                take_position(item.at(place), text, position(scope, item.node), writer)
            else:
                take(kernel, item.at(place), scope.cast_to(arg, item.dtype), writer)
        for node in self.kept(number):
            self.keep(scope, node, place)
        for store in step.stores:
            self.put(scope, store, place)

    # -- pieces of the rows ---------------------------------------------------------------------

    def split_pass(self, tile: Scope, number: int, items: Sequence[Accumulator]) -> None:
        """Write a pass whose rows are shared among threads in pieces, combined in order."""
        kernel, writer = self.kernel, self.writer
        assert self.plan.pieces is not None
        pieces = kernel.tunable(self.plan.pieces)
        axis = kernel.body.reduce_axes[0]
        extent = kernel.extent(axis)
        long = self.plan.passes[number].chunk
        if axis.size is not None and axis.size.constant is not None and long is not None:
            long = None if -(-axis.size.constant // choices.PIECES) <= long else long
        parts = [accumulator(tile, item.node, "piece", total=long is not None) for item in items]
        self.declare(parts, pieces=pieces)
        if not self.rows_name:
            self.rows_name = tile.name("rows")
            each = f"({extent} + {pieces} - 1) / {pieces}"
            writer.line(f"const int64_t {self.rows_name} = {each};")
        inner = Scope(kernel, tile)
        step, piece = self.rows_name, inner.name("piece")
        loop = f"for (int64_t {piece} = 0; {piece} < {pieces}; ++{piece})"
        with shared_loops(kernel, writer, [loop], self.plan.sharing):
            first, last = inner.name(f"{axis.name}_begin"), inner.name(f"{axis.name}_end")
            writer.line(f"const int64_t {first} = {piece} * {step};")
            stop = kernel.at_most(f"{first} + {step}", extent)
            writer.line(f"const int64_t {last} = {stop};")
            mine = [part.at(piece) for part in parts]
            self.initialize(mine)
            self.chunks(inner, number, mine, {axis: (first, last)}, long)
        if not items:
            return
        all_pieces = writer.block(f"for (int64_t {piece} = 0; {piece} < {pieces}; ++{piece})")
        with all_pieces, self.vector_loop(inner) as (_, place):
            for item, part in zip(items, parts, strict=True):
                merge(kernel, item.at(place), part.at(piece).at(place), writer)


__all__ = ["ColumnWriter", "write_columns"]
