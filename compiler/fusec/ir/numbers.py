"""What a type makes of a Python number."""

from __future__ import annotations

import math
from typing import Any

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


def whole(number: Any, dtype: torch.dtype) -> int:
    """Return what ATen makes of a number where it is to be of an integer type; it may refuse.

    Fractions are dropped. A whole number below zero wraps around in an unsigned type, one with a
    fraction does not. A symbolic number with a fraction becomes a known one.
    """
    kind = torch.iinfo(dtype)
    low = -kind.max if kind.min == 0 else kind.min
    if isinstance(number, (float, torch.SymFloat)):
        number = float(number)
        low = kind.min
    if not low <= number <= kind.max:
        raise RuntimeError(f"value cannot be converted to type {dtype} without overflow")
    made: int = int(number) if isinstance(number, (float, bool)) else number
    return made if made >= kind.min else made + kind.max + 1


__all__ = ["held", "whole"]
