"""What a type makes of a Python number."""

from __future__ import annotations

import math

import torch


def held(number: float, dtype: torch.dtype) -> float:
    """Return a number as a floating type has it at its ends: ``1e40`` is infinite in float32.

    Digits that the type has no room for stay: whoever writes the constant rounds them.
    """
    kind = torch.finfo(dtype)
    if abs(number) <= kind.max or not math.isfinite(number):
        return number
    rounds_down = abs(number) < kind.max * (1 + kind.eps / 4)  # less than half a step beyond
    return math.copysign(kind.max if rounds_down else math.inf, number)


__all__ = ["held"]
