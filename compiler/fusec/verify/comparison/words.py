"""What a comparison found, in words: how a result differs from eager's, how good one is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fusec.report import OutputError, Timing
from fusec.timing.pace import compared


def mismatch(actual: torch.Tensor, eager: torch.Tensor) -> str:
    """Return in words how dtype or shape differ from eager's; empty where they agree."""
    if actual.dtype != eager.dtype:
        return f"is {dtype_of(actual)} where eager gives {dtype_of(eager)}"
    if actual.shape != eager.shape:
        return f"has shape {tuple(actual.shape)} where eager gives {tuple(eager.shape)}"
    return ""


def describe(figure: OutputError, dtype: torch.dtype | None = None) -> str:
    """Return in one line how a wrong output differs from eager's."""
    where = f" at {list(figure.worst)}" if figure.worst else ""
    if math.isnan(figure.against_eager):
        if not figure.worst and figure.shape:
            expected = f", not {str(dtype).removeprefix('torch.')}" if dtype else ""
            return f"`{figure.name}` is {figure.dtype} of shape {figure.shape}{expected}"
        return f"`{figure.name}` is NaN or infinite where eager's is not, or the reverse{where}"
    text = f"`{figure.name}` differs from eager by {figure.against_eager:.3g}{where}"
    if figure.eager_against_float64 is not None and figure.against_float64 is not None:
        return (
            f"{text}; against float64 it is off by {figure.against_float64:.3g}, "
            f"eager by {figure.eager_against_float64:.3g}"
        )
    return f"{text}; {figure.allowed:.3g} is allowed" if figure.allowed else text


def praise(outputs: Sequence[OutputError], timing: Timing | None, base: Timing | None) -> str:
    """Return in one line how good a passing result is."""
    worst = max((figure.against_eager for figure in outputs), default=0.0)
    # By how much is said beside it, and beside what is allowed.
    error = "equal to eager" if worst == 0 else "agrees with eager within rounding"
    if timing is None or base is None or not timing.median:
        return error
    said = compared(timing, base, "the generated kernel")
    return f"{error}, {said}" if said else error


def dtype_of(tensor: torch.Tensor) -> str:
    """Return a tensor's type as messages have it."""
    return str(tensor.dtype).removeprefix("torch.")


__all__ = ["describe", "dtype_of", "mismatch", "praise"]
