"""Tensors in blocks small enough to compare in float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Elements held in float64 at once: few enough to stay in the cache, and for torch not to use
# threads, whose start costs more than the work where cores are shared.
_CHUNK = 30_000
Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]
Block = tuple[tuple[int, ...], Parts]


def blocks(
    actual: torch.Tensor,
    eager: torch.Tensor,
    float64: torch.Tensor | None,
    spread: torch.Tensor | None = None,
) -> Iterator[Block]:
    """Yield parts of the tensors, small enough to be held in float64, with their first index."""
    todo: list[Block] = [((0,) * eager.dim(), (actual, eager, float64, spread))]
    while todo:
        start, parts = todo.pop()
        plain = parts[1]
        if plain.numel() == 0:
            continue
        if plain.numel() <= _CHUNK:
            yield start, parts
            continue
        dim = max(range(plain.dim()), key=lambda d: (plain.shape[d] > 1, -d))
        size = plain.shape[dim]
        step = max(1, min(size // 2, size * _CHUNK // plain.numel()))
        for first in reversed(range(0, size, step)):
            length = min(step, size - first)
            at = (*start[:dim], start[dim] + first, *start[dim + 1 :])
            mine, other = (t.narrow(dim, first, length) for t in parts[:2])
            exact, drawn = (t if t is None else t.narrow(dim, first, length) for t in parts[2:])
            todo.append((at, (mine, other, exact, drawn)))


def chunks(
    actual: torch.Tensor, eager: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the blocks of two tensors of one shape."""
    for _, (mine, plain, _, _) in blocks(actual, eager, None):
        yield mine, plain


__all__ = ["Block", "blocks", "chunks"]
