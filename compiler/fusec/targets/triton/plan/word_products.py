"""Products of few rows with a weight of few bits, whose words go straight into registers.

A thread of tensor cores wants some neighbors along the sum of some columns.  Which neighbors does
not matter as long as both operands agree, so a thread loads whole words, the lanes of a warp beside
each other, and what it unpacks is in place: nothing goes through shared memory, and nobody waits
for anybody until the sums are added up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusec.codegen.common.product_axes import ProductAxes
from fusec.ir.body import Buffer
from fusec.ir.node import Load
from fusec.ir.walk import walk
from fusec.machine import current_machine
from fusec.targets.triton.rewrite.word_operands import Words, as_words

MOST_ROWS = 16
THREADS = 4  # that share a column of a tile for tensor cores, and what it adds up
LEAST_NUMBERS = 8  # neighbors of the other operand that are loaded at once


@dataclass(frozen=True)
class InWords:
    """How a product's second operand lies in words.

    Attributes:
        words: The operand.
        each: Neighboring words along the sum that a thread takes.
        turned: Whether words of neighboring columns are neighbors in memory.
    """

    words: Words
    each: int
    turned: bool

    @property
    def width(self) -> int:
        """Elements along the sum of one step: what the threads of a column have."""
        return THREADS * self.each * self.words.count


def in_words(product: ProductAxes, group: int, buffers: Mapping[str, Buffer]) -> InWords | None:
    """Return how a product is computed from words in registers; None where it is not.

    Args:
        product: Its axes.
        group: Elements along the sum that share a scale; 0 where there are no such groups.
        buffers: By name.
    """
    axes = product.row, product.column, product.inner
    rows, columns, inner = (1 if a.size is None else a.size.constant for a in axes)
    if rows is None or columns is None or inner is None or product.batch is not None:
        return None
    if rows > MOST_ROWS or columns < LEAST_NUMBERS or current_machine().gpu.warp != 32:
        return None
    for count in (8, 4):
        for each in (4, 2, 1):
            width = THREADS * each * count
            fits = inner % width == 0 and group % width == 0
            if not fits or each * count < LEAST_NUMBERS:
                continue
            step = width if group else 0
            words = as_words(product.node.args[1], product.inner, step, buffers, in_threads=True)
            if words is not None and words.count == count:
                return _laid(product, words, each, buffers)
    return None


def _laid(
    product: ProductAxes, words: Words, each: int, buffers: Mapping[str, Buffer]
) -> InWords | None:
    """Return how words lie, where threads can load several at once."""
    (read,) = {n for n in walk((words.node,)) if isinstance(n, Load) and _reads(n, words)}
    view = words.views.get(read.buffer)
    buffer = buffers[read.buffer] if view is None else view[0]
    offset = buffer.offset(read.index)
    if not (offset.is_affine_in(words.word) and offset.is_affine_in(product.column)):
        return None
    along = offset.coefficient(words.word).constant
    across = offset.coefficient(product.column).constant
    if along == 1 and across is not None and across % each == 0:
        return InWords(words, each, turned=False)
    return InWords(words, each, turned=True) if across == 1 else None


def _reads(load: Load, words: Words) -> bool:
    return any(words.word in index.symbols() for index in load.index)


__all__ = ["MOST_ROWS", "THREADS", "InWords", "in_words"]
