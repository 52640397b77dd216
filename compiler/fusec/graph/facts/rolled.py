"""How eager lays out what it rolls."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._prims_common import (
    make_channels_last_strides_for,
    make_contiguous_strides_for,
    suggest_memory_format,
)

from fusec.devices import CPU
from fusec.graph.facts.view_strides import Strides, sizes_now


def format_of_rolled(
    x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()
) -> torch.memory_format:
    """Return the format that ``x.roll(shifts, dims)`` lies in.

    A CPU's concatenates two slices a dimension: channels stay innermost, but it lies in order where
    one of the slices has no elements. A GPU's kernel writes in order.
    """
    if x.device.type != CPU:
        return torch.contiguous_format
    return _format(suggest_memory_format(x), [x.shape[dim] for dim in dims], shifts)


def rolled_strides(
    x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()
) -> Strides | None:
    """Return the strides of ``x.roll(shifts, dims)`` in eager, for the sizes of now.

    Args:
        x: What is rolled, whose sizes may be symbolic.
        shifts: As it is called with.
        dims: The same.

    Returns:
        None where that is not known: some size is that of data, say.
    """
    shape, strides, by = sizes_now(x.shape), sizes_now(x.stride()), sizes_now(shifts)
    if shape is None or strides is None or by is None:
        return None
    if 0 in shape and (dims or x.ndim == 1):
        return tuple(x.stride())  # a copy that keeps them
    suggested = suggest_memory_format(torch.empty_strided(shape, strides, device="meta"))
    format = _format(suggested, [shape[dim] for dim in dims], by)
    if x.device.type != CPU or format == torch.contiguous_format:
        return tuple(make_contiguous_strides_for(x.shape))
    return tuple(make_channels_last_strides_for(x.shape))


def _format(
    suggested: torch.memory_format, sizes: Sequence[int], shifts: Sequence[int]
) -> torch.memory_format:
    if not sizes:
        return torch.contiguous_format
    pairs = zip(sizes, shifts, strict=True)
    none = any(not size or (size - shift) % size == 0 for size, shift in pairs)
    return torch.contiguous_format if none else suggested


__all__ = ["format_of_rolled", "rolled_strides"]
