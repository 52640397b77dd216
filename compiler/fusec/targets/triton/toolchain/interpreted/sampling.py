"""Some of an interpreted kernel's programs, each of which still finds the whole grid around it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from math import prod
from typing import Any


@contextlib.contextmanager
def some_programs(count: int, seed: int) -> Iterator[None]:
    """Run no more than so many programs of a kernel start; it stands within ``interpreting()``.

    The first and the last are among them; the others are drawn.

    Args:
        count: How many; 0 for all of them.
        seed: For the draw.
    """
    from triton.runtime import interpreter

    if not count:
        yield
        return
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    call, set_dim, set_idx = executor.__call__, builder.set_grid_dim, builder.set_grid_idx
    whole: list[tuple[int, int, int]] = []
    chosen: list[int] = []

    def fewer(grid: Any) -> tuple[int, int, int]:
        sizes = tuple(int(size) for size in grid)
        whole[:] = [(*sizes, *(1,) * (3 - len(sizes)))]  # type: ignore[list-item]
        chosen[:] = draw(prod(sizes), count, seed)
        return len(chosen), 1, 1

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        grid = self.grid
        self.grid = (lambda meta: fewer(grid(meta))) if callable(grid) else fewer(grid)
        call(self, *args, **kwargs)

    def set_grid_dim(self: Any, *_: int) -> None:
        set_dim(self, *whole[0])

    def set_grid_idx(self: Any, x: int, _y: int, _z: int) -> None:
        _, down, deep = whole[0]
        at = chosen[x]
        set_idx(self, at // (down * deep), at // deep % down, at % deep)

    try:
        executor.__call__ = start
        builder.set_grid_dim, builder.set_grid_idx = set_grid_dim, set_grid_idx
        yield
    finally:
        executor.__call__ = call
        builder.set_grid_dim, builder.set_grid_idx = set_dim, set_idx


def draw(total: int, count: int, seed: int) -> list[int]:
    """Return the numbers of no more than ``count`` of ``total`` programs, in order."""
    if total <= count:
        return list(range(total))
    inner = random.Random(seed).sample(range(1, total - 1), max(count - 2, 0))
    return sorted([0, *inner, total - 1])


__all__ = ["draw", "some_programs"]
