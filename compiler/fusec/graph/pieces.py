"""Decompositions of what is copies of pieces side by side: padding with what is there, ``roll``.

Torch's own read at places that absolute values, clamps and remainders give. Of those a loop knows
nothing ahead: each element is read by itself, where most of a row is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._decomp import get_decompositions
from torch._prims_common import suggest_memory_format

Edge = Callable[[torch.Tensor, int, int], torch.Tensor]


def reflection_pad(operator: torch._ops.OpOverload) -> Callable[..., object]:
    """Return a padding by reflection as pieces, of which two are turned over."""

    def before(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
        return x.narrow(dim, 1, count).flip(dim)

    def after(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
        return x.narrow(dim, x.shape[dim] - 1 - count, count).flip(dim)

    return _padding(operator, before, after, lambda count, size: count < size)


def replication_pad(operator: torch._ops.OpOverload) -> Callable[..., object]:
    """Return a padding by the elements at the edges as pieces, of which two are repeated."""

    def before(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
        return _repeated(x.narrow(dim, 0, 1), dim, count)

    def after(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
        return _repeated(x.narrow(dim, x.shape[dim] - 1, 1), dim, count)

    return _padding(operator, before, after, lambda count, size: True)


def _repeated(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    return x.expand([count if n == dim else size for n, size in enumerate(x.shape)])


def _padding(
    operator: torch._ops.OpOverload, before: Edge, after: Edge, fits: Callable[[int, int], bool]
) -> Callable[..., object]:
    """Return a decomposition into pieces on a CPU; torch's own elsewhere, and of what crops.

    Args:
        operator: The padding.
        before: What is put before a tensor along a dimension, of a number of elements.
        after: What is put after it.
        fits: Whether so many elements can be made of a size.
    """
    rule = get_decompositions([operator])[operator]

    def amended(x: torch.Tensor, padding: list[int]) -> object:
        ends = [padding[n : n + 2] for n in range(0, len(padding), 2)]
        sizes = [x.shape[-1 - n] for n in range(min(len(ends), x.ndim))]
        known = all(isinstance(n, int) for n in (*padding, *sizes))
        known = known and any(padding) and 0 not in x.shape
        if x.device.type != "cpu" or not known or x.ndim - len(ends) not in (1, 2):
            return rule(x, padding)
        pairs = [(end, size) for pair, size in zip(ends, sizes, strict=True) for end in pair]
        if any(end < 0 or not fits(end, size) for end, size in pairs):
            return rule(x, padding)  # what crops, or is refused
        memory_format = suggest_memory_format(x)
        for n, (first, last) in enumerate(ends):
            dim = x.ndim - 1 - n
            pieces = [
                before(x, dim, first) if first else None,
                x,
                after(x, dim, last) if last else None,
            ]
            x = torch.cat([piece for piece in pieces if piece is not None], dim)
        if 1 in x.shape:  # what is contiguous in two ways is laid out as asked
            return x.clone(memory_format=memory_format)
        return x.contiguous(memory_format=memory_format)

    return amended


def rolled(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int]) -> torch.Tensor | None:
    """Return x rolled, its two parts the other way round; None where that is torch's own to say."""
    known = all(isinstance(n, int) for n in (*shifts, *(x.shape[d] for d in dims if _is_in(d, x))))
    if x.device.type != "cpu" or not known or 0 in x.shape or len(shifts) != len(dims):
        return None
    if not dims or not all(_is_in(dim, x) for dim in dims):
        return None
    result = x
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start = -shift % size
        if start:
            parts = result.narrow(dim, start, size - start), result.narrow(dim, 0, start)
            result = torch.cat(parts, dim)
    return x.clone() if result is x else result


def _is_in(dim: int, x: torch.Tensor) -> bool:
    return -x.ndim <= dim < x.ndim


__all__ = ["reflection_pad", "replication_pad", "rolled"]
