"""Steps rearranged for a CUDA graph: which memory the graph knows by heart, which it is told.

A captured graph launches what it was captured with. Of kernels that we start ourselves the driver
can be told other addresses before each launch, so inputs and outputs that only those touch need no
copy: outputs are new memory at each call. What an operator of ATen takes or makes is baked in:

- an input must be where it was, or is copied into memory of the graph's own;
- an output is copied out of the graph's memory.

So no output of a call is ever the memory of the next call's, but for residents (``residents.py``):
they stay where the graph makes them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from fusec.device.step_memory import with_frees
from fusec.device.steps import (
    Copy,
    Free,
    Memory,
    MemoryPlace,
    PythonCall,
    SizedProgram,
    Start,
    Step,
    touched,
)

COPIED = "/copy"  # of an input, inside of the graph
FRESH = "/fresh"  # of an output, outside of it


@dataclass(frozen=True)
class GraphSteps:
    """A program as it is captured.

    Attributes:
        steps: What is captured, and what a call returns.
        before: Memory that each call gets anew, outside of the graph.
        loose: Tensors whose place the graph is told at each call.
        fixed: Inputs that must be where they were at capture.
        copied_inputs: Inputs that are copied into the graph.
        copied_outputs: Outputs that are copied out of it.
        residents: Outputs that stay in it.
    """

    steps: SizedProgram
    before: tuple[Memory, ...]
    loose: tuple[str, ...]
    fixed: tuple[str, ...]
    copied_inputs: tuple[str, ...]
    copied_outputs: tuple[str, ...]
    residents: tuple[str, ...] = ()


def called(steps: SizedProgram) -> frozenset[str]:
    """Return the tensors that something other than our own starts touches."""
    found = (touched(step) for step in steps.steps if isinstance(step, PythonCall))
    return frozenset(name for names in found for name in names)


def baked_inputs(steps: SizedProgram) -> tuple[str, ...]:
    """Return the inputs that a graph knows by heart, unless they are copied."""
    by_call = called(steps)
    return tuple(name for name in steps.inputs if name in steps.tensors and name in by_call)


def unmovable_inputs(steps: SizedProgram) -> frozenset[str]:
    """Return the inputs that no copy can stand for."""
    found: set[str] = set()
    bases: dict[str, set[str]] = {}  # what a tensor may be a view of
    for step in steps.steps:
        if not isinstance(step, PythonCall):
            continue
        for name in step.fixed:
            found |= {name} | bases.get(name, set())
        if step.views:
            seen = {base for name in step.reads for base in (name, *bases.get(name, ()))}
            bases |= {name: seen for name in step.outputs if name is not None}
    return frozenset(found & set(steps.tensors))


def is_random(steps: SizedProgram) -> bool:
    """Whether operators draw from torch's generators."""
    return any(isinstance(step, PythonCall) and step.random for step in steps.steps)


def work_count(steps: SizedProgram) -> int:
    """Return how many starts and calls there are."""
    return sum(isinstance(step, (Start, PythonCall)) for step in steps.steps)


def for_graph(
    steps: SizedProgram, copied: Collection[str], residents: Collection[str] = ()
) -> GraphSteps:
    """Rearrange steps for capture.

    Args:
        steps: The program.
        copied: Baked inputs to copy at each call, because their places vary.
        residents: Outputs that stay in the graph's memory.
    """
    by_call = called(steps)
    baked = baked_inputs(steps)
    copied = tuple(name for name in baked if name in copied)
    body: list[Step] = []
    for name in copied:
        source = steps.tensors[name]
        body += [replace(source, name=name + COPIED), Copy(name + COPIED, name, source.bytes)]
    renamed = {name: name + COPIED for name in copied}
    made = {step.name: step for step in steps.steps if isinstance(step, Memory)}
    returned = dict.fromkeys(
        o.name for o in steps.outputs if o.name is not None and o.name not in steps.tensors
    )
    staying = tuple(name for name in returned if name in residents)
    for name in staying:
        del returned[name]
    direct = [name for name in returned if name in made and name not in by_call]
    body += [
        _rename(step, renamed)
        for step in steps.steps
        if not isinstance(step, Free) and not (isinstance(step, Memory) and step.name in direct)
    ]
    before = [made[name] for name in direct]
    copied_out = [name for name in returned if name not in direct]
    layouts = {memory.name: memory for memory in steps.made}
    for name in copied_out:
        fresh = replace(layouts[name], name=name + FRESH)
        before.append(fresh)
        body.append(Copy(fresh.name, name, fresh.bytes))
    outputs = tuple(
        replace(o, name=o.name + FRESH) if o.name in copied_out and o.name is not None else o
        for o in steps.outputs
    )
    loose = [name for name in steps.tensors if name not in baked or name in copied]
    loose += [memory.name for memory in before]
    alive = {*steps.inputs, *(memory.name for memory in before), *staying}
    return GraphSteps(
        replace(steps, steps=tuple(with_frees(body, alive)), outputs=outputs),
        tuple(before),
        tuple(loose),
        tuple(name for name in baked if name not in copied),
        copied,
        tuple(copied_out),
        staying,
    )


def _rename(step: Step, names: dict[str, str]) -> Step:
    def new(place: MemoryPlace) -> MemoryPlace:
        renamed = names.get(place.name) if place.name is not None else None
        return place if renamed is None else replace(place, name=renamed)

    if isinstance(step, Start):
        return replace(step, places=tuple(new(place) for place in step.places))
    if isinstance(step, PythonCall):
        arguments = (
            new(each) if isinstance(each, MemoryPlace) else each for each in step.arguments
        )
        reads = (names.get(name, name) for name in step.reads)
        return replace(step, arguments=tuple(arguments), reads=tuple(reads))
    return step


__all__ = [
    "GraphSteps",
    "baked_inputs",
    "called",
    "for_graph",
    "is_random",
    "unmovable_inputs",
    "work_count",
]
