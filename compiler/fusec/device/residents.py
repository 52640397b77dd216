"""Outputs that stay in a captured graph's memory from forward to backward.

What forward saves for backward is seen by autograd alone. Such an output, a *resident*, is made at
the same place by every replay: it is not copied out, and backward finds it where it was. A replay
overwrites it, so there is none while anybody holds what the last one made:
``native/residents.cpp`` asks each storage before it hands the residents out once more.

Whoever uses a resident holds it as long as it is in use, on the stream that it was made on or until
other streams are done. ``Tensor.record_stream``, by which torch's allocator lets go earlier, says
nothing here; where hooks are given what is saved, who may do so, there are no residents.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusec.device.steps import PythonCall, SizedProgram


@dataclass(frozen=True)
class Holders:
    """How to ask who holds a tensor's memory.

    Attributes:
        use_count: Returns how many hold a storage, which it takes as a number.
        hooked: Returns None unless somebody is given the tensors that are saved for backward.
        probe: Returns a tensor that nobody else holds.
    """

    use_count: Callable[[int], int]
    hooked: Callable[[bool], object]
    probe: Callable[[], torch.Tensor]


@functools.cache
def holders() -> Holders | None:
    """Return how this torch is asked; None where it cannot be, or answers something else."""
    use_count = getattr(torch._C, "_storage_Use_Count", None)
    autograd = getattr(torch._C, "_autograd", None)
    hooked = getattr(autograd, "_top_saved_tensors_default_hooks", None)
    if use_count is None or hooked is None or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    found = Holders(use_count, hooked, lambda: torch.empty(1, device="cpu"))
    try:
        return found if _counts_every_holder(found) else None
    except (RuntimeError, TypeError, AttributeError):
        return None


def _counts_every_holder(found: Holders) -> bool:
    tensor = found.probe()
    storage = tensor.untyped_storage()
    number = storage._cdata

    def state() -> tuple[int, int]:
        return found.use_count(number), sys.getrefcount(storage)

    alone = state()
    other = tensor.data
    as_data = state()
    view = other.view(1)
    del other
    as_view = state()
    held = view.untyped_storage()
    del view
    as_storage = state()
    del held
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        hooked = found.hooked(True) is not None
    return (
        alone not in (as_data, as_view, as_storage)
        and state() == alone
        and hooked
        and tensor.data is not tensor
    )


def may_stay(steps: SizedProgram, saved: Collection[int]) -> tuple[str, ...]:
    """Return the tensors that may stay in a graph's memory.

    Left out is what the caller gets as well, inputs that pass through, and what may be a view of
    something else.

    Args:
        steps: The program.
        saved: Positions of the outputs that only backward sees.
    """
    given = {o.name for i, o in enumerate(steps.outputs) if i not in saved}
    made = {memory.name for memory in steps.made}
    views = {
        name
        for step in steps.steps
        if isinstance(step, PythonCall) and step.views
        for name in step.outputs
        if name is not None
    }
    found = dict.fromkeys(o.name for i, o in enumerate(steps.outputs) if i in saved)
    return tuple(n for n in found if n is not None and n in made - views and n not in given)


class Homes:
    """Where the residents of one captured graph are, as long as its plan keeps this alive.

    Attributes:
        spans: The first address of each, and the one behind its last; empty before the capture.
    """

    def __init__(self) -> None:
        self.spans: tuple[tuple[int, int], ...] = ()

    def lie_at(self, places: Sequence[int], sizes: Sequence[int]) -> None:
        """Take note of where the residents are.

        Args:
            places: Their addresses.
            sizes: Their bytes.
        """
        pairs = zip(places, sizes, strict=True)
        self.spans = tuple((place, place + size) for place, size in pairs if place and size)
        with _lock:
            _homes.add(self)


_homes: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.RLock()


def at_home(places: Mapping[int, int], inputs: Collection[int]) -> frozenset[int]:
    """Return the inputs that are residents of a graph, or views of one.

    Args:
        places: Addresses of inputs.
        inputs: Those to look at.
    """
    if not inputs:
        return frozenset()
    with _lock:
        spans = sorted(span for each in _homes for span in each.spans)
    starts = [start for start, _ in spans]

    def is_home(place: int) -> bool:
        found = bisect_right(starts, place) - 1
        return found >= 0 and place < spans[found][1]

    return frozenset(i for i in inputs if is_home(places[i]))


__all__ = ["Holders", "Homes", "at_home", "holders", "may_stay"]
