"""Operands of matrix products that lie in memory as bytes, or as two numbers a byte.

A weight of few bits is unpacked in registers by every tile that multiplies it, and what that costs
is instructions.  Three things make them few.  The two numbers of a byte are computed from one load
of it, and laid beside each other: as the IR has it, each element asks which half it is and loads
the byte for itself.  A byte is put into the bits of a half beside 1024, which is taken away again,
where the instruction for converting takes as long as four others; for bfloat16, of which too few
bits would be left, into those of a float32.  And what is exact in float16 is computed so, two
numbers an instruction.  What a group of elements shares, a scale, is
loaded once for a step that lies within a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch

from fusec.ir import ops
from fusec.ir.bounds import bounds
from fusec.ir.index import Expr, FloorDiv, Symbol
from fusec.ir.node import (
    Cast,
    Const,
    IndexValue,
    Load,
    Node,
    Op,
    cast,
    const,
    index_value,
    load,
    op,
)
from fusec.ir.walk import free_axes, rewrite, walk

INTERLEAVE = "interleave"  # of two values over half of an axis: first, second, first, second ...
LEAST_STEP = 32  # elements of a group that it is worth having steps for
_HALF_OF = {True: "half_of_byte", False: "half_of_signed_byte"}
_FLOAT_OF = {True: "float_of_byte", False: "float_of_signed_byte"}
HELPED = frozenset({*_HALF_OF.values(), *_FLOAT_OF.values()})
FUSED = "fma"
_BFLOAT = "bfloat_of_nibble"  # is never written: ``word_operands`` puts another in its place
NUMBERS = frozenset({*HELPED, _BFLOAT})
_NIBBLE = 15  # the largest number of 4 bits
_BYTE = 255  # the largest unsigned number that is converted by its bits
# Up to where a type has all whole numbers.
_LARGEST = {torch.float16: 2048, torch.bfloat16: 256}
_EXACT = frozenset({"add", "sub", "mul"})


@dataclass(frozen=True)
class Unpacked:
    """An operand, rewritten.

    Attributes:
        node: Its elements.
        pair: The axis of bytes of two elements each; None where there are none.
        start: Stands for where a step begins, in what all of a step shares; None where nothing is.
    """

    node: Node
    pair: Symbol | None = None
    start: Symbol | None = None


def reads_bytes(node: Node, axis: Symbol) -> bool:
    """Whether an operand is computed from bytes that vary along the summed axis."""
    loads = [n for n in walk((node,)) if isinstance(n, Load)]
    free = free_axes((node,))
    return not isinstance(node, Load) and any(
        is_whole(n.dtype) and len(free[n]) > 1 and axis in free[n] for n in loads
    )


def group_of(node: Node, axis: Symbol) -> int:
    """Return how many elements along an axis share what a group shares; 0 where there are none."""
    nodes = walk((node,))
    groups = [c for n in nodes if isinstance(n, Load) and (c := _shared(n, axis))]
    found = gcd(*groups, *(c for n in nodes if (c := _threshold(n, axis))))
    return found if found % LEAST_STEP == 0 else 0


def unpack(node: Node, axis: Symbol, step: int) -> Unpacked:
    """Return an operand with cheaper forms in it.

    Args:
        node: An element.
        axis: The summed axis, of a known size.
        step: What all its steps divide, elements; 0 where no group is shared.
    """
    pair, start = None, None
    (node,) = rewrite((node,), {})  # among this recorder's nodes: they are found again below
    node = pruned(node)
    if _even(axis):
        size = axis.size
        assert size is not None
        pair = Symbol("pair", "axis", size // 2)
        found = _interleaved(node, axis, pair)
        if found is node:
            pair = None
        node = found
    if step:
        start = Symbol("start", "axis", axis.size)
        node = resolved(node, axis, start, step)
    return Unpacked(narrowed(node), pair, start)


def resolved(node: Node, axis: Symbol, start: Symbol, step: int) -> Node:
    """Return ``node`` with what a step shares taken from where the step begins.

    Args:
        node: An element.
        axis: The summed axis.
        start: Where the step begins.
        step: What all steps divide, elements.
    """

    def resolve(each: Node) -> Node | None:
        if _threshold(each, axis):
            index, limit = each.args
            return op(each.name, (index_value(Expr.of(start), index.dtype), limit), each.dtype)  # type: ignore[attr-defined]
        if not isinstance(each, Load):
            return None
        shared = _shared(each, axis)
        if not shared or shared % step:
            return None
        where = tuple(e.substitute({axis: Expr.of(start)}) for e in each.index)
        return load(each.buffer, where, each.dtype)

    return rewrite((node,), {}, resolve)[0]


_OPPOSITE = {"lt": "ge", "ge": "lt"}


def pruned(node: Node) -> Node:
    """Return ``node`` without choices that one around them has made already.

    What joins two tensors asks for each of them whether an element is its own, and then which of
    them to take.
    """

    def resolve(each: Node) -> Node | None:
        if not (isinstance(each, Op) and each.name == "where"):
            return None
        condition, first, second = each.args
        taken = _taken(first, condition, True), _taken(second, condition, False)
        return None if taken == (first, second) else op("where", (condition, *taken), each.dtype)

    return rewrite((node,), {}, resolve)[0]


def _taken(node: Node, condition: Node, holds: bool) -> Node:
    """Return what a choice comes to where a condition is known to hold, or not to."""
    if not (isinstance(node, Op) and node.name == "where"):
        return node
    own, first, second = node.args
    if own is condition:
        return first if holds else second
    both = isinstance(own, Op) and isinstance(condition, Op) and own.args == condition.args
    if both and _OPPOSITE.get(own.name) == condition.name:  # type: ignore[attr-defined]
        return second if holds else first
    return node


def _even(axis: Symbol) -> bool:
    size = axis.size.constant if axis.size is not None else None
    return size is not None and size % 2 == 0


def _shared(node: Load, axis: Symbol) -> int:
    """Return the size of the groups along ``axis`` that share an element; 0 where none do."""
    if node.mask is not None or node.args:
        return 0
    found = 0
    for expr in node.index:
        for atom in expr.atoms():
            if isinstance(atom, Symbol):
                if atom is axis:
                    return 0
                continue
            group = atom.divisor.constant if isinstance(atom, FloorDiv) else None
            if group is not None and atom.numerator == Expr.of(axis):
                found = gcd(found, group)
            elif axis in _symbols(atom):
                return 0
    return found if found % LEAST_STEP == 0 else 0


def _threshold(node: Node, axis: Symbol) -> int:
    """Return the limit that an index along ``axis`` is compared with; 0 for other nodes."""
    if not (isinstance(node, Op) and node.name in ("lt", "ge")):
        return 0
    index, limit = node.args
    if not (isinstance(index, IndexValue) and index.expr == Expr.of(axis)):
        return 0
    return int(limit.value) if isinstance(limit, Const) and limit.value == int(limit.value) else 0


def _symbols(atom: object) -> frozenset[Symbol]:
    numerator, divisor = atom.numerator, atom.divisor  # type: ignore[attr-defined]
    return frozenset(numerator.symbols() | divisor.symbols())


def _interleaved(node: Node, axis: Symbol, pair: Symbol) -> Node:
    """Return ``node`` with both numbers of a byte computed together."""
    changed: dict[Node, Node] = {}
    covered: set[Node] = set()
    for each in reversed(walk((node,))):  # users before their arguments
        if each in covered:
            covered.update(each.args)
        elif isinstance(each, Op) and each.name == "where" and is_whole(each.dtype):
            both = _phases(each, axis, pair)
            if both is not None:
                changed[each] = op(INTERLEAVE, both, each.dtype)
                covered.update(each.args)
    return rewrite((node,), {}, changed.get)[0] if changed else node


def _phases(node: Op, axis: Symbol, pair: Symbol) -> tuple[Node, Node] | None:
    """Return the elements at even and at odd places, where both are of the same bytes."""
    first, second = (
        rewrite((node,), {axis: Expr.of(pair) * 2 + phase}, ops.decided)[0] for phase in (0, 1)
    )
    free = free_axes((first, second))
    if pair not in free[first] or free[first] != free[second] or len(free[first]) < 2:
        return None
    for each in walk((first, second)):
        if isinstance(each, IndexValue) or (isinstance(each, Op) and each.name == "where"):
            return None
        if isinstance(each, Load):
            along = [e for e in each.index if pair in e.symbols()]
            if each.mask is not None or each.args or any(not e.is_affine_in(pair) for e in along):
                return None
    return first, second


def narrowed(node: Node, few: bool = False) -> Node:
    """Return a half-precision value computed in fewer instructions that give the same.

    Args:
        node: The value.
        few: Whether bfloat16 is to be computed as itself, where its whole numbers have few bits.
    """
    half = node.dtype
    if half == torch.bfloat16 and not few:
        return rewrite((node,), {}, _widened)[0]
    if half not in _LARGEST:
        return node
    if not (isinstance(node, Cast) and node.args[0].dtype == torch.float32 and not node.bitcast):
        return _converted(node, half) or node
    value = node.args[0]
    if isinstance(value, Op) and value.name in _EXACT:
        # float32 holds twice the bits and two more: rounding it again is rounding once
        args = [_narrow(arg, half) for arg in value.args]
        if all(arg is not None for arg in args):
            return op(value.name, tuple(arg for arg in args if arg is not None), half)
        if few and value.name == "add":
            return _fused(value, half) or node
    return node


def _fused(node: Op, half: torch.dtype) -> Node | None:
    """Return a product plus something as one operation, which rounds once."""
    for product, other in (node.args, node.args[::-1]):
        if isinstance(product, Op) and product.name == "mul":
            args = [_narrow(arg, half) for arg in (*product.args, other)]
            if all(arg is not None for arg in args):
                return op(FUSED, tuple(arg for arg in args if arg is not None), half)
    return None


def _widened(node: Node) -> Node | None:
    """Return a byte that is made a bfloat16, or a float32, as a float32 by its bits."""
    if not isinstance(node, Cast) or node.bitcast:
        return None
    if node.dtype == torch.bfloat16:
        found = _converted(cast(node.args[0], torch.float32), torch.float32)
        return None if found is None else cast(found, torch.bfloat16)
    given = node.args[0]
    if isinstance(given, Cast) and given.args[0].dtype == torch.float32:
        byte = given.args[0]  # a byte's float32, rounded to bfloat16, which has all of them
        return byte if isinstance(byte, Op) and byte.name in HELPED else None
    return _converted(node, torch.float32) if node.dtype == torch.float32 else None


def _converted(node: Node, dtype: torch.dtype, less: float = 0.0) -> Node | None:
    """Return a small whole number as a float, by its bits, less a constant."""
    if not isinstance(node, Cast) or node.bitcast or not is_whole(node.args[0].dtype):
        return None
    given = node.args[0]
    known = bounds(given)
    unsigned = known is not None and known[0] >= 0 and known[1] <= _BYTE
    if dtype == torch.bfloat16:  # for words alone
        small = known is not None and known[0] >= 0 and known[1] <= _NIBBLE
        return op(_BFLOAT, (given, const(less, dtype)), dtype) if small else None
    if not unsigned and given.dtype != torch.int8:
        return None
    names = _HALF_OF if dtype == torch.float16 else _FLOAT_OF
    return op(names[unsigned], (given, const(less, dtype)), dtype)


def is_whole(dtype: torch.dtype) -> bool:
    """Whether a type has whole numbers only."""
    return not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool


def _narrow(node: Node, half: torch.dtype) -> Node | None:
    """Return a float32 value in half precision, where it is the same number; else None."""
    if isinstance(node, Const):
        value = torch.tensor(node.value, dtype=torch.float64)
        return const(node.value, half) if value.to(half).double() == value else None
    if isinstance(node, Cast) and not node.bitcast:
        given = node.args[0]
        if given.dtype == half:
            return narrowed(given, few=half == torch.bfloat16)
        return _converted(node, half)
    if isinstance(node, Op) and node.name in _EXACT:
        known = _whole(node)
        if known is None or max(abs(known[0]), abs(known[1])) > _LARGEST[half]:
            return None
        args = [_narrow(arg, half) for arg in node.args]
        if all(arg is not None for arg in args):
            number, other = node.args
            if node.name == "sub" and isinstance(other, Const) and 0 <= other.value <= _BYTE:
                # taken away together with what stands beside the bits
                while isinstance(number, Cast) and number.args[0].dtype.is_floating_point:
                    number = number.args[0]
                found = _converted(number, half, float(other.value))
                if found is not None:
                    return found
            return op(node.name, tuple(arg for arg in args if arg is not None), half)
    return None


def _whole(node: Node) -> tuple[float, float] | None:
    """Return the range of a value that is a whole number for sure; None for others."""
    if isinstance(node, Const):
        return (node.value, node.value) if node.value == int(node.value) else None
    if isinstance(node, Cast) and not node.bitcast:
        given = node.args[0]
        return bounds(given) if is_whole(given.dtype) else _whole(given)
    if isinstance(node, Op) and node.name in _EXACT:
        a, b = _whole(node.args[0]), _whole(node.args[1])
        if a is None or b is None:
            return None
        corners = {
            "add": (a[0] + b[0], a[1] + b[1]),
            "sub": (a[0] - b[1], a[1] - b[0]),
            "mul": tuple(x * y for x in a for y in b),
        }[node.name]
        return min(corners), max(corners)
    return None


__all__ = [
    "FUSED",
    "HELPED",
    "INTERLEAVE",
    "NUMBERS",
    "Unpacked",
    "group_of",
    "is_whole",
    "narrowed",
    "pruned",
    "reads_bytes",
    "resolved",
    "unpack",
]
