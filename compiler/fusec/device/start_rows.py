"""Starts of kernels next to each other, and which of them wait for which.

A row of starts can be one launch (``native/chains.cpp``), in which kernels that do not wait for
each other run side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusec.device.same_memory import SameMemory
from fusec.device.step_memory import SHARED
from fusec.device.steps import Free, Memory, Start, Step, touched

# What may be freed later than it could be, so that kernels are started together: where more is at
# stake, kernels take longer than starting them.
DELAYED_BYTES = 4 << 20
# Programs of a kernel that is worth running beside others: its last ones leave much of the GPU to
# the next kernel.  Six kernels of 12 MB took 15.1 us one after the other and 12.5 side by side,
# but the CPU 7.2 us instead of 2.8; smaller ones gain nothing.
MANY_PROGRAMS = 512
# Starts in a row beyond which nobody looks for those that are independent.
LONG_ROW = 64


def in_rows(steps: Sequence[Step], inputs: Mapping[str, Memory]) -> list[Step]:
    """Return steps with starts next to each other: memory made before, small tensors freed after.

    A row of starts can be one launch. No more than ``DELAYED_BYTES`` are kept for it.

    Args:
        steps: With frees.
        inputs: The inputs that are tensors.
    """
    sizes = {s.name: s.bytes for s in steps if isinstance(s, Memory)}
    sizes |= {name: memory.bytes for name, memory in inputs.items()}
    result: list[Step] = []
    made: list[Step] = []
    starts: list[Start] = []
    freed: list[str] = []
    delayed = 0
    memory = SameMemory(steps)

    def end_row() -> None:
        nonlocal delayed
        result.extend([*made, *waiting(starts, memory)])
        if freed:
            result.append(Free(tuple(freed)))
        for row in (made, starts, freed):
            row.clear()
        delayed = 0

    for step in steps:
        if isinstance(step, Memory):
            made.append(step)
        elif isinstance(step, Start):
            starts.append(step)
        elif isinstance(step, Free) and not starts:
            result.append(step)
        elif isinstance(step, Free):
            freed.extend(step.names)
            delayed += sum(sizes.get(name, DELAYED_BYTES + 1) for name in step.names)
            if delayed > DELAYED_BYTES:
                end_row()
        else:
            end_row()
            result.append(step)
    end_row()
    return result


def waiting(starts: Sequence[Start], memory: SameMemory) -> list[Start]:
    """Return a row of starts that know for which of those before them they have to wait.

    Args:
        starts: The row.
        memory: Which names are of the same memory.
    """
    if len(starts) > LONG_ROW:
        return list(starts)
    large = [math.prod(start.grid) >= MANY_PROGRAMS for start in starts]
    touches = [memory.of(touched(start)) for start in starts]
    # what lies together in memory may take each other's place
    writes = [
        memory.of(start.writes) | (each & {SHARED}) if start.writes else each
        for start, each in zip(starts, touches, strict=True)
    ]
    before: list[set[int]] = []  # for which each waits, directly or not
    result = []
    for j, start in enumerate(starts):
        after, reached = [], set[int]()
        for i in range(j - 1, -1, -1):
            if i in reached:
                continue
            independent = writes[i].isdisjoint(touches[j]) and touches[i].isdisjoint(writes[j])
            if not (large[i] and large[j] and independent):
                after.append(j - i)
                reached |= {i} | before[i]
        before.append(reached)
        result.append(replace(start, after=tuple(after)))
    return result


__all__ = ["DELAYED_BYTES", "MANY_PROGRAMS", "in_rows", "waiting"]
