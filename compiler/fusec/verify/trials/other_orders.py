"""A kernel's loops in float64 with sums that are off as those of another order may be.

A sum of n terms, each added to the one before, is off by the root of n roundings as a rule, and by
n where all go one way, as they do where many terms are equal or one is nearly all of the sum
(Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapter 4).  How much it is of the
terms at hand is found by adding them so; what that does to a kernel's results, by doing it to the
sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy
import torch

from fusec.devices import CPU
from fusec.ir.interpret import Evaluator
from fusec.ir.node import Dot, Reduce, Scan

# Runs a kernel's loops in float64 on tensors and sizes, by a given evaluator.
Reorder = Callable[[Sequence[torch.Tensor], Sequence[int], type[Evaluator]], Sequence[torch.Tensor]]

# Of roundings by chance, each up to half a unit in the last place of a partial sum that grows from
# nothing, the root of n makes a third of that root; four times as much is hardly ever exceeded.
_BY_CHANCE = 2 / 3
# Of how many terms at most: who adds more of them one by one is to be told.
_MOST_TERMS = 1 << 14
# How many times as far off as one by one a result may be: another loop has other luck.
_TIMES = 2.0
_ABOUT = 0.25


def with_other_orders(dtype: torch.dtype) -> type[Evaluator]:
    """Return what evaluates a body with sums that are off, each by chance in either direction.

    Args:
        dtype: In which they are added up, whatever the kernel has; float32 or float64.
    """
    epsilon = torch.finfo(dtype).eps

    class OtherOrders(Evaluator):
        def reduce(self, node: Reduce, value: torch.Tensor) -> torch.Tensor:
            total = super().reduce(node, value)
            if node.kind != "sum" or not node.dtype.is_floating_point:
                return total
            dims = [self.axes.index(axis) for axis in node.axes]
            extents = [self.extents[dim] for dim in dims]
            rest = [dim for dim in range(value.dim()) if dim not in dims]
            shape = [self.extents[d] if d in dims else value.shape[d] for d in range(value.dim())]
            terms = value.expand(shape).permute([*rest, *dims]).flatten(len(rest))
            in_turn = _added_in_turn(terms, dtype)[..., -1:].reshape(total.shape)
            size = super().reduce(node, value.abs()) * _chance(math.prod(extents), epsilon)
            return _off(total, size, in_turn)

        def scan(self, node: Scan, value: torch.Tensor) -> torch.Tensor:
            total = super().scan(node, value)
            if node.kind != "sum" or not node.dtype.is_floating_point:
                return total
            dim = self.axes.index(node.axis)
            size = super().scan(node, value.abs()) * _chance(self.extents[dim], epsilon)
            terms = value.expand(total.shape).movedim(dim, -1)
            return _off(total, size, _added_in_turn(terms, dtype).movedim(-1, dim))

        def dot(self, node: Dot, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            total = super().dot(node, left, right)
            if not node.dtype.is_floating_point:
                return total
            terms = math.prod(self.extents[self.axes.index(axis)] for axis in node.axes)
            size = super().dot(node, left.abs(), right.abs()) * _chance(terms, epsilon)
            return _off(total, size, total)

    return OtherOrders


def _chance(terms: int, epsilon: float) -> float:
    """Return how far a sum of so many terms is off by chance, as a part of their sizes' sum."""
    return math.sqrt(min(terms, _MOST_TERMS)) * _BY_CHANCE * epsilon


def _added_in_turn(terms: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the sums along the last dimension, each rounded; many terms in several parts."""
    if terms.shape[-1] == 0:
        return terms.new_zeros((*terms.shape[:-1], 1))
    found = torch.zeros_like(terms[..., :1])
    parts = []
    for part in terms.split(_MOST_TERMS, -1):
        rounded = part.to(CPU, dtype).contiguous().numpy()
        with numpy.errstate(over="ignore", invalid="ignore"):
            added = numpy.add.accumulate(rounded, axis=-1)  # torch's own adds float32 in float64
        parts.append(found + torch.from_numpy(added).to(terms))
        found = parts[-1][..., -1:]
    return torch.cat(parts, -1)


def _off(total: torch.Tensor, chance: torch.Tensor, in_turn: torch.Tensor) -> torch.Tensor:
    """Return sums that are off; those that are not finite stay."""
    off = torch.maximum(chance, _TIMES * (in_turn - total).abs())
    sign = torch.randint(0, 2, total.shape, device=total.device) * 2 - 1
    # About as much: what is computed from it, of few different numbers, say, rounds otherwise then.
    about = 1 + _ABOUT * (torch.rand(total.shape, device=total.device) * 2 - 1)
    changed = total + sign * about * off
    return torch.where(changed.isfinite(), changed, total)


__all__ = ["Reorder", "with_other_orders"]
