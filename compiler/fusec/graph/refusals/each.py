"""Updates of the tensors of a list, one after the other: ``torch._foreach_add_`` and its kind.

Eager updates the first tensor, then the second one, which may be the same, lie in the same memory
or be updated by the first.  Tracing computes all of them from what was there before.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
from torch import fx
from torch._C._functorch import is_functorch_wrapped_tensor

from fusec.graph.refusals.shapes import is_torchs, traced_value, updates_each


def updates_what_it_updated(node: fx.Node) -> bool:
    """Whether a call updates or reads a tensor that it has updated before, in the same list."""
    if not updates_each(node.target) or not is_torchs(node.target):
        return False
    given = [
        list(map(traced_value, each)) if isinstance(each, (list, tuple)) else traced_value(each)
        for each in (*node.args, *node.kwargs.values())
    ]
    if not given or not isinstance(given[0], list):
        return False
    written, *operands = given
    # By their memory: what is updated, and what is read by the update of which place, or by all.
    updated = defaultdict[int, list[_Part]](list)
    reads = defaultdict[int, list[_Part]](list)
    for place, target in enumerate(written):
        if _has_memory(target):
            updated[target.untyped_storage()._cdata].append(_Part.of(target, place))
    for operand in operands:
        several = isinstance(operand, list)
        for place, each in enumerate(operand if several else [operand]):
            if _has_memory(each) and each.untyped_storage()._cdata in updated:
                part = _Part.of(each, place if several else len(written))
                reads[each.untyped_storage()._cdata].append(part)
    return any(_meet(parts, reads[memory]) for memory, parts in updated.items())


@dataclass(frozen=True)
class _Part:
    """A tensor of a list: its place there, and where in its memory it lies.

    Attributes:
        place: Which of the list.
        begin: Its first byte; None if that depends on symbolic sizes.
        end: The first one behind it.
        layout: What says which elements it has, in which order.
    """

    place: int
    begin: int | None
    end: int
    layout: tuple[Any, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor, place: int) -> _Part:
        first, sizes, steps = tensor.storage_offset(), tensor.shape, tensor.stride()
        layout = (tensor.dtype, first, *sizes, *steps)
        if not all(isinstance(number, int) for number in layout[1:]):
            return cls(place, None, 0, (id(tensor),))
        last = first + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
        return cls(place, int(first) * tensor.itemsize, int(last + 1) * tensor.itemsize, layout)

    def meets(self, other: _Part) -> bool:
        """Whether they may have an element in common."""
        if self.begin is None or other.begin is None:
            return True
        return self.begin < other.end and other.begin < self.end


def _meet(updated: list[_Part], reads: list[_Part]) -> bool:
    """Whether parts of one memory are updated twice, or read once they are updated."""
    by_begin = sorted(updated, key=lambda part: part.begin or 0)
    if any(part.meets(following) for part, following in pairwise(by_begin)):
        return True
    for part, read in product(updated, reads):
        before = read.place < part.place
        itself = read.place == part.place and read.layout == part.layout
        if not before and not itself and part.meets(read):
            return True
    return False


def _has_memory(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not any(isinstance(size, int) and size == 0 for size in value.shape)
        and not is_functorch_wrapped_tensor(value)
    )


__all__ = ["updates_what_it_updated"]
