"""Windows that slide along a dimension: where they lie, and which of them cover an element."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from typing import Protocol

import torch

from fusec.ir import ops
from fusec.ir.index import Expr, is_nonnegative
from fusec.ir.node import Node, Number
from fusec.ir.shapes import product
from fusec.lower.dimensions import normalize_dim
from fusec.lower.movement.views import view
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import Index, NotLowered, Shape, TensorValue

# Windows of up to this many elements are written out, one read after the other.
UNROLLED = 32


class Taps(Protocol):
    """The positions in one dimension that belong to an index of another one."""

    @property
    def length(self) -> Expr:
        """How many there are at most."""

    @property
    def step(self) -> int:
        """From one to the next."""

    def start(self, i: Expr) -> Expr:
        """Return the first position."""

    def reached(self, i: Expr, t: Expr) -> Node | None:
        """Return whether the ``t``-th position is not before the dimension; None for always."""

    def inside(self, i: Expr, t: Expr) -> Node | None:
        """Return whether there is a ``t``-th position; None for always."""


@dataclass(frozen=True)
class Sliding:
    """The elements under a window that moves in equal steps.

    Attributes:
        size: Of the dimension that it moves along.
        count: How many windows there are.
        length: Elements of a window.
        stride: From a window to the next.
        padding: Positions before the dimension, and after it, that a window may cover.
        step: From an element of a window to the next.
        ceil_mode: Whether the last window may end after the padding.
    """

    size: Expr
    count: Expr
    length: Expr
    stride: Expr
    padding: int = 0
    step: int = 1
    ceil_mode: bool = False

    def start(self, i: Expr) -> Expr:
        """Return the position of the first element, which may be in the padding."""
        return i * self.stride - self.padding

    def reached(self, i: Expr, t: Expr) -> Node | None:
        """Return whether an element is not in the padding before."""
        missing = self.padding - t * self.step
        if is_nonnegative(-missing):
            return None
        if missing.constant is None:
            return compare("ge", self.start(i) + t * self.step, Expr.of(0))
        # A bound of the window's own number lets code generators split their loops there.
        return compare("ge", i, -(-missing // self.stride))

    def inside(self, i: Expr, t: Expr) -> Node | None:
        """Return whether an element is in no padding."""
        return ops.logical_and(self.reached(i, t), self._before_end(i, t))

    def _before_end(self, i: Expr, t: Expr) -> Node | None:
        last = self.start(self.count - 1) + t * self.step
        if is_nonnegative(self.size - 1 - last):
            return None
        if not self.ceil_mode:  # the last element of a window is no further than the padding
            rest = (self.length - 1 - t) * self.step
            if is_nonnegative(rest - self.padding):
                return None
        if t.constant is None or self.size.constant is None:
            return compare("lt", self.start(i) + t * self.step, self.size)
        return compare("lt", i, (self.size - 1 + self.padding - t * self.step) // self.stride + 1)

    def elements(self, i: Expr) -> Expr:
        """Return how many elements a window has."""
        return self.length

    def covering(self, around: bool = False) -> Covering:
        """Return the windows over an element; with ``around`` perhaps others beside them."""
        return Covering(self, around)


@dataclass(frozen=True)
class Covering:
    """The windows that cover an element, the last of them first.

    Attributes:
        windows: All of them.
        around: Whether windows beside these do no harm.
        step: From a window to the next.
    """

    windows: Sliding
    around: bool = False
    step: int = -1

    @property
    def reach(self) -> Expr:
        """The positions from the first to the last of a window."""
        return (self.windows.length - 1) * self.windows.step + 1

    @property
    def length(self) -> Expr:
        """How many windows cover an element at most."""
        return -(-self.reach // self.windows.stride)

    def start(self, i: Expr) -> Expr:
        """Return the last window that begins at an element or before."""
        return (i + self.windows.padding) // self.windows.stride

    def reached(self, i: Expr, t: Expr) -> Node | None:
        """Return whether the window's number is not negative."""
        first = t * self.windows.stride - self.windows.padding
        return None if is_nonnegative(-first) else compare("ge", i, first)

    def inside(self, i: Expr, t: Expr) -> Node | None:
        """Return whether the window exists, and reaches as far as the element."""
        w = self.windows
        conditions = [self.reached(i, t)]
        end = (w.count + t) * w.stride - w.padding
        if w.size.constant is None or t.constant is None:
            conditions.append(compare("lt", self.start(i) - t, w.count))
        elif not is_nonnegative(end - w.size):
            conditions.append(compare("lt", i, end))
        rest = self.reach - t * w.stride
        if not self.around and not is_nonnegative(rest - w.stride):
            conditions.append(compare("lt", (i + w.padding) % w.stride, rest))
        return ops.logical_and(*conditions)


