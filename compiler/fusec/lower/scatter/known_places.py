"""Adding at places that are known beforehand: each element gathers what is added to it.

The gradient of an interpolation adds to the elements that a result was made of.  Where they are
follows from the result's place alone: so it is known, once the sizes are, which results an element
was used by.  They are a few neighbors, and an element that adds them up needs no atomic operation,
no memory to fill with zeros first, and becomes one kernel with the other elements that a result
was made of (four of 335 us were the gradient of one bilinear enlargement in a U-Net on a GPU).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product as combinations

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.ir import ops
from fusec.ir.along import KnownValues
from fusec.ir.body import new_axes
from fusec.ir.index import Expr
from fusec.ir.node import Const, Node
from fusec.ir.walk import rewrite
from fusec.lower.definitions import Definitions
from fusec.lower.dimensions import broadcast_shape
from fusec.lower.movement.windows import compare
from fusec.lower.pointwise.elementwise import convert
from fusec.lower.values import Element, Index, Lowering, Shape, TensorValue

# An element looks through so many places for those that add to it.
MOST_PLACES = 36


@dataclass(frozen=True)
class Adding:
    """What adds to the elements along a dimension.

    Attributes:
        axis: Which dimension of the index tensors' common shape says it; None if none does.
        count: Size of that axis.
        size: Of the dimension.
        first: The window of element ``t`` begins at ``t * count // size + first``.
        applies: For every place of the window whether it adds to element ``t``, 1-D over ``t``.
        target: The index tensor's value, of a position along the axis.
    """

    axis: int | None
    count: int
    size: int
    first: int
    applies: tuple[torch.Tensor, ...]
    target: Callable[[Expr], Node]

    def places(self, t: Expr) -> list[Contribution]:
        """Return the places that may add to element ``t``."""
        start = t * self.count // self.size + self.first
        everywhere = torch.arange(self.size) * self.count // self.size + self.first
        found = []
        for step, applies in enumerate(self.applies):
            if bool(applies.any()):
                places = everywhere + step
                inside = holds((places >= 0) & (places < self.count), t)
                assert inside is None or isinstance(inside, Node)  # one stretch of elements
                adds = holds(applies, t)
                found.append(Contribution(start + step, inside, self._is_it(start + step, t, adds)))
        return found

    def _is_it(self, place: Expr, t: Expr, adds: Node | bool | None) -> Node | None:
        """Return whether a place adds to ``t``, found at run time where no stretch of them does."""
        if not isinstance(adds, bool):
            return adds
        target = ops.cast(self.target(place), torch.int64)
        return ops.binary("eq", target, ops.index_value(t, torch.int64))


@dataclass(frozen=True)
class Contribution:
    """One place that may add to an element.

    Attributes:
        position: Along the axis.
        inside: Whether it is one; None: always.
        applies: Whether, inside, it adds to the element; None: always.
    """

    position: Expr
    inside: Node | None
    applies: Node | None


def holds(table: torch.Tensor, t: Expr) -> Node | bool | None:
    """Return the condition of a table over ``t``: None for always, False if no one stretch has it.

    Args:
        table: Booleans, one of them true at least.
        t: The position in it.
    """
    found = table.nonzero().flatten()
    low, high = int(found[0]), int(found[-1])
    if len(found) <= high - low:
        return False
    return ops.logical_and(
        compare("ge", t, Expr.of(low)) if low else None,
        compare("le", t, Expr.of(high)) if high < len(table) - 1 else None,
    )


def gathered_sums(
    lowering: Lowering,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    values: Element,
    dtype: torch.dtype,
) -> Element | None:
    """Return the elements of x with ``values`` added at ``indices``, if these places are known.

    Args:
        lowering: The state.
        x: What is added to; of the result's shape.
        indices: Of its dimensions; None for a whole one.
        values: Index into ``x[indices]`` to what is added.
        dtype: In which the sums are computed.

    Returns:
        The element of an index into x, in ``dtype``; None where places depend on data, on sizes
        that are not known, on each other, or are too many.
    """
    given = {d: i for d, i in enumerate(indices) if i is not None}
    chosen = broadcast_shape(*(i.shape for i in given.values()))
    definitions, known_values = Definitions(lowering.steps), KnownValues()
    with unset_fake_temporarily():  # graphs are compiled while torch traces with fake tensors
        found = {d: _adding(x.shape[d], i, chosen, definitions) for d, i in given.items()}
    along: dict[int, Adding] = {d: a for d, a in found.items() if a is not None}
    used = [a.axis for a in along.values() if a.axis is not None]
    spread = [axis for axis, size in enumerate(chosen) if size != Expr.of(1)]
    if (
        len(along) < len(given)
        or sorted(used) != spread
        or math.prod(len(a.applies) for a in along.values()) > MOST_PLACES
    ):
        return None
    dims = tuple(given)
    adjacent = dims == tuple(range(dims[0], dims[-1] + 1))
    before = dims[0] if adjacent else 0

    def element(at: Index) -> Node:
        with unset_fake_temporarily():
            return summed(at)

    def summed(at: Index) -> Node:
        total = convert(x.at(at), dtype)
        choices = [along[d].places(at[d]) for d in dims]
        kept = [i for d, i in enumerate(at) if d not in given]
        for places in combinations(*choices):
            inner = [Expr.of(0)] * len(chosen)
            for d, place in zip(dims, places, strict=True):
                axis = along[d].axis
                if axis is not None:
                    inner[axis] = place.position
            value = values((*kept[:before], *inner, *kept[before:]))
            value = convert(definitions.expanded_where_cheap(value), dtype)
            # loads depend on the place alone, so that sums at other places share them
            inside = ops.logical_and(*(place.inside for place in places))
            if inside is not None:
                value = ops.guard_loads(value, inside)
            applies = ops.logical_and(*(place.applies for place in places))
            if applies is not None:
                value = ops.where(applies, value, ops.const(0, dtype))
            total = ops.binary("add", total, value)
        return rewrite((total,), {}, known_values.simplified)[0]

    return element


def _adding(
    size: Expr, index: TensorValue, chosen: Shape, definitions: Definitions
) -> Adding | None:
    """Return what adds along a dimension of ``size`` that ``index`` names; None if unknown."""
    sizes = [extent.constant for extent in index.shape]
    own = [d for d, extent in enumerate(sizes) if extent != 1]
    if size.constant is None or size.constant < 1 or None in sizes or 0 in sizes or len(own) > 1:
        return None
    skipped = len(chosen) - index.ndim

    def target(position: Expr) -> Node:
        place = tuple(position if d in own else Expr.of(0) for d in range(index.ndim))
        return definitions.expanded(index.at(place))

    count = sizes[own[0]] if own else 1
    assert count is not None
    (symbol,) = new_axes((Expr.of(count),), "p")
    node = target(Expr.of(symbol))
    known_values = KnownValues()
    if isinstance(node, Const):
        table = torch.full((count,), int(node.value))
    elif known_values.axis_of(node) is symbol:
        table = known_values.table(node, symbol).to(torch.int64)
    else:
        return None
    if bool(((table < 0) | (table >= size.constant)).any()):
        return None
    axis = own[0] + skipped if own else None
    first, applies = _windows(table, size.constant)
    if len(applies) > MOST_PLACES:
        return None
    return Adding(axis, count, size.constant, first, applies, target)


def _windows(table: torch.Tensor, size: int) -> tuple[int, tuple[torch.Tensor, ...]]:
    """Return ``Adding.first`` and ``Adding.applies`` of places that name these elements."""
    count = len(table)
    places = torch.arange(count)
    offset = places - table * count // size
    first, last = int(offset.min()), int(offset.max())
    if last - first >= MOST_PLACES:
        return first, (torch.ones(size, dtype=torch.bool),) * (MOST_PLACES + 1)
    applies = []
    targets = torch.arange(size)
    for step in range(first, last + 1):
        place = targets * count // size + step
        inside = (place >= 0) & (place < count)
        applies.append(inside & (table[place.clamp(0, count - 1)] == targets))
    return first, tuple(applies)


__all__ = ["gathered_sums"]
