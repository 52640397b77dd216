"""How the inputs of a graph share memory, which no guard of TorchDynamo's sees.

Where a graph updates an input that has elements in common with another one, AOTAutograd compiles it
for the very offsets of the example inputs, and calls whose inputs lie otherwise are computed wrong,
without a word (by ``aot_eager``, too).  Such a graph runs in eager.  Calls with such inputs of a
graph that was compiled for others are the business of ``fusec.call.input_check``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch


def sharing_elements(inputs: Sequence[Any]) -> frozenset[int]:
    """Return which inputs of a graph, real or fake, lie in a stretch of memory with another one.

    Of symbolic sizes it asks what they are in this call, and guards nothing.
    """
    groups: dict[int, list[tuple[int, torch.Tensor]]] = {}
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            groups.setdefault(value.untyped_storage()._cdata, []).append((position, value))
    return frozenset().union(*(_overlapping(each) for each in groups.values() if len(each) > 1))


def _overlapping(tensors: Sequence[tuple[int, torch.Tensor]]) -> set[int]:
    stretches = []
    for position, each in tensors:
        found = [_now(n) for n in (each.storage_offset(), *each.shape, *each.stride())]
        known = [n for n in found if n is not None]
        if len(known) < len(found):
            return {position for position, _ in tensors}
        offset, shape, strides = known[0], known[1 : each.ndim + 1], known[each.ndim + 1 :]
        if 0 not in shape:
            last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            stretches.append((offset * each.itemsize, (last + 1) * each.itemsize, position))
    pairs = combinations(stretches, 2)
    shared = ({a, b} for (x, end, a), (y, stop, b) in pairs if x < stop and y < end)
    return set().union(*shared)


def _now(number: int | torch.SymInt) -> int | None:
    """Return what a size is in this call; None where that is not known."""
    if isinstance(number, torch.SymInt):
        return number.node.hint if number.node.has_hint() else None
    return number


__all__ = ["sharing_elements"]
