"""Where the memory of steps lies, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fusec.codegen.host_program import GROUPED_BYTES
from fusec.device.steps import Free, Memory, MemoryPlace, PythonCall, Start, Step, touched
from fusec.memory.placement import first_fit

# The driver's own allocations start at multiples of 512 bytes; vectors and bulk copies of kernels
# want 128.
ALIGNMENT = 128
SHARED = "/shared"


def share_memory(steps: Sequence[Step], returned: set[str]) -> list[Step]:
    """Lay out what only kernels see in one allocation, as far as lifetimes allow.

    Args:
        steps: Without frees.
        returned: What outlives the call.
    """
    sizes = {s.name: s.bytes for s in steps if isinstance(s, Memory) and s.name not in returned}
    for step in steps:
        if isinstance(step, PythonCall):
            for name in touched(step):
                sizes.pop(name, None)
    if len(sizes) < 2 or sum(sizes.values()) > GROUPED_BYTES:
        return list(steps)  # each is freed when nobody needs it
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        for name in touched(step):
            if not isinstance(step, Memory):
                first.setdefault(name, position)
                last[name] = position
    places, total = first_fit(sizes, first, last, ALIGNMENT)
    shared = Memory(SHARED, (total,), (1,), torch.uint8)
    result: list[Step] = []
    for step in steps:
        if isinstance(step, Memory) and step.name in places:
            if shared not in result:
                result.append(shared)
        elif isinstance(step, Start):
            moved = (
                MemoryPlace(SHARED, places[p.name] + p.offset) if p.name in places else p
                for p in step.places
            )
            result.append(replace(step, places=tuple(moved)))
        else:
            result.append(step)
    return result


def with_frees(steps: Sequence[Step], returned: set[str]) -> list[Step]:
    """Return steps that drop each tensor after the last step that needs it."""
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        for name in touched(step):
            last[name] = position
    result: list[Step] = []
    for position, step in enumerate(steps):
        result.append(step)
        gone = [n for n in touched(step) if last[n] == position and n not in returned]
        if gone and position != len(steps) - 1:
            result.append(Free(tuple(gone)))
    return result


__all__ = ["SHARED", "share_memory", "with_frees"]
