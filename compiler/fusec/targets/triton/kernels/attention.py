"""Attention: a template around what the user's functions make of scores.

``templates/attention.py.j2`` has the loops over keys: blocks that the mask keeps whole are taken
without it.  What becomes of a score, and whether it is kept, are ordinary values that the same
writer turns into statements as everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusec.ir import ops
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, Reduce, const
from fusec.ir.walk import walk
from fusec.targets.triton.kernels.attention_tiles import Tiles, unlike
from fusec.targets.triton.kernels.matmul import insert
from fusec.targets.triton.plan.choice import power_of_two
from fusec.targets.triton.plan.choices_attention import Attention, Listed
from fusec.targets.triton.plan.tiling import Dim, Tile
from fusec.targets.triton.rewrite.score_patterns import quicken, relaxed, without_row_term
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import Text, triton_type
from fusec.targets.triton.text.file import File, add_function
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.templates import template
from fusec.targets.triton.text.writer import Writer

# What the template itself calls its values.
TEMPLATE_NAMES = frozenset(
    "program tiles tile group height pair batch head first q_idx q_inside depth depth_inside width "
    "width_inside query key value keys kv_row kv_idx kv_inside kv_row_inside score most total "
    "ENTRIES result block blocks done entry listed apart until end start higher reference weight "
    "shrink share split splits row row_inside line place results mosts mosts_of_parts sums "
    "rows".split()
)
FINITE = "3.4028234663852886e38"  # what is taken off an infinite score leaves infinity, not NaN
LOWEST = f"-{FINITE}"


@dataclass(frozen=True)
class KeyLoop:
    """One loop over keys: its name in the template, its blocks, what a score becomes."""

    name: str
    listed: Listed | None
    value: Node
    comment: str = ""


def write(file: File, found: Attention) -> None:
    """Write the kernels of attention."""
    AttentionWriter(file, found).write()


class AttentionWriter(Tiles):
    """Writes attention's kernels: what others of its kind share, too."""

    def __init__(self, file: File, found: Attention) -> None:
        super().__init__(file, found.batch, found.head, (found.product,), found.key)
        self.found = found
        self.first = Symbol("first", "axis", found.row.size)  # of a tile's queries
        self.row_term: Node | None = None  # what is left out of all scores of a row
        m, n = found.sizes
        place = found.query.index[2]
        own = place.constant is None and place == Expr.of(found.row)
        self.row_name = "q_idx" if own else "row"  # or those of several heads
        inside = "q_inside" if own else "row_inside"
        self.m_mask = "" if self.divides("BLOCK_M", m) else inside
        self.n_mask = not self.divides("BLOCK_N", n)
        self.split = file.choice.kind == "shared attention"
        depth, width = (self.extent(axis) for axis in (found.depth, found.width))
        self.depth, self.width = (max(power_of_two(size), 16) for size in (depth, width))
        self.depth_mask = "depth_inside" if self.depth != depth else ""
        self.width_mask = "width_inside" if self.width != width else ""

    def write(self) -> None:
        """Write all of them."""
        file, found = self.file, self.found
        m, pairs = file.host(found.sizes[0]), file.host(found.pairs)
        tiles = f"triton.cdiv({m}, BLOCK_M)" + ("" if pairs == "1" else f" * {pairs}")
        constants = [(knob.name, knob.name) for knob in file.knobs] + self.list_constants(
            found.partial
        )
        if not self.split:
            kernel = self.kernel(file.name)
            self.fill(kernel)
            add_function(file, kernel, file.name, [tiles], constants, pipelined=True)
            return
        rows, width = f"{pairs} * {m}" if pairs != "1" else m, self.extent(found.width)
        device = f"{next(iter(file.parameters.values()))}.device"
        file.setup += [
            f"rows = {rows}",
            f"results = torch.empty((SPLITS, rows, {width}), dtype=torch.float32, device={device})",
            f"mosts = torch.empty((2, SPLITS, rows), dtype=torch.float32, device={device})",
        ]
        name, extra = f"{file.name}_parts", [("results", "results"), ("mosts", "mosts")]
        kernel = self.kernel(name)
        self.fill(kernel)
        add_function(file, kernel, name, [tiles, "SPLITS"], constants, extra, pipelined=True)
        last = self.kernel(file.name)
        self.finish(last)
        add_function(file, last, file.name, ["rows"], constants, extra)

    # -- dimensions -------------------------------------------------------------------------

    def row_dim(self) -> Dim:
        """Return the dimension of a tile's queries."""
        size = self.found.sizes[0]
        return Dim(self.found.row, size, self.row_name, "BLOCK_M", self.m_mask, 0)

    def key_dim(self, down: bool) -> Dim:
        """Return that of its keys, down or along the tile."""
        size = self.found.sizes[1]
        if down:
            mask = "kv_row_inside" if self.n_mask else ""
            return Dim(self.found.key, size, "kv_row", "BLOCK_N", mask, 0)
        mask = "kv_inside" if self.n_mask else ""
        return Dim(self.found.key, size, "kv_idx", "BLOCK_N", mask, 1)

    def depth_dim(self) -> Dim:
        """Return that which queries and keys are multiplied along."""
        axis = self.found.depth
        return Dim(axis, axis.size or Expr.of(1), "depth", str(self.depth), self.depth_mask, 1)

    def width_dim(self) -> Dim:
        """Return that along a value."""
        axis = self.found.width
        return Dim(axis, axis.size or Expr.of(1), "width", str(self.width), self.width_mask, 1)

    def kernel(self, name: str) -> KernelWriter:
        """Return a kernel to write, in which the template's names are taken."""
        kernel = self.file.new_kernel(name, self.file.body, Tile(self.file.body, (), None, 2))
        kernel.taken.update(TEMPLATE_NAMES)
        size = self.first.size or Expr.of(1)
        first = Dim(self.first, size, "first", "", "", -1)
        kernel.tile = self.tile(first, self.row_dim(), self.key_dim(down=False))
        return kernel

    # -- the function -----------------------------------------------------------------------

    def modified(self) -> Node:
        """Return the score, in cheaper steps where the weights are rounded."""
        if not self.found.quick:
            return self.found.modified
        (score,) = quicken([self.found.modified])
        if self.found.careful:
            return score
        free = self.free_of(walk((score,), Reduce))
        score, self.row_term = without_row_term(
            score, self.first, lambda node: self.over in free[node]
        )
        return score

    def loops(self) -> list[KeyLoop]:
        """Return the loops over keys: over listed blocks, or over all."""
        found = self.found
        masked = modified = self.modified()
        if found.mask is not None:
            masked = ops.where(found.mask, modified, const(-float("inf"), modified.dtype))
        if found.partial is None:
            return [KeyLoop("masked", None, masked)]
        loops = [KeyLoop("masked", found.partial, masked, "blocks that the mask keeps in part")]
        if found.full is not None:
            comment = "blocks that the mask keeps whole"
            loops.insert(0, KeyLoop("whole", found.full, modified, comment))
        return loops

    def fill(self, kernel: KernelWriter) -> None:
        """Write the function's body: the template, with generated statements in it."""
        found, outer = self.found, Block(kernel)
        pieces = {
            "query": self.operand(kernel, found.query, "query", self.row_dim(), self.depth_dim()),
            "key": self.operand(kernel, found.keys, "key", self.key_dim(True), self.depth_dim()),
            "value": self.operand(
                kernel, found.values, "value", self.key_dim(True), self.width_dim()
            ),
        }
        loops = self.loops()
        roots = [loop.value for loop in loops]
        if self.row_term is not None and self.gives_back:
            roots.append(self.row_term)
        pieces["before"], before = self.before(kernel, roots, {})
        described = []
        for loop in loops:
            pieces[loop.name], score = self.score(kernel, before, loop.value)
            described.append(self.describe(kernel, loop, score))
        if not self.split:
            pieces["epilogue"] = self.epilogue(kernel, "[:, None]", self.row_dim())
        precision = self.found.product.precision
        exact = f', input_precision="{precision}"' if found.query.dtype.itemsize > 2 else ""
        weight = f"weight.to({triton_type(found.values.dtype)})"
        if found.values.dtype.itemsize > 2:
            weight = "weight"
        text = template("attention").render(
            m=outer.index(found.sizes[0]),
            n=outer.index(found.sizes[1]),
            pairs=outer.index(found.pairs),
            places=self.places(outer),
            wide=self.wide,
            m_mask=self.m_mask,
            n_mask=self.n_mask,
            depth=self.depth,
            depth_mask=self.depth_mask,
            depth_size=self.extent(found.depth),
            width=self.width,
            width_mask=self.width_mask,
            width_size=self.extent(found.width),
            same=self.depth == self.width,
            loops=described,
            careful=found.careful,
            lowest='-float("inf")' if found.careful else LOWEST,
            finite=FINITE,
            factor=repr(found.factor),
            scores=f"tl.dot(query, key.T{exact})",
            weighted=f"tl.dot({weight}, value, result * shrink[:, None]{exact})",
            split=self.split,
            row_term=self.row_text(before),
            kept=self.parts(outer) if self.split else [],
            row=self.row_name,
        )
        self.insert_text(kernel, text, pieces, (found.product.source,))

    @property
    def gives_back(self) -> bool:
        """Whether what was left out of the rows' scores is asked for."""
        asked = self.found.sums is not None or self.found.mosts is not None
        return asked and self.row_term is not None

    def row_text(self, before: Block) -> str:
        """Return what is to be given back to the rows' mosts, where somebody asks for them."""
        if not self.gives_back:
            return ""
        assert self.row_term is not None
        return f"tl.sum({before.value(self.row_term).source}, 1) * {self.found.factor!r}"

    def describe(self, kernel: KernelWriter, loop: KeyLoop, score: str) -> dict[str, object]:
        """Return what the template asks of a loop."""
        described: dict[str, object] = {"name": loop.name, "score": score, "count": ""}
        described["comment"] = loop.comment
        if loop.listed is None:
            return described
        return described | self.lists(kernel, loop.listed, self.found.row)

    def score(
        self,
        kernel: KernelWriter,
        before: Block,
        root: Node,
        branches: list[KernelWriter] | None = None,
    ) -> tuple[Writer, str]:
        """Write what becomes of a score; return the statements, and the text of the result.

        Args:
            kernel: The function.
            before: What is known before.
            root: The result.
            branches: The other branches of a condition; this one is added.
        """
        block = self.changed(kernel, before, root, {})
        if branches is not None:
            if named := unlike(block.kernel, branches):
                block = self.changed(kernel, before, root, named)
            branches.append(block.kernel)
        own, text = block.kernel, block.value(root)
        dims = {dim.place for dim in own.node_dims(root) if dim.size != 1}
        if text.literal or not {0, 1} <= dims:
            return own.writer, f"tl.broadcast_to({text.source}, (BLOCK_M, BLOCK_N))"
        return own.writer, text.source

    def changed(
        self, kernel: KernelWriter, before: Block, root: Node, named: Mapping[Node, str]
    ) -> Block:
        """Write what becomes of a score, with names that some values have; return the block."""
        names = {**before.kernel.names, **named}
        taken = {*kernel.taken, *named.values()}
        own = replace(kernel, writer=Writer(), names=names, taken=taken)
        block = Block(own, before)
        block.known[self.found.product] = Text("score")
        nodes = self.own_nodes([root])
        own.free = {**kernel.free, **self.free_of(nodes)}
        own.relaxed = relaxed(self.file.body, root) if self.found.quick else frozenset()
        block.write(nodes, roots=(root, root))
        return block

    def parts(self, outer: Block) -> list[str]:
        """Return the statements that keep a program's share of its rows."""
        m, pairs = outer.index(self.found.sizes[0]), outer.index(self.found.pairs)
        line = f"line = split * ({pairs} * {m}) + pair * {m} + {self.row_name}"
        if pairs == "1":
            line = f"line = split * {m} + {self.row_name}"
        masks = [mask for mask in (self.m_mask, self.width_mask) if mask]
        both = f", {' & '.join(masks)}" if masks else ""
        mask = f", {self.m_mask}" if self.m_mask else ""
        size = self.extent(self.found.width)
        return [
            line,
            f"tl.store(results + line * {size} + width, result{both})",
            f"tl.store(mosts + line, most[:, None]{mask})",
            f"tl.store(mosts + SPLITS * ({pairs} * {m}) + line, total[:, None]{mask})",
        ]

    def finish(self, kernel: KernelWriter) -> None:
        """Write the kernel that puts the shares of a row together."""
        found, outer, writer = self.found, Block(kernel), kernel.writer
        m, pairs = outer.index(found.sizes[0]), outer.index(found.pairs)
        rows = f"({pairs} * {m})"
        mask = f", {self.width_mask}" if self.width_mask else ""
        inside = f", {self.width_mask}, other=0.0" if self.width_mask else ""
        writer.line(f"line = tl.program_id(0){self.wide}")
        if pairs != "1":
            writer.line(f"pair = line // {m}")
        for line in self.places(outer):
            writer.line(line)
        writer.line(f"{self.row_name} = line % {m}")
        writer.line(f"width = tl.arange(0, {self.width})[None, :]")
        if self.width_mask:
            writer.line(f"width_inside = width < {self.extent(found.width)}")
        writer.line(f"place = tl.arange(0, SPLITS)[:, None] * {rows} + line")
        writer.line("mosts_of_parts = tl.load(mosts + place)")
        writer.line("most = tl.max(mosts_of_parts, 0)")
        if found.careful:
            writer.line('most = tl.where(most == -float("inf"), 0.0, most)')
        writer.line(f"share = tl.exp2(mosts_of_parts - tl.minimum(most, {FINITE})[:, None])")
        writer.line(f"total = tl.sum(tl.load(mosts + SPLITS * {rows} + place) * share, 0)")
        address = f"results + place * {self.extent(found.width)} + width"
        writer.line(f"result = tl.sum(tl.load({address}{inside}) * share, 0, keep_dims=True)")
        row = replace(self.row_dim(), block="", mask="", place=-1)
        piece = self.epilogue(kernel, "[:, None]", row)
        insert(writer, piece)
        del mask

    def epilogue(self, kernel: KernelWriter, spread: str, row: Dim) -> Writer:
        """Write the results of a program's rows."""
        found = self.found
        own = replace(kernel, tile=self.tile(row, self.width_dim()), writer=Writer())
        writer = own.writer
        writer.line("# a row of which nothing is kept gives zeros")
        writer.line(f"result = result / tl.where(total == 0.0, 1.0, total){spread}")
        self.save(own, found.result, "result")
        if found.sums is not None:
            writer.line('sums = tl.where(total == 0.0, -float("inf"), most + tl.log2(total))')
            self.save(own, found.sums, f"sums{spread}")
        if found.mosts is not None:
            writer.line('most = tl.where(total == 0.0, -float("inf"), most)')
            writer.line("most = tl.where(total == total, most, total)  # NaN wins")
            self.save(own, found.mosts, f"most{spread}")
        return writer


__all__ = ["FINITE", "LOWEST", "TEMPLATE_NAMES", "AttentionWriter", "KeyLoop", "write"]
