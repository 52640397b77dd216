"""Strides of a tensor that is viewed in another shape, as ATen's ``computeStride`` finds them.

torch's fake tensors find those of dimensions of one element otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

Ints = tuple[int, ...]
Strides = tuple[int | torch.SymInt, ...]

aten = torch.ops.aten
VIEWS = frozenset((aten.view.default, aten._unsafe_view.default))


def sizes_now(numbers: Iterable[int | torch.SymInt]) -> Ints | None:
    """Return sizes or strides as they are now, without a guard; None where nobody knows."""
    known = [each if isinstance(each, int) else each.node.hint for each in numbers]
    return tuple(known) if all(isinstance(each, int) for each in known) else None


def view_strides(value: torch.Tensor, wanted: Sequence[int | torch.SymInt]) -> Strides | None:
    """Return the strides of a value's view in another shape; None where they are not known."""
    old, strides, new = sizes_now(value.shape), sizes_now(value.stride()), sizes_now(wanted)
    if old is None or strides is None or new is None or not old:
        return None
    if 0 in old:
        return tuple(value.stride()) if old == new else _of_none(new)
    found: list[Any] = [0] * len(new)
    # Dimensions that lie as one, from the innermost on: where the first of them stands, and how
    # many elements they have; how many of these the view's dimensions have, now and in symbols.
    first, elements, taken = len(old) - 1, 1, 1
    symbols: Any = 1
    to = len(new) - 1
    for dim in reversed(range(len(old))):
        elements *= old[dim]
        if dim and (old[dim - 1] == 1 or strides[dim - 1] == elements * strides[first]):
            continue
        while to >= 0 and (taken < elements or new[to] == 1):
            found[to] = symbols * value.stride(first)
            taken, symbols = taken * new[to], symbols * wanted[to]
            to -= 1
        if taken != elements:
            return None
        first, elements, taken, symbols = dim - 1, 1, 1, 1
    return tuple(found) if to < 0 else None


def _of_none(shape: Ints) -> Strides:
    strides, running = [], 1
    for size in reversed(shape):
        strides.append(running)
        running *= max(size, 1)
    return tuple(reversed(strides))


__all__ = ["VIEWS", "sizes_now", "view_strides"]
