"""Steps as the native part takes them: positions for names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.call.dlpack import dlpack_type
from fusec.device.steps import Copy, Free, Memory, MemoryPlace, SizedProgram, Start, Step

_ALLOCATE, _LAUNCH, _COPY, _CALL, _FREE = range(5)  # as in plan.cpp
MOST_PARAMETERS = 256  # of a start; likewise


@dataclass(frozen=True)
class Numbered:
    """Steps as the native part takes them: see ``plan_type.cpp``."""

    inputs: int
    slots: int
    before: tuple[object, ...]
    steps: tuple[object, ...]
    results: tuple[object, ...]
    loose: tuple[int, ...]
    fixed: tuple[int, ...]
    residents: tuple[int, ...] = ()


def numbered(
    given: SizedProgram,
    *,
    before: Sequence[Memory] = (),
    loose: Sequence[str] = (),
    fixed: Sequence[str] = (),
    residents: Sequence[str] = (),
) -> Numbered:
    """Return steps with positions for names.

    Args:
        given: The steps.
        before: Memory that is made before a captured graph runs.
        loose: Tensors that a captured graph is told the place of.
        fixed: Inputs that must be where they were.
        residents: What stays in a captured graph's memory.
    """
    slots = {name: i for i, name in enumerate(given.inputs)}

    def slot(name: str) -> int:
        return slots.setdefault(name, len(slots))

    def place(value: MemoryPlace) -> tuple[int, int]:
        return (-1, value.offset) if value.name is None else (slot(value.name), value.offset)

    def step(value: Step) -> tuple[object, ...]:
        if isinstance(value, Memory):
            return _ALLOCATE, slot(value.name), value.shape, value.strides, value.dtype
        if isinstance(value, Start):
            places = tuple(place(p) for p in value.places)
            launch = (value.function, value.grid, value.threads, value.shared)
            return _LAUNCH, *launch, places, value.after
        if isinstance(value, Copy):
            return _COPY, ((slot(value.to), 0), (slot(value.source), 0)), value.bytes
        if isinstance(value, Free):
            return _FREE, tuple(slot(name) for name in value.names)
        arguments = tuple(
            (slot(a.name), None) if isinstance(a, MemoryPlace) and a.name is not None else (-1, a)
            for a in value.arguments
        )
        outputs = tuple(-1 if name is None else slot(name) for name in value.outputs)
        names = value.names or None
        laid = tuple(_laid(each) for each in value.laid)
        return _CALL, value.function, arguments, names, outputs, laid, value.many

    made = tuple(step(each) for each in before)
    steps = tuple(step(each) for each in given.steps)
    results = tuple(
        (-1, o.constant) if o.name is None else (slot(o.name), o.view) for o in given.outputs
    )
    loosely = tuple(slot(name) for name in loose)
    kept_in_place = tuple(slot(name) for name in fixed)
    staying = tuple(slot(name) for name in residents)
    return Numbered(
        len(given.inputs), len(slots), made, steps, results, loosely, kept_in_place, staying
    )


def _laid(memory: Memory | None) -> tuple[object, ...] | None:
    """Return what an output must be: sizes, strides, type; the type as DLPack names it."""
    if memory is None:
        return None
    return memory.shape, memory.strides, memory.dtype, *dlpack_type(memory.dtype)


__all__ = ["MOST_PARAMETERS", "Numbered", "numbered"]
