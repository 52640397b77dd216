"""Which starts of a program become one: those of one kernel that do not wait for each other.

A start is put off for as long as nothing needs what it writes and nothing writes what it reads.
Those of the same kernel that are put off at the same time are independent, and become one start.
What is a view of something else is the same memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from fusec.device.same_memory import SameMemory
from fusec.device.steps import Copy, Memory, MemoryPlace, PythonCall, Start, Step, touched
from fusec.target_api.base import PackedKernel

# A kernel's parameters are 4096 bytes at most; two are Triton's own.
MOST_POINTERS = 448
# A start of more programs keeps the GPU busy for so long that the next one's beginning counts for
# nothing.
MOST_PROGRAMS = 8192
_BUILDERS = 8

Key = tuple[object, ...]
Build = Callable[[Any, int], PackedKernel | None]


@dataclass
class _Group:
    """Starts of one kernel that are put off.

    Attributes:
        starts: In the program's order.
        touched: All memory that they read or write.
        written: What they write.
    """

    starts: list[Start] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def matters_to(self, step: Step, memory: SameMemory) -> bool:
        """Whether the order of these starts and a later ``step`` matters."""
        if isinstance(step, Memory):
            return False
        return not (
            self.written.isdisjoint(memory.of(touched(step)))
            and self.touched.isdisjoint(memory.of(_written(step)))
        )


def pack_starts(steps: Sequence[Step], build: Build) -> tuple[list[Step], tuple[object, ...]]:
    """Return steps with independent starts of one kernel as one, and what has to stay alive.

    Args:
        steps: A program's, without frees, every tensor with memory of its own.
        build: Returns a kernel for several sets of tensors; see ``PythonTarget.pack``.
    """
    groups = _put_off(steps)
    wanted = {
        (id(group[0].kernel), len(group)): group[0].kernel
        for group in groups
        if isinstance(group, list) and len(group) > 1
    }
    if not wanted:
        return list(steps), ()
    with ThreadPoolExecutor(_BUILDERS) as pool:
        found = pool.map(lambda each: build(each[1], each[0][1]), wanted.items())
        built = dict(zip(wanted, found, strict=True))
    result: list[Step] = []
    for group in groups:
        if not isinstance(group, list):
            result.append(group)
            continue
        packed = built.get((id(group[0].kernel), len(group)))
        result += group if packed is None else [_joined(group, packed)]
    return result, tuple(each.kernel for each in built.values() if each is not None)


def _put_off(steps: Sequence[Step]) -> list[Step | list[Start]]:
    """Return the steps, with lists of starts that may be one."""
    times = Counter(_key(step) for step in steps if isinstance(step, Start) and _may_pack(step))
    memory = SameMemory(steps)
    result: list[Step | list[Start]] = []
    waiting: dict[Key, _Group] = {}

    def flush(key: Key) -> None:
        result.append(waiting.pop(key).starts)

    for step in steps:
        for key in [key for key, group in waiting.items() if group.matters_to(step, memory)]:
            flush(key)
        if not isinstance(step, Start) or not _may_pack(step) or times[_key(step)] == 1:
            result.append(step)
            continue
        key = _key(step)
        group = waiting.setdefault(key, _Group())
        group.starts.append(step)
        group.touched |= memory.of(touched(step))
        group.written |= memory.of(step.writes)
        if (len(group.starts) + 1) * _pointers(step) > MOST_POINTERS:
            flush(key)
    for key in list(waiting):
        flush(key)
    return result


def _pointers(start: Start) -> int:
    return sum(place.name is not None for place in start.places)


def _may_pack(start: Start) -> bool:
    return (
        start.kernel is not None
        and start.grid[1:] == (1, 1)
        and 0 < start.grid[0] <= MOST_PROGRAMS
        and all(place.name is None or place.offset == 0 for place in start.places)
    )


def _key(start: Start) -> Key:
    """Return what starts have in common that may be one: all but their tensors."""
    numbers = tuple(None if place.name is not None else place.offset for place in start.places)
    return start.function, start.grid, start.threads, start.shared, numbers


def _written(step: Step) -> tuple[str, ...]:
    if isinstance(step, Start):
        return step.writes
    if isinstance(step, Copy):
        return (step.to,)
    return touched(step) if isinstance(step, PythonCall) else ()


def _joined(starts: Sequence[Start], packed: PackedKernel) -> Start:
    """Return one start for all of them."""
    pointers = [place for start in starts for place in start.places if place.name is not None]
    numbers: list[MemoryPlace] = [place for place in starts[0].places if place.name is None]
    return Start(
        packed.function,
        (starts[0].grid[0], len(starts), 1),
        packed.threads,
        packed.shared,
        (*pointers, *numbers),
        tuple(dict.fromkeys(name for start in starts for name in start.writes)),
    )


__all__ = ["MOST_POINTERS", "MOST_PROGRAMS", "pack_starts"]
