"""Reductions of many short rows: as many rows side by side as fill vectors.

A row of a few dozen elements is two or three vectors, and adding up the lanes of one, waiting for
an exponential's last step or a logarithm of one number takes longer than all the rest.  So a tile
of rows is turned over into a small array, where the rows are columns; they are reduced beside each
other as columns are, and what is written goes through an array of its own and is turned back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from fusec.codegen.common.c_language import Expression
from fusec.ir.body import Store
from fusec.ir.index import Expr
from fusec.ir.node import Load, Node
from fusec.targets.cpp.dtypes import C_TYPES, ELEMENT_TYPES
from fusec.targets.cpp.loops.columns import ColumnWriter
from fusec.targets.cpp.plan.columns import axes_of, is_of_both, row_step, turned_over
from fusec.targets.cpp.plan.facts import extent
from fusec.targets.cpp.plan.loop_plan import Columns
from fusec.targets.cpp.text.expressions import from_memory
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.writer import Writer


def write_narrow(kernel: KernelWriter, plan: Columns, scope: Scope, writer: Writer) -> None:
    """Write a body whose short rows are reduced side by side."""
    ShortRowWriter(kernel, plan, scope, writer).write()


class ShortRowWriter(ColumnWriter):
    """Writes the passes over a tile of rows that are columns in the arrays.

    Attributes:
        point: The reduced axis.
        loads: Load to the array that has it turned over.
        written: Store to the array that is turned back.
        arrays: Value that later passes need to the array that has it.
    """

    def __init__(self, kernel: KernelWriter, plan: Columns, scope: Scope, writer: Writer) -> None:
        super().__init__(kernel, plan, scope, writer)
        self.point = kernel.body.reduce_axes[0]
        points = extent(self.point)
        assert points is not None
        self.points = points
        self.loads: dict[Load, str] = {}
        self.written: dict[Store, str] = {}
        self.arrays: dict[Node, str] = {}
        self.overwritten: set[tuple[int, str]] = set()
        self.tile = scope

    def begin_tile(self, tile: Scope) -> None:
        """Write the arrays, and turn over what is read."""
        self.tile = tile
        free: dict[str, tuple[str, int]] = {}  # array to its type and the last pass that reads it
        for load in turned_over(self.kernel, self.column):
            dtype = self.kernel.buffers[load.buffer].dtype
            tile.use_type(dtype)
            self.loads[load] = self.array(tile, load.buffer, dtype, load)
            corner, step = self.corner(tile, load.buffer, load.index)
            self.turn(dtype, (self.loads[load], self.width), (corner, step), load)
        for load, name in self.loads.items():
            kind, last = ELEMENT_TYPES[self.kernel.buffers[load.buffer].dtype], self.last_use(load)
            free[name] = (kind, max(last, free[name][1] if name in free else 0))
        for node in self.steps.kept:
            if isinstance(node, Load):
                continue  # in an array already
            kind = ELEMENT_TYPES[node.dtype]
            name = self.reuse(free, kind, self.steps.first[node])
            if not name:
                name = tile.name(f"{tile.word(node).removesuffix('_val')}_kept")
                sides = f"[{self.points}][{self.width}]"
                self.writer.line(f"alignas(64) {kind} {name}{sides};", node.source)
            self.arrays[node] = name
            free[name] = (kind, self.last_use(node))
        for store in self.kernel.body.stores:
            if is_of_both(axes_of(store), self.column, self.point):
                dtype = self.kernel.buffers[store.buffer].dtype
                tile.use_type(dtype)
                name = self.reuse(free, ELEMENT_TYPES[dtype], self.pass_of(store))
                self.written[store] = name or self.array(tile, store.buffer, dtype, store.value)

    def last_use(self, node: Node) -> int:
        """Return the last pass that reads what an array has of ``node``."""
        passes = enumerate(self.steps.passes)
        return max((number for number, step in passes if node in step.inside), default=0)

    def pass_of(self, store: Store) -> int:
        """Return the pass that writes ``store``."""
        passes = enumerate(self.steps.passes)
        return next(number for number, step in passes if store in step.stores)

    def reuse(self, free: dict[str, tuple[str, int]], kind: str, number: int) -> str:
        """Return an array, taken out of ``free``, that pass ``number`` may write over.

        An element is read before it is written, by no later pass, and by no other turn of a loop;
        with fewer arrays, a tile and its neighbors stay in the first-level cache.
        """
        for name, (type_, last) in free.items():
            if type_ == kind and last <= number:
                del free[name]
                self.overwritten.add((number, name))
                return name
        return ""

    def begin_row(self, scope: Scope, number: int) -> None:
        """Ask for a part of the next tile, and of what this tile is going to write."""
        if number != self.plan.busiest or self.plan.whole:
            return
        turn, asked = scope.axes[self.point], set()
        for load in self.loads:
            corner, step = self.corner(self.tile, load.buffer, load.index)
            if step == str(self.points) and corner not in asked:  # the tile is one stretch
                asked.add(corner)
                self.kernel.use("prefetch")
                place = f"{corner} + ({self.points} + {turn}) * {self.width}"
                self.writer.line(f"prefetch<{self.width}>({place});", load.source)
        for store in self.written:
            corner, step = self.corner(self.tile, store.buffer, store.index)
            if step == str(self.points):
                self.kernel.use("prefetch_to_write")
                soon = self.pass_of(store) > number  # else this tile's turn came already
                place = turn if soon else f"({self.points} + {turn})"
                place = f"{corner} + {place} * {self.width}"
                self.writer.line(f"prefetch_to_write<{self.width}>({place});", store.source)

    def array(self, tile: Scope, buffer: str, dtype: torch.dtype, node: Node) -> str:
        """Declare an array; return its name."""
        name = tile.name(f"{self.kernel.names[buffer]}_turned")
        sides = f"[{self.points}][{self.width}]"
        self.writer.line(f"alignas(64) {ELEMENT_TYPES[dtype]} {name}{sides};", node.source)
        return name

    def corner(self, tile: Scope, buffer: str, index: tuple[Expr, ...]) -> tuple[str, str]:
        """Return the first element of the tile in a buffer, and how far apart its rows are."""
        first = Scope(self.kernel, tile)
        first.axes.update({self.column: self.begin, self.point: "0"})
        start = tuple(e.substitute({self.point: Expr.of(0)}) for e in index)
        step = row_step(self.kernel, buffer, index, self.column)
        assert step is not None
        return f"&{first.element(buffer, start)}", tile.index(step)

    def turn(
        self,
        dtype: torch.dtype,
        array: tuple[str, str],
        memory: tuple[str, str],
        node: Node,
        *,
        back: bool = False,
    ) -> None:
        """Write the copy between an array and the memory."""
        name, width = array
        count = self.width if self.plan.even or self.plan.whole else f"{self.end} - {self.begin}"
        self.kernel.use(f"turn_over.{dtype.itemsize}")
        sides = [f"&{name}[0][0], {width}", f"{memory[0]}, {memory[1]}"]
        extents = [str(self.points), count]
        if back:
            sides, extents = sides[::-1], extents[::-1]
        function = f"turn_over_{dtype.itemsize * 8}"
        self.writer.line(f"{function}({', '.join([*sides, *extents])});", node.source)

    def end_pass(self, tile: Scope, stores: Sequence[Store]) -> None:
        """Turn back what the pass wrote."""
        for store in stores:
            if store in self.written:
                place = self.corner(tile, store.buffer, store.index)
                dtype = self.kernel.buffers[store.buffer].dtype
                array = (self.written[store], self.width)
                self.turn(dtype, array, place, store.value, back=True)

    def there(self, number: int) -> Collection[Node]:
        """Return the loads, and what earlier passes kept."""
        return [*self.loads, *(n for n in self.arrays if self.steps.first[n] < number)]

    def kept(self, number: int) -> Collection[Node]:
        """Return the values that a pass computes and later ones need."""
        return [node for node in self.arrays if self.steps.first[node] == number]

    def bind_elements(self, scope: Scope, place: str, number: int) -> None:
        """Make what is in the arrays known inside the loops of a pass."""
        for node in self.there(number):
            name = self.loads[node] if isinstance(node, Load) else self.arrays[node]
            value = from_memory(self.element(scope, name, place), node.dtype)
            if (number, name) in self.overwritten and node in self.steps.passes[number].inside:
                own = scope.name(scope.word(node))  # read before anything is written there
                self.writer.line(f"const {C_TYPES[node.dtype]} {own} = {value.text};", node.source)
                value = Expression(own)
            scope.values[node] = value

    def keep(self, scope: Scope, node: Node, place: str) -> None:
        """Write one element of what is kept."""
        target = self.element(scope, self.arrays[node], place)
        self.writer.line(f"{target} = {scope.values[node].text};", node.source)

    def element(self, scope: Scope, array: str, place: str) -> str:
        """Return an element of an array."""
        return f"{array}[{scope.axes[self.point]}][{place}]"

    def put(self, scope: Scope, store: Store, place: str) -> None:
        """Write the store of an element into its array, if it has one."""
        if store not in self.written:
            super().put(scope, store, place)
            return
        target = self.element(scope, self.written[store], place)
        self.writer.line(f"{target} = {scope.values[store.value].text};", store.source)


__all__ = ["write_narrow"]
