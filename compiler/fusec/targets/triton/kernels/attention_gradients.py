"""The gradients of attention: a template around what the user's functions make of scores.

A program has rows of queries and runs along the keys, or the other way round; then all tiles are
turned, so that no product has to turn one.  ``templates/attention_gradients.py.j2`` has the loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusec.ir.body import Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node, Reduce, indirect_nodes
from fusec.ir.walk import walk
from fusec.targets.triton.kernels.attention_tiles import Tiles
from fusec.targets.triton.plan.attention_gradients import Gradients, Total
from fusec.targets.triton.plan.choice import power_of_two
from fusec.targets.triton.plan.choices_attention import Listed
from fusec.targets.triton.plan.tiling import Dim, index_guards
from fusec.targets.triton.rewrite.score_patterns import quicken, relaxed
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import Text, triton_type
from fusec.targets.triton.text.file import File, add_function
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.templates import template
from fusec.targets.triton.text.writer import Writer

# What the template itself calls its values.
TEMPLATE_NAMES = frozenset(
    "program tiles tile group height pair batch head first depth depth_inside width width_inside "
    "ENTRIES blocks block done entry listed apart until end start member score of_weight "
    "query key value gradient out row_sum of_query of_key of_value "
    "queries q_row q_idx q_inside q_row_inside keys kv_row kv_idx kv_inside kv_row_inside".split()
)


@dataclass(frozen=True)
class _Side:
    """What the template calls the queries, or the keys.

    Attributes:
        axis: Their loop.
        lines: The vector of their places.
        down: Places along the rows of a tile.
        across: Places along its columns.
        inside: What says which are inside, in either direction.
        block: How many there are in a tile.
        masked: Whether a tile may reach beyond the last one.
    """

    axis: Symbol
    lines: str
    down: str
    across: str
    inside: tuple[str, str]
    block: str
    masked: bool

    def dim(self, down: bool) -> Dim:
        """Return the dimension of a tile."""
        mask = self.inside[0 if down else 1] if self.masked else ""
        name = self.down if down else self.across
        return Dim(self.axis, self.axis.size or Expr.of(1), name, self.block, mask, 1 - down)


@dataclass(frozen=True)
class Part:
    """One loop: its name in the template, its blocks, what is multiplied."""

    name: str
    listed: Listed | None
    roots: tuple[Node, ...]
    comment: str = ""


def write(file: File, found: Gradients) -> None:
    """Write the kernel of gradients of attention."""
    GradientsWriter(file, found).write()


class GradientsWriter(Tiles):
    """Writes the kernels of gradients: what others of their kind share, too."""

    def __init__(self, file: File, found: Gradients) -> None:
        products = (found.score, found.of_weight)
        sums = () if found.row_sum is None else (found.row_sum,)
        super().__init__(file, found.batch, found.head, (*products, *sums), found.over)
        self.found = found
        own = self.side(found.own, keys=found.by_keys, down=True)
        self.own = own
        self.across = self.side(found.over, keys=not found.by_keys, down=False)
        depth, width = (self.extent(p.axes[0]) for p in products)
        self.depth, self.width = (max(power_of_two(size), 16) for size in (depth, width))
        self.depth_mask = "depth_inside" if self.depth != depth else ""
        self.width_mask = "width_inside" if self.width != width else ""

    def side(self, axis: Symbol, keys: bool, down: bool) -> _Side:
        """Return what queries or keys are called; a program's own have the plain name."""
        block = "BLOCK_N" if keys else "BLOCK_M"
        masked = not self.divides(block, axis.size or Expr.of(1))
        short, lines = ("kv", "keys") if keys else ("q", "queries")
        names = (f"{short}_idx", f"{short}_idx") if down else (f"{short}_row", f"{short}_idx")
        inside = tuple(name.replace("_idx", "") + "_inside" for name in names)
        return _Side(axis, lines, *names, (inside[0], inside[1]), block, masked)

    def write(self) -> None:
        """Write the kernel."""
        file, found = self.file, self.found
        size, pairs = file.host(found.own.size or Expr.of(1)), file.host(found.pairs)
        tiles = f"triton.cdiv({size}, {self.own.block})" + ("" if pairs == "1" else f" * {pairs}")
        constants = [(knob.name, knob.name) for knob in file.knobs]
        constants += self.list_constants(found.partial)
        kernel = self.kernel(file.name)
        self.fill(kernel)
        add_function(file, kernel, file.name, [tiles], constants, pipelined=True)

    def kernel(self, name: str) -> KernelWriter:
        """Return the function to write, over tiles of scores."""
        kernel = self.file.new_kernel(name, self.file.body, self.tile())
        kernel.taken.update(TEMPLATE_NAMES)
        kernel.tile = self.tile(*self.members(), self.own.dim(True), self.across.dim(False))
        return kernel

    def members(self) -> list[Dim]:
        """Return the dimension of heads that share keys."""
        member = self.found.member
        return (
            [] if member is None else [Dim(member, member.size or Expr.of(1), "member", "", "", -1)]
        )

    def column(self, axis: Symbol, width: bool) -> Dim:
        """Return the dimension along a row of queries and keys, or of values."""
        if width:
            name, block, mask = "width", self.width, self.width_mask
        else:
            name, block, mask = "depth", self.depth, self.depth_mask
        return Dim(axis, axis.size or Expr.of(1), name, str(block), mask, 1)

    # -- the function -----------------------------------------------------------------------

    def fill(self, kernel: KernelWriter) -> None:
        """Write the function's body: the template, with generated statements in it."""
        found, outer = self.found, Block(kernel)
        names, pieces = self.tiles(kernel)
        parts = self.parts()
        roots = [root for part in parts for root in self.quickened(part.roots)]
        roots += self.places_of_captured()
        known: dict[Node, Text] = {}
        if found.common is not None and found.row_sum is not None:
            roots.append(found.common.value)
            known[found.row_sum] = Text("row_sum")
        pieces["before"], before = self.before(kernel, roots, known)
        described = [self.part(kernel, part, before, names, pieces) for part in parts]
        pieces["epilogue"] = self.epilogue(kernel, before)
        exact = self.exact()
        mine, theirs = (0, 1) if not found.by_keys else (1, 0)
        products = [
            f"tl.dot({names[p.args[mine]]}, {names[p.args[theirs]]}.T{exact})"
            for p in (found.score, found.of_weight)
        ]
        over, own = self.across, self.own
        text = template("attention_gradients").render(
            own={
                "size": outer.index(own.axis.size or Expr.of(1)),
                "block": own.block,
                "down": own.down,
                "mask": own.inside[0] if own.masked else "",
            },
            over={
                "size": outer.index(over.axis.size or Expr.of(1)),
                "block": over.block,
                "lines": over.lines,
                "down": over.down,
                "across": over.across,
                "down_mask": over.inside[0],
                "mask": over.inside[1] if over.masked else "",
            },
            by_keys=found.by_keys,
            pairs=outer.index(found.pairs),
            places=self.places(outer),
            wide=self.wide,
            depth=self.depth,
            depth_mask=self.depth_mask,
            depth_size=self.extent(found.score.axes[0]),
            width=self.width,
            width_mask=self.width_mask,
            width_size=self.extent(found.of_weight.axes[0]),
            same=self.depth == self.width,
            totals=[
                {"name": self.name(t), "columns": self.width if self.wide_rows(t) else self.depth}
                for t in found.totals
            ],
            members="" if found.member is None else outer.index(found.member.size or Expr.of(1)),
            loops=described,
            score=products[0],
            of_weight=products[1],
        )
        self.insert_text(kernel, text, pieces, (found.score.source,))

    def exact(self) -> str:
        """Return what a product of float32 is told, so that it is as exact as its operator."""
        score = self.found.score
        itemsize = score.args[0].dtype.itemsize
        return f', input_precision="{score.precision}"' if itemsize > 2 else ""

    def name(self, total: Total) -> str:
        """Return what a gradient is called."""
        if not self.found.by_keys:
            return "of_query"
        return "of_value" if self.wide_rows(total) else "of_key"

    def wide_rows(self, total: Total) -> bool:
        """Whether a gradient's rows are those of values."""
        return self.found.by_keys and self.found.of_weight not in walk((total.root,))

    def tiles(self, kernel: KernelWriter) -> tuple[dict[Node, str], dict[str, Writer]]:
        """Write the loads of all tiles; return their names, and the statements."""
        found = self.found
        names: dict[Node, str] = {}
        rows, tiles = Writer(), Writer()
        for product, left, right in (
            (found.score, "query", "key"),
            (found.of_weight, "gradient", "value"),
        ):
            for load, name in zip(product.args, (left, right), strict=True):
                assert isinstance(load, Load)
                names[load] = name
                wide = product is found.of_weight
                mine = (name in ("key", "value")) == found.by_keys
                side = self.own if mine else self.across
                dims = (side.dim(True), self.column(product.axes[0], wide))
                piece = self.operand(kernel, load, name, *self.members(), *dims)
                target = rows if mine else tiles
                target.lines += piece.lines
        if found.row_sum is not None:
            self.sum_rows(kernel, rows)
        return names, {"rows": rows, "tiles": tiles}

    def sum_rows(self, kernel: KernelWriter, writer: Writer) -> None:
        """Write the sum of a row's result times its gradient."""
        row_sum, gradient = self.found.row_sum, self.found.of_weight.args[0]
        assert row_sum is not None
        (out,) = (n for n in walk(row_sum.args) if isinstance(n, Load) and n is not gradient)
        dims = (self.own.dim(True), self.column(self.found.of_weight.axes[0], True))
        writer.lines += self.operand(kernel, out, "out", *dims).lines
        product = "out.to(tl.float32) * gradient.to(tl.float32)"
        writer.line(f"row_sum = tl.sum({product}, 1, keep_dims=True)", (row_sum.source,))

    def parts(self) -> list[Part]:
        """Return the loops: over listed blocks, or over all."""
        found = self.found
        if found.partial is None:
            return [Part("masked", None, found.roots(masked=True))]
        comment = "blocks that the mask keeps in part"
        parts = [Part("masked", found.partial, found.roots(masked=True), comment)]
        if found.full is not None:
            comment = "blocks that the mask keeps whole"
            parts.insert(0, Part("whole", found.full, found.roots(masked=False), comment))
        return parts

    def quickened(self, roots: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return what is multiplied, in cheaper steps where all is rounded."""
        return quicken(roots) if self.found.quick else roots

    def part(
        self,
        kernel: KernelWriter,
        part: Part,
        before: Block,
        names: dict[Node, str],
        pieces: dict[str, Writer],
    ) -> dict[str, object]:
        """Write what becomes of a score; return what the template asks of the loop."""
        found = self.found
        described: dict[str, object] = {"name": part.name, "count": "", "comment": part.comment}
        if part.listed is not None:
            described |= self.lists(kernel, part.listed, found.own, self.members())
        roots, places = self.quickened(part.roots), self.places_of_captured()
        own = replace(
            kernel, writer=Writer(), names=dict(before.kernel.names), taken=set(kernel.taken)
        )
        nodes = self.own_nodes([*roots, *places])
        own.free = {**kernel.free, **self.free_of(nodes)}
        own.relaxed = self.relaxed(roots)
        block = Block(own, before)
        block.known[found.score] = Text("score")
        # what does not need the second product comes first, and is multiplied at once
        later = {n for n in nodes if found.of_weight in walk((n,))}
        early = [n for n in nodes if n not in later]
        asked = {a for n in later for a in n.args if a in early}
        asked |= {root for root in (*roots, *places) if root not in later}
        wanted = [n for n in early if n in asked]
        block.must_name.update(n for n in wanted if n not in block.known)
        block.write(early, roots=wanted)
        lines: dict[bool, list[str]] = {True: [], False: []}
        for total, root in zip(found.totals, roots, strict=False):
            if root not in later:
                lines[True].append(self.add(own, block, total, root, names))
        pieces[f"{part.name}_weights"] = own.writer
        own.writer = Writer()
        block.known[found.of_weight] = Text("of_weight")
        roots_after = [root for root in roots if root in later]
        block.must_name.update(roots_after)
        block.write([n for n in nodes if n in later], roots=roots_after)
        for store, root in zip(found.captured, roots, strict=False):
            self.add_captured(own, block, store, root)
        for total, root in zip(found.totals, roots, strict=False):
            if root in later:
                lines[False].append(self.add(own, block, total, root, names))
        pieces[f"{part.name}_scores"] = own.writer
        described["early"], described["late"] = lines[True], lines[False]
        return described

    def relaxed(self, roots: Sequence[Node]) -> frozenset[Node]:
        """Return the values that quick instructions may compute, for all that needs them."""
        if not self.found.quick:
            return frozenset()
        found = [relaxed(self.file.body, root) for root in roots]
        below = [frozenset(walk((root,), Reduce)) for root in roots]
        strict = frozenset().union(*(b - f for b, f in zip(below, found, strict=True)))
        return frozenset().union(*found) - strict

    def add(
        self, kernel: KernelWriter, block: Block, total: Total, root: Node, names: dict[Node, str]
    ) -> str:
        """Return the statement that adds a step's products to a gradient."""
        text = block.value(root).source
        if self.across.masked:
            text = f"tl.where({self.across.inside[1]}, {text}, 0.0)"
        if total.operand.dtype.itemsize == 2:
            text = f"{text}.to({triton_type(total.operand.dtype)})"
        name = self.name(total)
        operand = self.operand_of(total, names)
        return f"{name} = tl.dot({text}, {operand}, {name}{self.exact()})"

    def places_of_captured(self) -> list[Node]:
        """Return what says where captured tensors' gradients are added to."""
        indices = [store.index for store in self.found.captured]
        found = [node for index in indices for node in indirect_nodes(index)]
        return found + [guard for index in indices for guard in index_guards(index)]

    def add_captured(self, kernel: KernelWriter, block: Block, store: Store, root: Node) -> None:
        """Write what is added to the gradient of a captured tensor.

        A place that is the same all along a tile is added to once: atomic updates of one number
        wait for each other.
        """
        address, along = block.pointer(store.buffer, store.index)
        guards = [block.value(guard).source for guard in index_guards(store.index)]
        for guard in index_guards(store.index):
            along |= kernel.node_dims(guard)
        sides = (self.own.dim(True), self.across.dim(False))
        places = {dim.place for dim in along}
        masks = [side.mask for side in sides if side.mask]
        value, source = block.value(root).source, (store.source,)
        if masks:
            value = f"tl.where({' & '.join(masks)}, {value}, 0.0)"
        summed = [side.place for side in sides if side.place not in places]
        if len(summed) == 2:
            value = f"tl.sum({value})"
        elif summed:
            value = f"tl.sum({value}, {summed[0]}, keep_dims=True)"
        name = kernel.name("added")
        kernel.writer.line(f"{name} = {value}", source)
        kept = [f"({name} != 0)", *(f"({guard})" for guard in guards)]
        mask = " & ".join(kept + [s.mask for s in sides if s.mask and s.place in places])
        shape = [str(side.block) if side.place in places else "1" for side in sides]
        if places & {0, 1}:
            address = f"tl.broadcast_to({address}, ({', '.join(shape)}))"
        kernel.writer.line(f'tl.atomic_add({address}, {name}, mask={mask}, sem="relaxed")', source)

    def operand_of(self, total: Total, names: dict[Node, str]) -> str:
        """Return the name of the tile that a gradient's products have on their right."""
        for load, name in names.items():
            assert isinstance(load, Load)
            same = load.buffer == total.operand.buffer
            if same and load.index[:-1] == total.operand.index[:-1]:
                mine = (name in ("key", "value")) == self.found.by_keys
                if not mine:
                    return name
        raise AssertionError("a gradient multiplies what the loop does not have")

    def epilogue(self, kernel: KernelWriter, before: Block) -> Writer:
        """Write the gradients of a program's rows."""
        writer, common = Writer(), self.found.common
        if common is not None:
            own = replace(kernel, tile=self.tile(self.own.dim(True)), writer=writer)
            self.save(own, common, before.value(common.value).source)
        for total in self.found.totals:
            name = self.name(total)
            column = self.column(total.column, self.wide_rows(total))
            own = replace(kernel, tile=self.tile(self.own.dim(True), column), writer=writer)
            value = f"{name} * {total.factor!r}" if total.factor != 1 else name
            self.save(own, total.store, value)
        return writer


__all__ = ["TEMPLATE_NAMES", "GradientsWriter", "Part", "write"]
