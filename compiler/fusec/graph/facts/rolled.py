"""How eager lays out what it rolls."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._prims_common import suggest_memory_format


def format_of_rolled(
    x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()
) -> torch.memory_format:
    """Return the format that ``x.roll(shifts, dims)`` lies in.

    A CPU's concatenates two slices a dimension: channels stay innermost, but it lies in order where
    one of the slices has no elements. A GPU's kernel writes in order.
    """
    innermost = suggest_memory_format(x)
    if innermost == torch.contiguous_format or x.device.type != "cpu" or not dims:
        return torch.contiguous_format
    sizes = [x.shape[dim] for dim in dims]
    if any(
        not size or (size - shift) % size == 0 for size, shift in zip(sizes, shifts, strict=True)
    ):
        return torch.contiguous_format
    return innermost


__all__ = ["format_of_rolled"]
