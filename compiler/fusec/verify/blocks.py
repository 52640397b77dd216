"""Tensors in blocks small enough to compare in float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Elements held in float64 at once: few enough to stay in the cache, and for torch not to use
# threads, whose start costs more than the work where cores are shared.
_CHUNK = 30_000
Block = tuple[tuple[int, ...], tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]


def blocks(
    actual: torch.Tensor, eager: torch.Tensor, float64: torch.Tensor | None
) -> Iterator[Block]:
    """Yield parts of the tensors, small enough to be held in float64, with their first index."""
    todo = [((0,) * eager.dim(), (actual, eager, float64))]
    while todo:
        start, (mine, plain, exact) = todo.pop()
        if plain.numel() == 0:
            continue
        if plain.numel() <= _CHUNK:
            yield start, (mine, plain, exact)
            continue
        dim = max(range(plain.dim()), key=lambda d: (plain.shape[d] > 1, -d))
        size = plain.shape[dim]
        step = max(1, min(size // 2, size * _CHUNK // plain.numel()))
        for first in reversed(range(0, size, step)):
            length = min(step, size - first)
            at = (*start[:dim], start[dim] + first, *start[dim + 1 :])
            parts = [t.narrow(dim, first, length) for t in (mine, plain)]
            last = None if exact is None else exact.narrow(dim, first, length)
            todo.append((at, (parts[0], parts[1], last)))


def chunks(
    actual: torch.Tensor, eager: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the blocks of two tensors of one shape."""
    for _, (mine, plain, _) in blocks(actual, eager, None):
        yield mine, plain


__all__ = ["Block", "blocks", "chunks"]
