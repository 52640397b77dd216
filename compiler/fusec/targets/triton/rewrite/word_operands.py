"""Operands of matrix products that are read as words: eight numbers of 4 bits, or four of 8.

Read by bytes, each number costs a load from shared memory, a mask, and its conversion.  Of a word
one mask takes two numbers at once, sixteen bits apart, into the places of two halves, where their
bits stand beside 1024 (or 128 in bfloat16) and are numbers already.  The sum does not mind in which
order its elements come as long as both operands have the same, so that a tile's elements lie in the
order in which they leave the words, each in the register in which the tensor cores want it; the
other operand's few rows are laid in that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from fusec.ir import ops
from fusec.ir.body import Buffer
from fusec.ir.bounds import bounds
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Const, Load, Node, Op, const, load, op
from fusec.ir.walk import free_axes, rewrite, walk
from fusec.targets.triton.rewrite.packed_operands import (
    NUMBERS,
    is_whole,
    narrowed,
    pruned,
    resolved,
)

# What takes numbers out of words.
OF_WORDS = frozenset(
    {
        "halves_of_nibbles",
        "small_halves_of_nibbles",
        "bfloats_of_nibbles",
        "halves_of_bytes",
        "halves_of_signed_bytes",
        "nibbles_as_halves",
        "nibbles_as_bfloats",
        "bytes_as_halves",
        "signed_bytes_as_halves",
    }
)
READ = "words_at"  # the helper that reads words where elements are bytes
SMALL = 1 << 24  # what halves that are bits without an exponent are one part of
_NIBBLES, _BYTES = 8, 4  # numbers a word
_FOUR_BITS, _EIGHT_BITS = 15, 255


@dataclass(frozen=True)
class Words:
    """An operand that is computed from words.

    Attributes:
        node: Its elements, over the axis of words instead of the summed one.
        word: The axis of words.
        count: Numbers a word.
        order: To each bit of a number's place in its word, the bit of its place along the sum.
        start: Stands for where a step begins, in what all of a step shares; None where nothing is.
        views: Buffers of words that lie in buffers of bytes, by name: the buffer, and the bytes'.
        times: What the scale that is taken out of the elements is to be times.
    """

    node: Node
    word: Symbol
    count: int
    order: tuple[int, ...]
    start: Symbol | None
    views: Mapping[str, tuple[Buffer, str]]
    times: int = 1

    def reordered(self, x: str, rows: str, step: str) -> str:
        """Return the text of a tile of the other operand, its columns in the words' order.

        Args:
            x: Its name.
            rows: Its rows, as text.
            step: Its columns, as text.
        """
        bits = len(self.order)
        # of a row: the thread, its words, the bits of an element's place, the highest first
        split = f"({rows}, 4, {step} // {4 * self.count}{', 2' * bits})"
        of_bit = [3 + bits - 1 - bit for bit in self.order]  # dimensions, by the bit in the word
        *inner, pair = of_bit
        turned = (0, 2, *reversed(inner), 1, pair)
        return f"tl.permute(tl.reshape({x}, {split}), {turned})"


@dataclass(frozen=True)
class _Field:
    """Where a number lies: an element of memory, the lowest bit, which bits, whether signed."""

    load: Load
    shift: int
    mask: int
    signed: bool


def as_words(
    node: Node,
    axis: Symbol,
    step: int,
    buffers: Mapping[str, Buffer],
    in_threads: bool = False,
) -> Words | None:
    """Return an operand as computed from words; None where it is not, or not in order.

    Args:
        node: An element.
        axis: The summed axis, of a known size.
        step: What all of its steps divide, elements; 0 where no group is shared.
        buffers: By name.
        in_threads: Whether a word's numbers are to be a dimension of their own, of the thread that
            has the word, rather than down a tile's columns.
    """
    if node.dtype not in (torch.float16, torch.bfloat16):
        return None
    (node,) = rewrite((node,), {})  # among this recorder's nodes: they are found again below
    node = narrowed(pruned(node), few=True)
    numbers = _numbers(node, axis)
    if numbers is None:
        return None
    whole, signed, bits = numbers
    count = 32 // bits
    size = axis.size.constant if axis.size is not None else None
    if size is None or size % (4 * count):
        return None
    word = Symbol("word", "axis", Expr.of(size // count))
    found = _word_of(whole, axis, word, count, signed, buffers)
    if found is None:
        return None
    read, order, flip, views = found
    start = Symbol("start", "axis", axis.size) if step else None
    if start is not None:
        node = resolved(node, axis, start, step)

    def from_words(each: Node) -> Node | None:
        less = _converted(each, whole)
        if less is None:
            return None
        to = "halves" if each.dtype == torch.float16 else "bfloats"
        numbers = "nibbles" if bits == 4 else "signed_bytes" if signed else "bytes"
        name = f"{numbers}_as_{to}" if in_threads else f"{to}_of_{numbers}"
        given = (read, const(less, torch.float32), const(flip, torch.int32))
        return op(name, given, each.dtype)

    (node,) = rewrite((node,), {}, from_words)
    if axis in free_axes((node,))[node] or not any(_is_of_words(n) for n in walk((node,))):
        return None
    return Words(node, word, count, order, start, views)


def scale_of_columns(words: Words, column: Symbol) -> tuple[Words, Node | None]:
    """Return the numbers, and the scale of a column that all of a step's are times.

    The step's sums are multiplied by it instead of each number: of few rows they are fewer.  None
    for other operands, which stay as they are.
    """
    node = words.node
    if not (isinstance(node, Op) and node.name == "mul"):
        return words, None
    free = free_axes((node,))
    for numbers, scale in (node.args, node.args[::-1]):
        if words.word in free[numbers] and words.word not in free[scale] and column in free[scale]:
            if isinstance(numbers, Op) and numbers.name == "halves_of_nibbles":
                small = op("small_halves_of_nibbles", numbers.args, numbers.dtype)
                return replace(words, node=small, times=SMALL), scale
            return replace(words, node=numbers), scale
    return words, None


def _is_of_words(node: Node) -> bool:
    return isinstance(node, Op) and node.name in OF_WORDS


def _converted(node: Node, whole: Node) -> float | None:
    """Return what is taken away from a whole number as it is made a half; None for other nodes."""
    if node.dtype not in (torch.float16, torch.bfloat16):
        return None
    if isinstance(node, Op) and node.name in NUMBERS and node.args[0] is whole:
        less = node.args[1]
        assert isinstance(less, Const)
        return float(less.value)
    if isinstance(node, Cast) and not node.bitcast and node.args[0] is whole:
        return 0.0
    return None


def _numbers(node: Node, axis: Symbol) -> tuple[Node, bool, int] | None:
    """Return the whole numbers that an operand is made of, whether signed, and their bits."""
    free = free_axes((node,))
    made = [
        (each, args)
        for each in walk((node,))
        for args in each.args
        if each.dtype.is_floating_point and is_whole(args.dtype) and axis in free[args]
    ]
    if not made or any(given is not made[0][1] for _, given in made):
        return None
    whole = made[0][1]
    if any(_converted(each, whole) is None for each, _ in made):
        return None
    if whole.dtype == torch.int8 and isinstance(whole, Load):
        return (whole, True, 8) if node.dtype == torch.float16 else None
    known = bounds(whole)
    if known is None or known[0] < 0 or known[1] > _EIGHT_BITS:
        return None
    if known[1] <= _FOUR_BITS:
        return whole, False, 4
    return (whole, False, 8) if node.dtype == torch.float16 else None


def _word_of(
    whole: Node,
    axis: Symbol,
    word: Symbol,
    count: int,
    signed: bool,
    buffers: Mapping[str, Buffer],
) -> tuple[Load, tuple[int, ...], int, dict[str, tuple[Buffer, str]]] | None:
    """Return the word that numbers are in, and how they lie in it."""
    width = 32 // count
    fields = []
    for phase in range(count):
        (found,) = rewrite((whole,), {axis: Expr.of(word) * count + phase}, ops.decided)
        field = _field(found)
        if field is None or field.mask != (1 << width) - 1 or field.signed != signed:
            return None
        fields.append(field)
    first = fields[0].load
    if any(f.load.buffer != first.buffer or f.load.dtype != first.dtype for f in fields):
        return None
    buffer = buffers[first.buffer]
    offsets = [buffer.offset(f.load.index) for f in fields]
    beyond = [(each - offsets[0]).constant for each in offsets]
    if any(each is None for each in beyond):
        return None
    steps = [each for each in beyond if each is not None]
    low = min(steps)
    itemsize = buffer.dtype.itemsize
    places = [8 * itemsize * (each - low) + f.shift for each, f in zip(steps, fields, strict=True)]
    if any(place % width for place in places):
        return None
    base = offsets[0] + low
    read, views = first, {}
    if itemsize == 1:
        view = _view(base, buffer, f"{first.buffer} words")
        if view is None:
            return None
        words, index = view
        views[words.name] = (words, first.buffer)
        read = load(words.name, index, torch.int32)  # type: ignore[assignment]
    elif itemsize != 4 or any(steps) or not base.is_affine_in(word):
        return None
    order = order_of([place // width for place in places])
    return None if order is None else (read, *order, views)


def _view(base: Expr, buffer: Buffer, name: str) -> tuple[Buffer, tuple[Expr]] | None:
    """Return bytes as words, and the index of one; None where words begin elsewhere."""
    if any(coefficient % 4 for coefficient in base.terms.values()):
        return None
    if any(not isinstance(atom, Symbol) for atom in base.atoms()):
        return None
    size = buffer.elements.constant
    if size is None:
        return None
    index = Expr({monomial: c // 4 for monomial, c in base.terms.items()})
    one = Expr.of(1)
    words = Buffer(name, (Expr.of(-(-size // 4)),), (one,), torch.int32, buffer.device)
    return words, (index,)


def order_of(numbers: list[int]) -> tuple[tuple[int, ...], int] | None:
    """Return which bit of an element's place is which of its place in the word, and what flips.

    None where the order is not made of such exchanges.
    """
    flip = numbers[0]
    bits = len(numbers).bit_length() - 1
    order = []
    for bit in range(bits):
        source = [b for b in range(bits) if numbers[1 << b] ^ flip == 1 << bit]
        if len(source) != 1:
            return None
        order.append(source[0])
    for place, number in enumerate(numbers):
        if sum(1 << bit for bit in range(bits) if place >> order[bit] & 1) != number ^ flip:
            return None
    return tuple(order), flip


def _field(node: Node) -> _Field | None:
    """Return which bits of memory a whole number is; None where it is not only some of them."""
    if isinstance(node, Load):
        if node.mask is not None or node.args or not is_whole(node.dtype):
            return None
        bits = 8 * node.dtype.itemsize
        return _Field(node, 0, (1 << bits) - 1, node.dtype.is_signed)
    if isinstance(node, Cast) and not node.bitcast and is_whole(node.dtype):
        below = _field(node.args[0])
        fits = below is not None and below.mask < 1 << (8 * node.dtype.itemsize - 1)
        return below if below is not None and fits and not below.signed else None
    if not (isinstance(node, Op) and node.name in ("bitwise_and", "rshift")):
        return None
    first, second = node.args
    if node.name == "bitwise_and" and _constant(first) is not None:
        first, second = second, first
    below, value = _field(first), _constant(second)
    if below is None or value is None or value < 0:
        return None
    width = 8 * below.load.dtype.itemsize
    if node.name == "rshift":
        if value >= width or below.mask == 0:
            return None
        return _Field(below.load, below.shift + value, below.mask >> value, below.signed)
    # of a signed number shifted, the copies of its sign lie above what the mask may keep
    mask = below.mask & value
    signed = below.signed and value != mask
    return _Field(below.load, below.shift, mask, signed)


def _constant(node: Node) -> int | None:
    if isinstance(node, Cast) and not node.bitcast and is_whole(node.dtype):
        return _constant(node.args[0])
    return int(node.value) if isinstance(node, Const) else None


__all__ = ["OF_WORDS", "READ", "Words", "as_words", "order_of", "scale_of_columns"]
