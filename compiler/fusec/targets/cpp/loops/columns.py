"""Column reductions: the reduced axes are not the fastest in memory.

A tile of neighboring columns is reduced side by side: the loop over the rows is outside, the
vector loop over the columns inside, and every column has its element in an array of running
results.  Threads share the tiles, or, where there are few of them, pieces of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from fusec.ir.body import Store, axis_sizes
from fusec.ir.index import Symbol, product
from fusec.ir.node import Cast, Load, Node, Op, Reduce, Scan
from fusec.ir.ops import CHECK_PREFIX
from fusec.targets.cpp.loops.cache_blocks import blocks, in_blocks, is_even
from fusec.targets.cpp.loops.loop_heads import head, may_thread, shared_loops
from fusec.targets.cpp.loops.rows import Span
from fusec.targets.cpp.memory.prefetch import LINE, Request, column_requests, write_requests
from fusec.targets.cpp.memory.staging import Staging
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.row_passes import plan_steps
from fusec.targets.cpp.text.dtypes import C_TYPES, ELEMENT_TYPES
from fusec.targets.cpp.text.expressions import Expression, from_memory
from fusec.targets.cpp.text.reductions import (
    Accumulator,
    accumulator,
    identity,
    is_real_sum,
    merge,
    position,
    take,
    take_position,
)
from fusec.targets.cpp.text.scans import Running, declarations, running_values
from fusec.targets.cpp.text.scope import Kernel, Scope
from fusec.targets.cpp.text.writer import Writer
from fusec.targets.cpp.vector.interleave import Marks, mark_type


def write_columns(kernel: Kernel, scope: Scope, writer: Writer, column: Symbol) -> None:
    """Write a body whose reductions run beside each other along ``column``."""
    Columns(kernel, scope, writer, column).write()


class Columns:
    """Writes the passes over a tile of columns.

    Attributes:
        held: Node to the array that has its value for every column of the tile.
        running: Scan of the current pass to the array of what it has so far.
    """

    def __init__(
        self,
        kernel: Kernel,
        scope: Scope,
        writer: Writer,
        column: Symbol,
        width: int = 0,
        among: Sequence[int] = choices.COLUMN_CHOICES,
    ) -> None:
        self.kernel = kernel
        self.scope = scope
        self.writer = writer
        self.column = column
        self.steps = plan_steps(kernel, keep=False)
        self.held: dict[Node, Expression] = {}
        self.running: dict[Scan, Running] = {}
        self.rows_name = ""
        self.others = [axis for axis in kernel.body.axes if axis is not column]
        extent = column.size.constant if column.size is not None else 1
        rows = product(axis_sizes(kernel.body.reduce_axes)).constant
        if not width:
            scans = kernel.body.scans()
            width = choices.SCAN_COLUMNS if scans else choices.tile_columns(extent, rows)
        self.whole = extent is not None and extent <= width
        self.even = extent is not None and extent % width == 0
        if self.whole:
            self.width = str(max(extent or 1, 1))
        else:
            among = [n for n in among if not self.even or (extent or 0) % n == 0]
            self.width = kernel.tunable("COLUMNS", width, among, "columns reduced side by side")
        if self.even and not self.whole:
            # Then every tile is full, and the compiler knows how long the vector loops are.
            kernel.asserts.append(
                f'static_assert({extent} % COLUMNS == 0, "COLUMNS must divide {extent}");'
            )
        tiles = 1 if self.whole else None if extent is None else -(-extent // width)
        points = product(axis_sizes(tuple(self.others))).constant
        units = None if tiles is None or points is None else tiles * points
        work = product(axis_sizes(kernel.body.axes + kernel.body.reduce_axes)).constant
        ordered = all(not n.kind.startswith("arg") for s in self.steps.passes for n in s.reductions)
        ordered = ordered and not kernel.body.scans()
        self.split = may_thread(kernel) and ordered and choices.split_rows(units, work, rows)

    def write(self) -> None:
        """Write the loops over the tiles and all that is in them."""
        kernel, writer = self.kernel, self.writer
        tile = Scope(kernel, self.scope)
        heads = [head(tile, axis) for axis in self.others]
        extent = kernel.extent(self.column)
        self.begin, self.end = "0", extent
        if not self.whole:
            self.begin = tile.name(f"{self.column.name}_tile")
            loop = f"for (int64_t {self.begin} = 0; {self.begin} < {extent};"
            heads.append(f"{loop} {self.begin} += {self.width})")
        with shared_loops(kernel, writer, heads, alone=self.split):
            last = f"{self.begin} + {self.width}"
            if self.even and not self.whole:
                self.end = last
            elif not self.whole:
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
        # What a later loop needs of every column is held in an array; loads are done again.
        group = set(before)
        arrays = {}
        for node in before:
            users = kernel.users.get(node, [])
            if node in single or all(user in group for user in users):
                continue
            again = isinstance(node, Load) and node.buffer not in kernel.updated
            check = isinstance(node, Op) and node.name.startswith(CHECK_PREFIX)
            if isinstance(node, Load | Op | Cast) and not again and not check:
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
            inner.compute(kernel.closure(wanted, inner.values), writer, stores=stores, named=arrays)
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
        self, outer: Scope, requests: Sequence[Request] = (), nodes: Sequence[Node] = ()
    ) -> Iterator[tuple[Scope, str]]:
        """Open a vector loop over the tile's columns; yields its scope and the column's place.

        Args:
            outer: Around the loop.
            requests: What it asks the memory for.
            nodes: What it computes.
        """
        kernel, writer, column = self.kernel, self.writer, self.column
        span = (self.begin, self.end)
        full = self.whole or self.even
        kind = mark_type(nodes) if full and not kernel.checked and may_thread(kernel) else ""
        marks, count = kind, self.width
        with ExitStack() as stack:
            inside = [node for node in kernel.nodes if column in kernel.free[node]]
            if requests and in_blocks(column, inside):
                even = (self.whole or self.even) and is_even(column)
                loop = blocks(
                    outer, writer, column, span, requests, Staging(), even=even, marks=kind
                )
                first, last, _, marks = stack.enter_context(loop)
                span, count = (first, last), LINE
            elif requests and self.whole:
                write_requests(outer, writer, requests, {column: self.begin}, self.width)
            own = Marks(outer, marks, count)
            scope = Scope(kernel, outer)
            text = head(scope, column, *span)
            name = scope.axes[column]
            own.declare(writer)
            if may_thread(kernel):
                clause = " reduction(max : failed)" if kernel.checked else ""
                writer.directive(f"omp simd{clause}")
            with writer.block(text):
                own.set(writer, f"{name} - {span[0]}")
                yield scope, name if self.whole else f"{name} - {self.begin}"
            own.end(writer)

    # -- a pass -------------------------------------------------------------------------------

    def write_pass(self, tile: Scope, number: int) -> None:
        """Write one pass, and hold the results of its reductions."""
        step = self.steps.passes[number]
        chunk = self.row_chunk(number)
        items = []
        for node in step.reductions:
            items.append(accumulator(tile, node, "column", total=chunk is not None or self.split))
        self.declare(items)
        self.start_scans(tile, number)
        if self.split:
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

    def row_chunk(self, number: int) -> int | None:
        """Return how many steps of the outermost reduced axis one float sum runs over."""
        if not any(is_real_sum(node) for node in self.steps.passes[number].reductions):
            return None
        outer, *rest = self.kernel.body.reduce_axes
        inner = product(axis_sizes(tuple(rest))).constant or choices.ROW_CHUNK // 16
        chunk = max(1, choices.ROW_CHUNK // inner)
        size = outer.size.constant if outer.size is not None else 1
        return None if size is not None and size <= chunk else chunk

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
            with self.vector_loop(scope, self.requests(number), nodes) as (inner, place):
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

    def requests(self, number: int) -> tuple[Request, ...]:
        """Return what a pass asks the memory for."""
        if not may_thread(self.kernel):
            return ()
        width = int(self.width) if self.whole else None
        return column_requests(self.kernel, self.steps, number, self.column, width)

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
        pieces = kernel.tunable(
            "PIECES",
            choices.PIECES,
            choices.PIECE_CHOICES,
            "parts of the rows for threads to share",
        )
        axis = kernel.body.reduce_axes[0]
        extent = kernel.extent(axis)
        long = self.row_chunk(number)
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
        with shared_loops(
            kernel, writer, [f"for (int64_t {piece} = 0; {piece} < {pieces}; ++{piece})"]
        ):
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


def column_axis(kernel: Kernel) -> Symbol | None:
    """Return the outer axis along which to vectorize, where that beats the reduced axes."""
    reads = [
        load for load in kernel.body.loads() if kernel.free[load] & set(kernel.body.reduce_axes)
    ]
    votes: dict[Symbol, int] = {}
    last = kernel.body.reduce_axes[-1]
    for load in reads:
        buffer = kernel.buffers[load.buffer]
        offset = buffer.offset(load.index)
        for axis in (*kernel.body.axes, last):
            if offset.is_affine_in(axis) and offset.coefficient(axis) == 1:
                count = len(kernel.free[load])
                votes[axis] = votes.get(axis, 0) + count * buffer.dtype.itemsize
    own = votes.pop(last, 0)
    if not votes:
        return None
    best = max(votes, key=lambda axis: votes[axis])
    beside = all(best in kernel.free[n] for n in kernel.nodes if isinstance(n, Reduce | Scan))
    return best if beside and votes[best] > own else None


__all__ = ["column_axis", "write_columns"]
