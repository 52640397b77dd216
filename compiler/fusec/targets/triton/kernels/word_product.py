"""Products of few rows with a weight of few bits: ``templates/word_product.py.j2`` has the loop.

How an element is made of a word's number, what the other operand is and what becomes of a sum are
ordinary bodies here, too; they are written over tiles of seven dimensions, of which most have one
element (``plan/word_products.py`` says why).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.ir.node import Load, Node
from fusec.ir.walk import free_axes, walk
from fusec.targets.triton.kernels.matmul import ProductWriter, Zeros
from fusec.targets.triton.plan.choices_matmul import Product
from fusec.targets.triton.plan.tiling import Dim, Tile
from fusec.targets.triton.plan.word_products import InWords
from fusec.targets.triton.text import expressions as ex
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import Text
from fusec.targets.triton.text.file import File, add_function
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.templates import template
from fusec.targets.triton.text.writer import Writer

_RANK = 7
# What the template itself calls its values.
_NAMES = frozenset(
    "program thread column several col row k_of_thread own total turn step inside start word k "
    "row_inside col_inside ROUNDS RAGGED STEPS SHARES BLOCK_M BLOCK_N ALIGNED".split()
)


def write(file: File, product: Product, laid: InWords) -> None:
    """Write the kernel of a product whose words go into registers."""
    _WordProduct(file, product, laid).write()


class _WordProduct(ProductWriter):
    def __init__(self, file: File, product: Product, laid: InWords) -> None:
        super().__init__(file, product)
        self.laid = laid
        self.words = laid.words
        rows, columns, _ = product.sizes
        self.block_m = 8 if rows.constant is not None and rows.constant <= 8 else 16
        self.row_mask = "" if rows.constant == self.block_m else "row_inside"
        self.col_mask = "" if self.divides("BLOCK_N", columns) else "col_inside"

    def write(self) -> None:
        file = self.file
        kernel = self.kernel(file.name)
        kernel.taken.update(_NAMES)
        self.fill(kernel, "words")
        constants = [(knob.name, knob.name) for knob in file.knobs] + self.alignment
        constants += [("BLOCK_M", str(self.block_m)), ("SHARES", "NUM_WARPS")]
        tiles = f"triton.cdiv({file.host(self.product.sizes[1])}, BLOCK_N)"
        add_function(file, kernel, file.name, [tiles], constants)

    def fill(self, kernel: KernelWriter, kind: str) -> None:
        """Write the function's body: the template, with generated statements in it."""
        product, words = self.product, self.laid.words
        m, n, k = (size.constant for size in product.sizes)
        pieces: dict[str, Writer] = {}
        left, pieces["left"] = self.rows_of(kernel, product.node.args[0])
        right, pieces["loads"], pieces["right"] = self.columns_of(kernel)
        pieces["epilogue"] = self.epilogue(kernel)
        each, bits = self.laid.each, len(words.order)
        # of a number's place in its word the highest bit says which half; it comes last
        place = [6 + bits - 1 - bit for bit in words.order]  # dimensions, by the bit in the word
        left_turned = (2, 3, 5, *place[bits - 2 : 0 : -1], 0, place[0], place[-1], 4, 1)
        two = (2,) * bits
        left_parts = (4, 8, "SHARES", "STEPS", "BLOCK_M // 8", each, *two)
        low, number = tuple(range(9, 7 + bits)), 7
        if self.laid.turned:
            right_parts = (4, 8, "SHARES", "STEPS", each, "BLOCK_N // 16", 2, *two)
            right_turned = (2, 5, 6, 1, 3, 4, *low, 0, 8, number)
        else:
            right_parts = (4, 8, "SHARES", "STEPS", "BLOCK_N // 16", 2, each, *two)
            right_turned = (2, 4, 5, 1, 3, 6, *low, 0, 8, number)
        self.file.needs.helper("along")
        text = template("word_product").render(
            m=m,
            n=n,
            steps=k // self.laid.width,  # type: ignore[operator]
            each=each,
            count=words.count,
            width=self.laid.width,
            turned=self.laid.turned,
            grouped=words.start is not None,
            wide=self.wide,
            clamped=bool(self.col_mask),
            row_mask=self.row_mask,
            col_mask=self.col_mask,
            left=left,
            right=right,
            left_parts=_tuple(left_parts),
            left_turned=left_turned,
            right_parts=_tuple(right_parts),
            right_turned=right_turned,
        )
        self.write_lines(kernel, text, pieces)

    def rows_of(self, kernel: KernelWriter, node: Node) -> tuple[str, Writer]:
        """Write the statements that make the tile of the rows; return its name, and them."""
        product = self.product
        m, _, k = product.sizes
        dims = (Dim(product.row, m, "row", "", "", 1), Dim(product.inner, k, "k", "", "", 6))
        own = replace(
            kernel, tile=Tile(self.file.body, dims, None, _RANK), writer=Writer(), names={}
        )
        block, nodes = Block(own), walk((node,))
        own_shape = (
            f"(4, 8, SHARES, STEPS, BLOCK_M // 8, {self.laid.each * self.laid.words.count // 8}, 8)"
        )
        if isinstance(node, Load) and node.mask is None and not node.args:
            # one row, too, is loaded by the threads that take it
            address, _ = block.pointer(node.buffer, node.index)
            block.assign(node, Text(f"tl.load(tl.broadcast_to({address}, {own_shape}))"))
        block.write(nodes, roots=(node,))
        text = ex.typed(block.value(node), node.dtype)
        if isinstance(node, Load):
            return text.source, own.writer
        name = own.name("left")
        own.writer.line(f"{name} = tl.broadcast_to({text.source}, {own_shape})", (node.source,))
        return name, own.writer

    def columns_of(self, kernel: KernelWriter) -> tuple[str, Writer, Writer]:
        """Write the statements that make the tile of the columns; return its name, and them.

        The loads come by themselves: they begin before anything else does.
        """
        product, words = self.product, self.laid.words
        _, n, k = product.sizes
        node, body = words.node, self.file.body
        size = words.word.size
        assert size is not None
        dims = [
            Dim(product.column, n, "col", "", "", 1),
            Dim(words.word, size, "word", "", "", 5),
        ]
        if words.start is not None:
            dims.append(Dim(words.start, k, "start", "", "inside", 2))
        body = replace(body, stores=(replace(body.stores[0], value=node),))
        tile = Tile(body, tuple(dims), None, _RANK)
        own = replace(kernel, tile=tile, writer=Writer(), names={}, free=free_axes((node,)))
        of_bytes = {name: kernel.parameters[buffer] for name, (_, buffer) in words.views.items()}
        own.parameters = {**kernel.parameters, **of_bytes}
        own.buffers = {**kernel.buffers, **{n: view for n, (view, _) in words.views.items()}}
        own.views = frozenset(words.views)
        block, nodes = Block(own), walk((node,))
        loads_of = [each for each in nodes if isinstance(each, Load)]
        # read once: what is read by every program stays in the caches
        own.evict = {(-1, n.buffer): "evict_first" for n in loads_of if words.word in own.free[n]}
        # steps beyond the sum: of scales of zero comes nothing, whatever words are loaded instead
        own.padding = Zeros([each for each in loads_of if words.start in own.free[each]])
        for each in nodes:
            if isinstance(each, Load) and not each.args and each.mask is None:
                block.assign(each, block.text(each), (each.source,))
        loads, own.writer = own.writer, Writer()
        block.write(nodes, roots=(node,))
        name = own.name("right")
        own.writer.line(
            f"{name} = {ex.typed(block.value(node), node.dtype).source}", (node.source,)
        )
        return name, loads, own.writer


def _tuple(items: Sequence[object]) -> str:
    return f"({', '.join(map(str, items))})"


__all__ = ["write"]
