"""What the kernels of attention and of its gradients are written with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fusec.ir.body import Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Const, Dot, IndexValue, Load, Node, Reduce
from fusec.ir.walk import walk
from fusec.targets.triton.kernels.matmul import insert
from fusec.targets.triton.plan.choice import power_of_two
from fusec.targets.triton.plan.choices_attention import Listed
from fusec.targets.triton.plan.tiling import Dim, Tile
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import Text
from fusec.targets.triton.text.file import File
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.writer import Writer


class Tiles:
    """Writes the parts of a kernel that multiplies tiles of two rows, and tiles of what comes.

    Attributes:
        file: The file.
        batch: The loop over batches, or None.
        head: The loop over heads, or None.
        products: The products and sums whose results are known by name.
        over: The loop that a program runs over.
        wide: What makes an index as wide as positions need.
    """

    def __init__(
        self,
        file: File,
        batch: Symbol | None,
        head: Symbol | None,
        products: tuple[Reduce, ...],
        over: Symbol,
    ) -> None:
        self.file = file
        self.batch = batch
        self.head = head
        self.products = products
        self.over = over
        self.knobs = {knob.name: knob for knob in file.choice.knobs}
        self.wide = "" if file.index == "tl.int32" else f".to({file.index})"

    def extent(self, axis: Symbol) -> int:
        """Return a loop's length, which is known."""
        size = axis.size.constant if axis.size is not None else None
        assert size is not None
        return size

    def divides(self, name: str, size: Expr) -> bool:
        """Whether tiles of every width worth trying fit into a size without a rest."""
        knob = self.knobs[name]
        largest = max(*knob.choices, knob.value)
        return size.constant is not None and size.constant % largest == 0

    def outer_dims(self) -> list[Dim]:
        """Return the dimensions that say which batch and which head a program has."""
        found = []
        for axis, name in ((self.batch, "batch"), (self.head, "head")):
            if axis is not None:
                found.append(Dim(axis, axis.size or Expr.of(1), name, "", "", -1))
        return found

    def tile(self, *dims: Dim) -> Tile:
        """Return a tile with dimensions of its own."""
        return Tile(self.file.body, (*self.outer_dims(), *dims), None, 2)

    def places(self, outer: Block) -> list[str]:
        """Return the statements that say which batch and which head a program has."""
        if self.batch is None:
            return [] if self.head is None else ["head = pair"]
        if self.head is None:
            return ["batch = pair"]
        heads = outer.index(self.head.size or Expr.of(1))
        return [f"batch = pair // {heads}", f"head = pair % {heads}"]

    def insert_text(
        self,
        kernel: KernelWriter,
        text: str,
        pieces: Mapping[str, Writer],
        sources: Sequence[object],
    ) -> None:
        """Append a template's text, with generated statements in place of its names."""
        for line in text.splitlines():
            bare = line.strip()
            if not bare:
                continue
            kernel.writer.depth = (len(line) - len(line.lstrip())) // 4
            if bare.startswith("@"):
                insert(kernel.writer, pieces[bare[1:]])
            else:
                kernel.writer.line(bare, sources if "tl.dot(" in bare else ())  # type: ignore[arg-type]
        kernel.writer.depth = 0

    def lists(
        self, kernel: KernelWriter, listed: Listed, own: Symbol, extra: Sequence[Dim] = ()
    ) -> dict[str, object]:
        """Return what a template asks of a list of blocks.

        Args:
            kernel: The function.
            listed: The list.
            own: The loop whose rows a program has.
            extra: Dimensions that say which list it is, beside batch and head.
        """
        described: dict[str, object] = {}
        first = Symbol("first", "axis", own.size)
        dims = [Dim(first, first.size or Expr.of(1), "first", "", "", -1), *extra]
        block = Block(replace(kernel, tile=self.tile(*dims), writer=Writer()))
        moves = {own: Expr.of(first), listed.entry: Expr.of(0)}
        for what, load in (("count", listed.count), ("place", listed.place)):
            index = tuple(e.substitute(moves) for e in load.index)
            described[what] = block.pointer(load.buffer, index)[0]
        described["columns"] = listed.columns
        described["entries"] = self.entries(listed)
        return described

    def entries(self, listed: Listed) -> str:
        """Return the length of a list's tile: a power of two."""
        size = listed.entry.size or Expr.of(1)
        return "ENTRIES" if size.constant is None else str(power_of_two(size.constant))

    def list_constants(self, listed: Listed | None) -> list[tuple[str, str]]:
        """Return the constants that ``launch`` passes for lists whose length may change."""
        if listed is None or self.entries(listed) != "ENTRIES":
            return []
        size = self.file.host(listed.entry.size or Expr.of(1))
        return [("ENTRIES", f"triton.next_power_of_2({size})")]

    def operand(self, kernel: KernelWriter, load: Load, name: str, *dims: Dim) -> Writer:
        """Write the load of a tile, with zeros outside."""
        own = replace(kernel, tile=self.tile(*dims), writer=Writer(), names={})
        block = Block(own)
        address, along = block.pointer(load.buffer, load.index)
        masks = [dim.mask for dim in dims if dim.mask and dim in along]
        given = f", {' & '.join(masks)}, other=0.0" if masks else ""
        own.writer.line(f"{name} = tl.load({address}{given})", (load.source,))
        return own.writer

    def before(
        self, kernel: KernelWriter, roots: Sequence[Node], known: Mapping[Node, Text]
    ) -> tuple[Writer, Block]:
        """Write what does not depend on the loop, before the loop; return the known values."""
        own = replace(kernel, writer=Writer())
        block = Block(own)
        block.known.update(known)
        nodes = self.own_nodes(roots)
        own.free = {**kernel.free, **self.free_of(nodes)}
        own.relaxed = frozenset()
        still = [n for n in nodes if self.over not in own.free[n]]
        plain: set[Node] = {n for n in still if isinstance(n, Const | IndexValue)}
        plain |= {n for n in still if isinstance(n, Cast) and n.args[0] in plain}
        still = [n for n in still if n not in plain]
        users = [n for n in nodes if n not in still]
        asked = {a for n in users for a in n.args} | set(roots)
        wanted = [n for n in still if n in asked]
        block.must_name.update(wanted)
        needed = [n for n in walk(tuple(wanted), Reduce) if n in still or n in plain]
        block.write(needed, roots=wanted)
        kernel.taken = own.taken
        return own.writer, block

    def own_nodes(self, roots: Sequence[Node]) -> list[Node]:
        """Return what is computed of a score, arguments first, without the products themselves."""
        return [n for n in walk(tuple(roots), Reduce) if n not in self.products]

    def free_of(self, nodes: Sequence[Node]) -> dict[Node, frozenset[Symbol]]:
        """Return the axes that values depend on, those that were put together here too."""
        found: dict[Node, frozenset[Symbol]] = {}
        loops = frozenset((*self.file.body.axes, self.over))
        for node in nodes:
            axes = {s for e in node.exprs() for s in e.symbols() if s.kind == "axis"}
            for arg in node.args:
                if isinstance(
                    arg, Reduce
                ):  # a product, or a sum of what lies in the program's rows
                    axes |= loops if isinstance(arg, Dot) else loops - {self.over}
                else:
                    axes |= found.get(arg, frozenset())
            found[node] = frozenset(axes)
        return found

    def save(self, kernel: KernelWriter, store: Store, value: str) -> None:
        """Write a store of a program's rows."""
        block = Block(kernel)
        address, along = block.pointer(store.buffer, store.index)
        masks = [dim.mask for dim in block.ordered(along) if dim.mask]
        mask = f", {' & '.join(masks)}" if masks else ""
        if not any(dim.place >= 0 for dim in along):
            value = f"tl.sum({value}, 1)"  # one row: a block of one number
            address = f"{address} + tl.arange(0, 1)"
        kernel.writer.line(f"tl.store({address}, {value}{mask})", (store.source,))


def unlike(kernel: KernelWriter, others: Sequence[KernelWriter]) -> dict[Node, str]:
    """Return the names of other branches of a condition, if one has another type here.

    A name that is assigned in both branches has to have one type, shape included, in both.
    """
    own = _types(kernel)
    for other in others:
        theirs = _types(other)
        if any(own[name] != theirs[name] for name in own.keys() & theirs.keys()):
            return {node: name for each in others for node, name in each.names.items()}
    return {}


def _types(kernel: KernelWriter) -> dict[str, tuple[frozenset[Dim], torch.dtype]]:
    """Return the dimensions and the type of what each name stands for."""
    return {
        name: (kernel.node_dims(node), node.dtype)
        for node, name in kernel.names.items()
        if node in kernel.free
    }


__all__ = ["Tiles", "unlike"]
