"""What roundings drawn by chance do to an output: how far they can carry it from float64."""

from __future__ import annotations

import math

import torch


class Rounding:
    """How far an output of a graph lies from float64 where roundings are drawn by chance.

    Args:
        exact: The output of the float64 run.
        halves: Whether eager has values of float16 or bfloat16 on the way, which may overflow.

    Attributes:
        drawn: How many runs it knows of.
        spread: Of each element, the furthest that a run is off; float64.
    """

    def __init__(self, exact: torch.Tensor, halves: bool) -> None:
        self.exact = exact.detach()
        self.halves = halves
        self.drawn = 0
        self.spread = torch.zeros_like(self.exact, dtype=torch.float64)
        self._others: list[torch.Tensor] = []
        self._square = 0.0

    def add(self, output: torch.Tensor) -> None:
        """Take what one more run gave."""
        output = output.detach()
        self.drawn += 1
        if not self.exact.is_floating_point():
            self._others.append(output)
            return
        off = (output - self.exact).abs_()
        off = torch.where(off.isfinite(), off, 0.0)
        torch.maximum(self.spread, off, out=self.spread)
        self._square += square(off)

    def rms(self) -> float:
        """Return the root mean square by which the runs are off."""
        count = self.drawn * self.exact.numel()
        return math.sqrt(self._square / count) if count else 0.0

    def occurs(self, values: torch.Tensor) -> torch.Tensor:
        """Return where values, which are no floating-point numbers, came out of some run."""
        found = torch.zeros(values.shape, dtype=torch.bool, device=values.device)
        for other in self._others:
            if other.shape == values.shape and other.dtype == values.dtype:
                found |= other == values
        return found


def square(block: torch.Tensor) -> float:
    """Return the sum of the squares of a tensor's elements."""
    return float(torch.linalg.vector_norm(block)) ** 2


__all__ = ["Rounding", "square"]
