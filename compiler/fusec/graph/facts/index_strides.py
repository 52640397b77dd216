"""How ATen lays out ``x[indices]``: by the strides of what it takes from, and of the indices.

torch's fake tensors ask the former alone, and nothing at all where there are no elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusec.devices import CPU
from fusec.graph.facts.element_strides import ordered_strides
from fusec.graph.facts.view_strides import Ints, Strides, sizes_now

aten = torch.ops.aten
INDEXED = frozenset((aten.index.Tensor, aten._unsafe_index.Tensor))


def index_strides(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], shape: Sequence[int | torch.SymInt]
) -> Strides | None:
    """Return the strides of ``x[indices]``; None where they are not known, as by a mask.

    Args:
        x: What is taken from.
        indices: A tensor for each dimension that one selects of, None for others.
        shape: The result's sizes, which may be symbolic: the order is that of the sizes now.
    """
    given = {dim: each for dim, each in enumerate(indices) if each is not None}
    if not given or any(each.dtype in (torch.bool, torch.uint8) for each in given.values()):
        return None
    sizes, x_sizes, x_strides = sizes_now(shape), sizes_now(x.shape), sizes_now(x.stride())
    if sizes is None or x_sizes is None or x_strides is None:
        return None
    found = [_spread(each) for each in given.values()]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    together = torch.broadcast_tensors(*known)
    # Indices that are adjacent put their dimensions where they stand, others at the front.
    adjacent = list(given) == list(range(min(given), max(given) + 1))
    before = min(given) if adjacent else 0
    kept = [stride for dim, stride in enumerate(x_strides) if dim not in given]
    chosen = together[0].ndim
    source = (*kept[:before], *[0] * chosen, *kept[before:])
    after = len(kept) - before
    longs = [each.to(torch.int64) for each in together]  # of 32 bits they are copied
    ones = [each.reshape((1,) * before + tuple(each.shape) + (1,) * after) for each in longs]
    if x.device.type != CPU and len({each.stride() for each in ones}) > 1:
        ones = [each.contiguous() for each in ones]
    operands: list[tuple[Ints, Ints]] = [(sizes, source)]
    operands += [(tuple(each.shape), tuple(each.stride())) for each in ones]
    return ordered_strides(operands, shape)


def _spread(index: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor without memory that has an index's sizes and strides of now."""
    sizes, strides = sizes_now(index.shape), sizes_now(index.stride())
    if sizes is None or strides is None:
        return None
    return torch.empty_strided(sizes, strides, dtype=index.dtype, device="meta")


__all__ = ["INDEXED", "index_strides"]
