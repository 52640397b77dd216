"""How the inputs of a graph share memory, which no guard of TorchDynamo's sees.

Where a graph updates an input that has elements in common with another one, AOTAutograd compiles it
for the very offsets of the example inputs, and calls whose inputs lie otherwise are computed wrong,
without a word, in every backend.  Such a graph runs in eager.  Calls with such inputs of a graph
that was compiled for others are the business of ``fusec.call.input_check``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch


def share_elements(inputs: Sequence[Any]) -> bool:
    """Whether two inputs of a graph, real or fake, lie in the same stretch of memory.

    Of symbolic sizes it asks what they are in this call, and guards nothing.
    """
    groups: dict[int, list[torch.Tensor]] = {}
    for value in inputs:
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            groups.setdefault(value.untyped_storage()._cdata, []).append(value)
    return any(_overlap(group) for group in groups.values() if len(group) > 1)


def _overlap(tensors: Sequence[torch.Tensor]) -> bool:
    stretches = []
    for each in tensors:
        found = [_now(n) for n in (each.storage_offset(), *each.shape, *each.stride())]
        known = [n for n in found if n is not None]
        if len(known) < len(found):
            return True
        offset, shape, strides = known[0], known[1 : each.ndim + 1], known[each.ndim + 1 :]
        if 0 not in shape:
            last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            stretches.append((offset * each.itemsize, (last + 1) * each.itemsize))
    stretches.sort()
    return any(after[0] < before[1] for before, after in pairwise(stretches))


def _now(number: int | torch.SymInt) -> int | None:
    """Return what a size is in this call; None where that is not known."""
    if isinstance(number, torch.SymInt):
        return number.node.hint if number.node.has_hint() else None
    return number


__all__ = ["share_elements"]
