"""Matrix products: a template around what the IR says of operands and of the epilogue.

``templates/matmul.py.j2`` has the loops; how an element of an operand is made, and what becomes of
a sum, are ordinary bodies that the same writer turns into statements as everywhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusec.codegen.common.signatures import identifier
from fusec.ir.index import Expr
from fusec.ir.node import Load, Node, Reduce
from fusec.ir.walk import free_axes, walk
from fusec.schedule.products import without_product
from fusec.targets.triton.kernels.reducer import Reducer
from fusec.targets.triton.plan.choices_matmul import (
    FINISHED,
    Operand,
    Product,
    better_transposed,
    scales_sums,
)
from fusec.targets.triton.plan.padding import Padding
from fusec.targets.triton.plan.tiling import Dim, Tile
from fusec.targets.triton.rewrite.packed_operands import Unpacked, reads_bytes, unpack
from fusec.targets.triton.rewrite.word_operands import Words, as_words, scale_of_columns
from fusec.targets.triton.text import expressions as ex
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import Text
from fusec.targets.triton.text.file import File, add_function
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.templates import template
from fusec.targets.triton.text.writer import Writer

# What the template itself calls its values.
TEMPLATE_NAMES = frozenset(
    "down across program batch band height tile_row tile_col row col row_inside col_inside "
    "total start k k_inside k_down k_down_inside split parts half part tiles "
    "byte byte_inside byte_down byte_down_inside word ALIGNED".split()
)


class Zeros(Padding):
    """Zeros beyond the edges of operands: they add nothing to any sum."""

    def __init__(self, loads: Sequence[Load]) -> None:
        self.loads = dict.fromkeys(loads, 0)
        self.clean = set()


def write(file: File, product: Product) -> None:
    """Write the kernels of a matrix product."""
    ProductWriter(file, product).write()


class ProductWriter:
    """Writes the kernels of one product into a file."""

    def __init__(self, file: File, product: Product) -> None:
        self.file = file
        self.product = product
        self.kind = file.choice.kind
        self.blocks = {knob.name: knob for knob in file.choice.knobs}
        m, n, k = product.sizes
        self.row_mask = "" if self.divides("BLOCK_M", m) else "row_inside"
        self.col_mask = "" if self.divides("BLOCK_N", n) else "col_inside"
        if self.kind == "rows" and n == file.choice.row_block:
            self.col_mask = ""
        self.k_mask = not self.divides("BLOCK_K", k)
        self.scales = ""  # the name of a tile of `scale`
        self.wide = "" if file.index == "tl.int32" else f".to({file.index})"

    def divides(self, name: str, size: Expr) -> bool:
        """Whether tiles of every width worth trying fit into a size without a rest.

        The text has no mask then; a tunable stays within its choices.
        """
        if name not in self.blocks:
            return False
        knob = self.blocks[name]
        largest = max(*knob.choices, knob.value)
        return size.constant is not None and size.constant % largest == 0

    # -- the functions of the file ----------------------------------------------------------

    def write(self) -> None:
        """Write the kernels, and what ``launch`` starts them with."""
        file, product = self.file, self.product
        m, n, _ = (file.host(size) for size in product.sizes)
        tiles = f"triton.cdiv({m}, BLOCK_M) * triton.cdiv({n}, BLOCK_N)"
        if product.batch is not None:
            tiles = f"{tiles} * {file.host(product.count)}"
        constants = [(knob.name, knob.name) for knob in file.knobs]
        if self.kind == "split":
            self.write_split(tiles, constants)
            return
        constants += self.alignment
        kernel = self.kernel(file.name)
        extra: list[tuple[str, str]] = []
        if self.kind == "rows":
            tiles = f"triton.cdiv({m}, BLOCK_M)"
            if product.batch is not None:
                tiles = f"{tiles} * {file.host(product.count)}"
            constants.append(("BLOCK_N", str(file.choice.row_block)))
        if self.kind == "persistent":
            extra = self.describe(kernel)
            tiles = f"min(PROGRAMS, {tiles})"
        self.fill(kernel, self.kind)
        add_function(file, kernel, file.name, [tiles], constants, extra, pipelined=True)

    def write_split(self, tiles: str, constants: list[tuple[str, str]]) -> None:
        """Write two kernels: the parts of all sums, then the sums with the epilogue."""
        file = self.file
        m, n, k = (file.host(size) for size in self.product.sizes)
        device = f"{next(iter(file.parameters.values()))}.device"
        shape = f"(SPLITS, {file.host(self.product.count)}, {m}, {n})"
        dtype = str(self.product.node.dtype)
        file.setup.append(f"chunk = triton.cdiv(triton.cdiv({k}, SPLITS), BLOCK_K) * BLOCK_K")
        file.setup.append(f"parts = torch.empty({shape}, dtype={dtype}, device={device})")
        extra = [("parts", "parts")]
        first = self.kernel(f"{file.name}_parts")
        self.fill(first, "split")
        name, grid, chunk = f"{file.name}_parts", [tiles, "SPLITS"], [("CHUNK", "chunk")]
        constants += self.alignment
        if self.product.sizes[2].constant is None:
            add_function(file, first, name, grid, constants, extra + chunk, pipelined=True)
        else:
            add_function(file, first, name, grid, constants + chunk, extra, pipelined=True)
        last = self.kernel(file.name)
        self.fill(last, "finish")
        rows, columns = FINISHED
        tiles = f"triton.cdiv({m}, {rows}) * triton.cdiv({n}, {columns})"
        if self.product.batch is not None:
            tiles = f"{tiles} * {file.host(self.product.count)}"
        small = {"BLOCK_M": str(rows), "BLOCK_N": str(columns)}
        constants = [(name, small.get(name, value)) for name, value in constants]
        add_function(file, last, file.name, [tiles], constants, extra)

    def kernel(self, name: str) -> KernelWriter:
        """Return a function to write, over tiles of the result."""
        row, column = self.product.row, self.product.column
        block_n = "BLOCK_N // 2" if self.halves else "BLOCK_N"
        dims = [
            Dim(row, row.size or Expr.of(1), "row", "BLOCK_M", self.row_mask, 0),
            Dim(column, column.size or Expr.of(1), "col", block_n, self.col_mask, 1),
        ]
        kernel = self.file.new_kernel(name, self.file.body, Tile(self.file.body, (), None, 2))
        kernel.taken.update(TEMPLATE_NAMES)
        kernel.tile = Tile(self.file.body, (*self.batch_dims(), *dims), None, 2)
        return kernel

    @property
    def halves(self) -> bool:
        """Whether the epilogue takes half a tile at a time."""
        return self.kind == "persistent" and self.blocks["BLOCK_N"].value >= 128

    @property
    def swapped(self) -> bool:
        """Whether the loop sums up the transposed product."""
        return self.kind in {"tiles", "split"} and better_transposed(self.product)

    def batch_dims(self) -> list[Dim]:
        """Return the dimension of independent products, if any."""
        batch = self.product.batch
        return [] if batch is None else [Dim(batch, self.product.count, "batch", "", "", -1)]

    # -- what the template leaves open ------------------------------------------------------

    def fill(self, kernel: KernelWriter, kind: str) -> None:
        """Write the function's body: the template, with generated statements in it."""
        product, outer = self.product, Block(kernel)
        pieces: dict[str, Writer] = {}
        left_tile = right_tile = left = right = ""
        if kind == "persistent":
            assert product.left is not None
            assert product.right is not None
            left, left_tile = self.fetch(kernel, product.left, "left")
            right, right_tile = self.fetch(kernel, product.right, "right")
        elif kind != "finish":
            left, pieces["left"] = self.operand(kernel, product.node.args[0], "left")
            right, pieces["right"] = self.operand(kernel, product.node.args[1], "right")
        if kind != "split":
            pieces["epilogue"] = self.epilogue(kernel)
        m, n, k = (outer.index(size) for size in product.sizes)
        batch = "" if product.batch is None else f" * {outer.index(product.count)} + batch"
        place = f"(split{batch}) * {m}" if batch else f"split * {m}"
        masks = [mask for mask in (self.row_mask, self.col_mask) if mask]
        other = ", other=0.0" if kind == "finish" and masks else ""
        text = template("matmul").render(
            kind=kind,
            m=m,
            n=n,
            k=k,
            batch=product.batch is not None,
            wide=self.wide,
            row_mask=self.row_mask,
            col_mask=self.col_mask,
            k_mask=self.k_mask,
            halves=self.halves,
            left_tile=left_tile,
            right_tile=right_tile,
            part=f"parts + ({place} + row) * {n} + col",
            part_mask=f", {' & '.join(masks)}{other}" if masks else "",
            dot=self.dot(left, right),
            swapped=self.swapped,
        )
        self.write_lines(kernel, text, pieces)

    def write_lines(self, kernel: KernelWriter, text: str, pieces: Mapping[str, Writer]) -> None:
        """Write a template's lines, with generated statements in the places of their names."""
        sources = (self.product.node.source,)
        for line in text.splitlines():
            bare = line.strip()
            if not bare:
                continue
            depth = (len(line) - len(line.lstrip())) // 4
            kernel.writer.depth = depth
            if bare.startswith("@"):
                insert(kernel.writer, pieces[bare[1:]])
            else:
                kernel.writer.line(bare, sources if "tl.dot(" in bare else ())
        kernel.writer.depth = 0

    def dot(self, left: str, right: str) -> str:
        """Return the text that adds the product of two tiles to the sums."""
        node = self.product.node
        exact = f', input_precision="{node.precision}"' if node.args[0].dtype.itemsize > 2 else ""
        if self.swapped:
            left, right = f"{right}.T", f"{left}.T"
        if self.scale is not None:
            scales = f"{self.scales}.T.to(tl.float32)"
            if self.words is not None and self.words.times != 1:
                scales = f"({scales} * {self.words.times}.0)"
            return f"total + tl.dot({left}, {right}) * {scales}"
        return f"tl.dot({left}, {right}, total{exact})"

    def operand(self, kernel: KernelWriter, node: Node, side: str) -> tuple[str, Writer]:
        """Write the statements that make a tile of an operand; return its text, and them."""
        product = self.product
        m, n, k = product.sizes
        batch = self.batch_dims()
        if side == "left":
            across = Dim(product.inner, k, "k", "BLOCK_K", "k_inside" if self.k_mask else "", 1)
            dims = (*batch, Dim(product.row, m, "row", "BLOCK_M", self.row_mask, 0), across)
        else:
            mask = "k_down_inside" if self.k_mask else ""
            across = Dim(product.inner, k, "k_down", "BLOCK_K", mask, 0)
            dims = (*batch, across, Dim(product.column, n, "col", "BLOCK_N", self.col_mask, 1))
        unpacked, body, words = Unpacked(node), self.file.body, None
        if side == "right" and self.words is not None:
            words, node = self.words, self.words.node
            unpacked = Unpacked(node, None, words.start)
            dims = (*dims, self.word_dim(words))
        elif reads_bytes(node, product.inner):
            unpacked = unpack(node, product.inner, self.shared_step)
            node = unpacked.node
        if node is not product.node.args[side == "right"]:
            body = replace(body, stores=(replace(body.stores[0], value=node),))
        dims = (*dims, *self.more_dims(unpacked, across))
        roots = (node,) if words is None or self.scale is None else (node, self.scale)
        nodes = walk(roots)
        tile = Tile(body, dims, None, 2)
        own = replace(kernel, tile=tile, writer=Writer(), names={})
        if body is not self.file.body:
            own = replace(own, free=free_axes(roots))
        if unpacked.pair is not None:
            self.write_bytes(own.writer, dims[-1 if unpacked.start is None else -2])
        if words is not None:
            self.view_words(own, words)
        loads = [each for each in nodes if isinstance(each, Load)]
        masked = [each for each in loads if any(dim.mask for dim in self.reach(own, each))]
        own.padding = Zeros(masked)
        block = Block(own)
        one_row = self.one_row(block, node, tile.shape(frozenset(dims)))
        for each, load in one_row.items():
            block.assign(each, load)
        block.write(nodes, roots=roots)
        text = ex.typed(block.value(node), node.dtype)
        if len(roots) > 1:
            self.scales = ex.typed(block.value(roots[1]), roots[1].dtype).source
            if not self.scales.isidentifier():
                self.scales, scales = own.name("scale"), self.scales
                own.writer.line(f"{self.scales} = {scales}", (roots[1].source,))
        # a load's own mask has zeros for it, if its address varies that way at all
        is_zero = isinstance(node, Load) and across in self.reach(own, node)
        if across.mask and not is_zero:
            text = Text(f"tl.where({across.mask}, {text.source}, 0.0)")
        places = {dim.place for dim in own.node_dims(node) if dim.size != 1}
        if not {0, 1} <= places and node not in one_row:
            # the same row, or column, over and over
            text = Text(f"tl.broadcast_to({text.source}, {tile.shape(frozenset(dims))})")
        name = text.source
        if not name.isidentifier():
            name = own.name(side)
            own.writer.line(f"{name} = {text.source}", (node.source,))
        if side == "left" and self.words is not None:
            ordered = own.name(f"{name}_in_order")
            own.writer.line(f"{ordered} = {self.words.reordered(name, 'BLOCK_M', 'BLOCK_K')}")
            own.writer.line(f"{ordered} = tl.reshape({ordered}, (BLOCK_M, BLOCK_K))")
            name = ordered
        return name, own.writer

    # -- operands that are read as words ----------------------------------------------------

    @property
    def shared_step(self) -> int:
        """What all steps of the loop divide, where a group shares something; else 0."""
        return max(self.blocks["BLOCK_K"].choices) if self.product.group else 0

    @functools.cached_property
    def words(self) -> Words | None:
        """The second operand, where it is computed from words; its transposed is multiplied."""
        return self.words_and_scale[0]

    @property
    def scale(self) -> Node | None:
        """What the sums of a step are times, instead of the second operand's numbers."""
        return self.words_and_scale[1]

    @functools.cached_property
    def words_and_scale(self) -> tuple[Words | None, Node | None]:
        """The words of the second operand, and the scale that is taken out of it."""
        product = self.product
        if not (self.swapped and product.packed) or self.k_mask:
            return None, None
        words = as_words(product.node.args[1], product.inner, self.shared_step, self.file.buffers)
        if words is None or not scales_sums(product):
            return words, None
        return scale_of_columns(words, product.column)

    @property
    def alignment(self) -> list[tuple[str, str]]:
        """What says whether bytes may be read as words."""
        views = self.words.views if self.words is not None else {}
        given = [self.file.parameters[buffer] for _, buffer in views.values()]
        return [("ALIGNED", f"{name}.data_ptr() % 16 == 0") for name in given]

    def one_row(self, block: Block, node: Node, shape: str) -> dict[Node, Text]:
        """Return the load of one row as a tile, as which it is fetched ahead of its step."""
        if self.words is None or not self.row_mask or not isinstance(node, Load):
            return {}
        places = {dim.place for dim in block.kernel.node_dims(node) if dim.size != 1}
        if node.mask is not None or node.args or places != {1}:
            return {}
        address, _ = block.pointer(node.buffer, node.index)
        load = f"tl.load(tl.broadcast_to({address}, {shape}), {self.row_mask}, other=0.0)"
        return {node: Text(load)}

    def word_dim(self, words: Words) -> Dim:
        """Return the dimension of an operand's words."""
        size = words.word.size
        assert size is not None
        return Dim(words.word, size, "word", f"BLOCK_K // {words.count}", "", 0)

    def view_words(self, kernel: KernelWriter, words: Words) -> None:
        """Write where the words of a step lie, and let a kernel read bytes so."""
        number = f"BLOCK_K // {words.count}"
        first = f"tl.multiple_of(start // {words.count}, {number})"
        kernel.writer.line(f"word = {first} + tl.arange(0, {number})[:, None]{self.wide}")
        of_bytes = {name: kernel.parameters[buffer] for name, (_, buffer) in words.views.items()}
        kernel.parameters = {**kernel.parameters, **of_bytes}
        kernel.buffers = {**kernel.buffers, **{n: view for n, (view, _) in words.views.items()}}
        kernel.views = frozenset(words.views)

    def more_dims(self, unpacked: Unpacked, across: Dim) -> list[Dim]:
        """Return the dimensions of an operand's bytes, and of what a step of the loop shares."""
        found = []
        if unpacked.pair is not None:
            size = unpacked.pair.size
            assert size is not None
            name = across.index.replace("k", "byte")
            mask = f"{name}_inside" if across.mask else ""
            found.append(Dim(unpacked.pair, size, name, "BLOCK_K // 2", mask, across.place))
        if unpacked.start is not None:
            found.append(Dim(unpacked.start, across.size, "start", "", "", -1))
        return found

    def write_bytes(self, writer: Writer, dim: Dim) -> None:
        """Write where the bytes of a step lie, two elements each."""
        first = "tl.multiple_of(start // 2, BLOCK_K // 2)"
        lanes = f"tl.arange(0, BLOCK_K // 2){dim.spread(2)}"
        writer.line(f"{dim.index} = {first} + {lanes}{self.wide}")
        if dim.mask:
            writer.line(f"{dim.mask} = {dim.index} < {dim.size}")

    def reach(self, kernel: KernelWriter, load: Load) -> frozenset[Dim]:
        """Return the dimensions that a load's address varies along."""
        return kernel.expr_dims(kernel.buffers[load.buffer].offset(load.index))

    def epilogue(self, kernel: KernelWriter) -> Writer:
        """Write what becomes of a sum."""
        if self.kind == "rows":
            return self.row_epilogue(kernel)
        own = replace(kernel, writer=Writer(), padding=None)
        body, node = self.file.body, self.product.node
        nodes = [n for n in walk(body.computed, Reduce) if n is not node]
        block = Block(own)
        block.known[node] = Text("part" if self.halves else "total")
        block.write(nodes, stores=body.stores)
        dims = frozenset(dim for dim in own.tile.dims if dim.place >= 0)
        for store in body.stores:
            block.store(store, along=dims)
        return own.writer

    def row_epilogue(self, kernel: KernelWriter) -> Writer:
        """Write what becomes of a tile of whole rows: as for any tile that holds whole rows."""
        plain, stand_in = without_product(self.file.body)
        *outer, inner = kernel.tile.dims
        tile = Tile(plain, tuple(outer), inner, 2)
        own = self.file.new_kernel(self.file.name, plain, tile)
        own.taken, own.padding = kernel.taken, None
        own.parameters = {**own.parameters, stand_in.buffer: "total"}
        block = Block(own)
        block.known[stand_in] = Text("total")
        reducer = Reducer(own, block)
        block.write(plain.nodes(), stores=plain.stores, reduce=reducer.reduce)
        row = frozenset(dim for dim in outer if dim.place >= 0)
        for store in plain.stores:
            block.store(store, along=row)
        return own.writer

    # -- tensor descriptors -----------------------------------------------------------------

    def describe(self, kernel: KernelWriter) -> list[tuple[str, str]]:
        """Add the lines of ``launch`` that describe the operands; return the parameters."""
        file, product = self.file, self.product
        found = []
        for operand, blocks in ((product.left, "MK"), (product.right, "KN")):
            assert operand is not None
            rows, columns = (file.host(size) for size in operand.shape)
            first, second = (f"BLOCK_{letter}" for letter in blocks)
            step = file.host(operand.strides[0])
            if operand.turned:
                rows, columns, first, second = columns, rows, second, first
                step = file.host(operand.strides[1])
            given = file.parameters[operand.buffer]
            taken = {*kernel.taken, *file.parameters.values()}  # they meet in `launch`
            name = identifier(f"{given}_tiles", taken, "tiles")
            kernel.taken.add(name)
            file.setup += [
                f"if {given}.data_ptr() % 16:  # no tensor descriptor can begin there",
                f"    moved = torch.empty_strided({given}.shape, {given}.stride(), "
                f"dtype={given}.dtype, device={given}.device)",
                f"    {given} = moved.copy_({given})",
                f"{name} = TensorDescriptor("
                f"{given}, [{rows}, {columns}], [{step}, 1], [{first}, {second}])",
            ]
            found.append((name, name))
            self.descriptors["left" if blocks == "MK" else "right"] = name
        return found

    @functools.cached_property
    def descriptors(self) -> dict[str, str]:
        """The descriptors' names, by the operand's side."""
        return {}

    def fetch(self, kernel: KernelWriter, operand: Operand, side: str) -> tuple[str, str]:
        """Return the name of a tile, and the statement that fetches it."""
        place = ["tile_row * BLOCK_M", "start"]
        if side == "right":
            place = ["start", "tile_col * BLOCK_N"]
        turned = ".T" if operand.turned else ""
        if operand.turned:
            place.reverse()
        name = kernel.name(self.file.parameters[operand.buffer])
        fetched = f"{self.descriptors[side]}.load([{', '.join(place)}]){turned}"
        return name, f"{name} = {fetched}"


def insert(writer: Writer, piece: Writer) -> None:
    """Append a piece's lines at the writer's depth, with their origins."""
    writer.include(piece, writer.depth)


__all__ = ["TEMPLATE_NAMES", "ProductWriter", "Zeros", "insert", "write"]
