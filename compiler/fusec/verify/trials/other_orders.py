"""A kernel's loops in float64 with sums that are off as those of another order may be.

A sum in float32 of n terms, each added to the one before, is off by the root of n roundings as a
rule, and by n where all go one way, as they do where the terms are equal (Higham, Accuracy and
Stability of Numerical Algorithms, 2002, chapter 4).  What that does to a kernel's results is found
by doing it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from fusec.ir.interpret import Evaluator
from fusec.ir.node import Dot, Reduce, Scan

# Runs a kernel's loops in float64 on tensors and sizes, by a given evaluator.
Reorder = Callable[[Sequence[torch.Tensor], Sequence[int], type[Evaluator]], Sequence[torch.Tensor]]

# Of roundings by chance, each up to half a unit in the last place of a partial sum that grows from
# nothing, the root of n makes a third of that root; four times as much is hardly ever exceeded.
_BY_CHANCE = 2 / 3
# Where each is half a unit of what is nearly the whole sum: the most that there can be.
_ONE_WAY = 1 / 2
# Of how many terms at most: who adds more of them one by one is to be told.
_MOST_TERMS = 1 << 14


def with_other_orders(dtype: torch.dtype, *, one_way: bool) -> type[Evaluator]:
    """Return what evaluates a body with sums that are off, each by chance in either direction.

    Args:
        dtype: In which they are added up, whatever the kernel has; float32 or float64.
        one_way: Whether by as much as where all roundings go one way.
    """
    epsilon = torch.finfo(dtype).eps

    class OtherOrders(Evaluator):
        def reduce(self, node: Reduce, value: torch.Tensor) -> torch.Tensor:
            total = super().reduce(node, value)
            if node.kind != "sum" or not node.dtype.is_floating_point:
                return total
            terms = math.prod(self.extents[self.axes.index(axis)] for axis in node.axes)
            return _off(total, super().reduce(node, value.abs()), epsilon, terms, one_way)

        def scan(self, node: Scan, value: torch.Tensor) -> torch.Tensor:
            total = super().scan(node, value)
            if node.kind != "sum" or not node.dtype.is_floating_point:
                return total
            terms = self.extents[self.axes.index(node.axis)]
            return _off(total, super().scan(node, value.abs()), epsilon, terms, one_way)

        def dot(self, node: Dot, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            total = super().dot(node, left, right)
            if not node.dtype.is_floating_point:
                return total
            terms = math.prod(self.extents[self.axes.index(axis)] for axis in node.axes)
            size = super().dot(node, left.abs(), right.abs())
            return _off(total, size, epsilon, terms, one_way)

    return OtherOrders


def _off(
    total: torch.Tensor, size: torch.Tensor, epsilon: float, terms: int, one_way: bool
) -> torch.Tensor:
    """Return sums that are off; those that are not finite stay."""
    terms = min(terms, _MOST_TERMS)
    units = terms * _ONE_WAY if one_way else math.sqrt(terms) * _BY_CHANCE
    sign = torch.randint(0, 2, total.shape, device=total.device) * 2 - 1
    changed = total + sign * size * (units * epsilon)
    return torch.where(changed.isfinite(), changed, total)


__all__ = ["Reorder", "with_other_orders"]
