"""The decomposition of what reads an image elsewhere: ``grid_sample``.

Torch's own is right where places are, and leaves much to a loop: indices that might be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, reduce

import torch
from torch._decomp import get_decompositions

aten = torch.ops.aten

_NEAREST, _BICUBIC = 1, 2  # as ATen counts them
_ZEROS, _BORDER = 0, 1


def grid_sampler_2d(
    x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align_corners: bool
) -> object:
    """Return an image at places that a grid names, bilinear, bicubic, or the nearest.

    As ATen's kernel for processors has it where a place is NaN or infinite: such an element is NaN,
    where torch's own decomposition has 0, or it is that of place 0 where places are clamped.  Each
    axis is clamped by itself, in floating point: two indices for each, which are never wrong.
    """
    rule = get_decompositions([aten.grid_sampler_2d.default])[aten.grid_sampler_2d.default]
    fits = x.ndim == grid.ndim == 4 and x.dtype == grid.dtype
    if x.device.type == "cpu" and fits and x.dtype in (torch.float16, torch.bfloat16):
        wide = grid_sampler_2d(x.float(), grid.float(), mode, padding, align_corners)
        assert isinstance(wide, torch.Tensor)
        return wide.to(x.dtype)
    fits = fits and x.dtype in (torch.float32, torch.float64)
    if x.device.type != "cpu" or not fits:
        return rule(x, grid, mode, padding, align_corners)
    batch, channels, height, width = x.shape
    shape = (batch, channels, *grid.shape[1:3])
    across, down = (
        _place(grid[..., n].unsqueeze(1).expand(shape), size, align_corners)
        for n, size in enumerate((width, height))
    )
    clamp = partial(_clamped, padding=padding, align_corners=align_corners)
    image = torch.arange(batch, device=x.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=x.device).view(1, -1, 1, 1)
    # One index for both axes where that is a view: fewer values to keep for all channels.
    flat = x.flatten(2) if x.stride(2) == width * x.stride(3) else None

    def read(row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        (row, low), (column, left) = _within(row, height), _within(column, width)
        if flat is None:
            found = x[image, channel, row, column]
        else:
            found = flat[image, channel, row * width + column]
        return torch.where(low & left, found, 0.0)

    if mode == _BICUBIC:
        return _bicubic(
            across,
            down,
            lambda row, column: read(clamp(row, height), clamp(column, width)),
        )
    across, down = clamp(across, width), clamp(down, height)
    if mode == _NEAREST:
        return read(down.round(), across.round())
    left, top = across.floor(), down.floor()
    right, bottom = left + 1, top + 1
    from_left, from_top = across - left, down - top
    to_right, to_bottom = 1 - from_left, 1 - from_top
    return (
        read(top, left) * (to_bottom * to_right)
        + read(top, right) * (to_bottom * from_left)
        + read(bottom, left) * (from_top * to_right)
        + read(bottom, right) * (from_top * from_left)
    )


def _bicubic(
    across: torch.Tensor,
    down: torch.Tensor,
    read: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return the cubic through four elements along each axis."""
    left, top = across.floor(), down.floor()
    weights_across, weights_down = _cubic_weights(across - left), _cubic_weights(down - top)
    lines = [
        _sum(
            read(top + (line - 1), left + (n - 1)) * weight
            for n, weight in enumerate(weights_across)
        )
        for line in range(4)
    ]
    return _sum(line * weight for line, weight in zip(lines, weights_down, strict=True))


def _sum(terms: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the sum of tensors, from the first on."""
    return reduce(torch.add, terms)


def _cubic_weights(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return what each of four elements weighs, ``t`` behind the second."""
    steep = -0.75

    def inner(x: torch.Tensor) -> torch.Tensor:
        return ((steep + 2) * x - (steep + 3)) * x * x + 1

    def outer(x: torch.Tensor) -> torch.Tensor:
        return ((steep * x - 5 * steep) * x + 8 * steep) * x - 4 * steep

    return outer(t + 1), inner(t), inner(1 - t), outer(2 - t)


def _within(place: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an index that is never wrong, and whether it is the one asked for."""
    inside = (place >= 0) & (place < size)
    return torch.where(inside, place, 0.0).to(torch.int64), inside


def _place(grid: torch.Tensor, size: int, align_corners: bool) -> torch.Tensor:
    """Return places along an axis, in elements, of those from -1 to 1."""
    if align_corners:
        return (grid + 1) * ((size - 1) / 2)
    return (grid + 1) * (size / 2) - 0.5


def _clamped(place: torch.Tensor, size: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Return places within the image, unless what is outside of it is 0."""
    if padding == _ZEROS:
        return place
    if padding != _BORDER:
        place = _reflected(place, size, align_corners)
    inside = (place > 0) & (place < size - 1)
    outside = torch.where(place >= size - 1, float(size - 1), torch.zeros_like(place))
    return torch.where(inside, place, outside)  # NaN becomes 0


def _reflected(place: torch.Tensor, size: int, align_corners: bool) -> torch.Tensor:
    """Return places turned back at the edges: of elements, or of the first and the last one's."""
    low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
    if span == 0:
        return torch.zeros_like(place)
    distance = (place - low).abs()
    turns = (distance / span).floor()
    rest = distance - turns * span
    even = turns - 2 * (turns / 2).floor() == 0
    return torch.where(even, rest + low, span - rest + low)