@dataclass(frozen=True)
class Spread:
    """The elements that windows of unequal sizes share out: ``[i * size // count, ...)``.

    The windows over an element lie in the same way, with the two sizes exchanged.

    Attributes:
        size: Of the dimension, known.
        count: How many windows there are, known.
        step: From an element to the next.
    """

    size: int
    count: int
    step: int = 1

    def start(self, i: Expr) -> Expr:
        """Return the first position."""
        return i * self.size // self.count

    def end(self, i: Expr) -> Expr:
        """Return the position after the last one."""
        return -(-((i + 1) * self.size) // self.count)

    def elements(self, i: Expr) -> Expr:
        """Return how many elements a window has."""
        return self.end(i) - self.start(i)

    def _lengths(self) -> list[int]:
        size, count = self.size, self.count
        return [-(-(i + 1) * size // count) - i * size // count for i in range(count)]

    @property
    def length(self) -> Expr:
        """Elements of the largest window."""
        return Expr.of(max(self._lengths(), default=0))

    def reached(self, i: Expr, t: Expr) -> Node | None:
        """Windows begin in the dimension."""
        return None

    def inside(self, i: Expr, t: Expr) -> Node | None:
        """Return whether the window is as long as that."""
        if t.constant is not None and t.constant < min(self._lengths(), default=0):
            return None
        return compare("lt", self.start(i) + t, self.end(i))

    def covering(self, around: bool = False) -> Spread:
        """Return the windows over an element, whatever is ``around``."""
        return Spread(self.count, self.size)


def adaptive_windows(size: Expr, count: Expr) -> Sliding | Spread:
    """Return the windows that share out a dimension of ``size`` among ``count`` results.

    Raises:
        NotLowered: A size is symbolic, so that how long the windows are is not known.
    """
    if count.constant == 1:
        return Sliding(size, count, size, size)
    if size.constant is None or count.constant is None:
        raise NotLowered("adaptive pooling of a symbolic size")
    if count.constant and size.constant % count.constant == 0:
        length = Expr.of(size.constant // count.constant)
        return Sliding(size, count, length, length)
    return Spread(size.constant, count.constant)


def compare(name: str, left: Expr, right: Expr) -> Node:
    """Return a comparison of positions; of a position and a number where the sizes are known."""
    if right.constant is None:
        left, right = left - right, Expr.of(0)
    return ops.binary(name, ops.index_value(left, torch.int64), ops.index_value(right, torch.int64))


# -- all dimensions -------------------------------------------------------------------------------


def lengths(taps: Sequence[Taps]) -> Shape:
    """Return how many positions there are in each dimension."""
    return tuple(each.length for each in taps)


def is_small(taps: Sequence[Taps], limit: int = UNROLLED) -> bool:
    """Whether the positions of all dimensions are few enough to be written out."""
    count = product(lengths(taps)).constant
    return count is not None and count <= limit


def every(taps: Sequence[Taps]) -> Iterator[Index]:
    """Yield the number of each position in each dimension, in order of memory."""
    ranges = []
    for each in taps:
        assert each.length.constant is not None
        numbers = range(each.length.constant)
        ranges.append(numbers if each.step > 0 else reversed(numbers))
    for found in combinations(*map(list, ranges)):
        yield tuple(Expr.of(t) for t in found)


def position(taps: Sequence[Taps], index: Index, t: Index) -> Index:
    """Return the ``t``-th position in each dimension."""
    return tuple(each.start(i) + n * each.step for each, i, n in zip(taps, index, t, strict=True))


def inside(taps: Sequence[Taps], index: Index, t: Index) -> Node | None:
    """Return whether there is a ``t``-th position in each dimension; None for always."""
    found = (each.inside(i, n) for each, i, n in zip(taps, index, t, strict=True))
    return ops.logical_and(*found)


def at(
    taps: Sequence[Taps], index: Index, t: Index, value: Callable[[Index], Node]
) -> tuple[Node | None, Node]:
    """Return whether there is a ``t``-th position in each dimension, and a value there.

    Where there is none, nothing is read.
    """
    condition = inside(taps, index, t)
    element = value(position(taps, index, t))
    if condition is None:
        return None, element
    return condition, ops.guard_loads(element, condition)


def chosen(part: tuple[Node | None, Node], other: Number) -> Node:
    """Return what ``at`` found, ``other`` where there is nothing."""
    condition, value = part
    return (
        value if condition is None else ops.where(condition, value, ops.const(other, value.dtype))
    )


# -- unfold ---------------------------------------------------------------------------------------


@register(aten.unfold.default)
def unfold(lowering: Lowering, x: TensorValue, dim: int, size: object, step: object) -> TensorValue:
    """Return x's windows along a dimension; their elements are the last dimension."""
    dim = normalize_dim(dim, x.ndim)
    stride = Expr.of(step)  # type: ignore[arg-type]

    def move(index: Index) -> Index:
        if x.ndim == 0:
            return ()
        place = index[dim] * stride + index[-1]
        return (*index[:dim], place, *index[dim + 1 : -1])

    return view(lowering, x, move)


__all__ = [
    "Covering",
    "Sliding",
    "Spread",
    "Taps",
    "adaptive_windows",
    "at",
    "chosen",
    "compare",
    "every",
    "inside",
    "is_small",
    "lengths",
    "position",
]
