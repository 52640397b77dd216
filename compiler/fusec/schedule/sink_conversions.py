"""Conversions of inputs, not long before what they are for.

They wait for nothing, and an order by dependencies alone would convert all weights of a network
before its second layer runs: memory for all of them at once (a diffusion transformer's inference
took four times TorchInductor's).  But a few ahead of time are as well: those of a kind start as one
(``device/packing.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fusec.ir.body import Buffer
from fusec.ir.program import Compute, Extern, Step
from fusec.schedule.choices import EARLY_BYTES, LEAST_SUNK_BYTES, buffer_bytes


def sink_conversions(
    steps: Sequence[Step], inputs: Sequence[str], buffers: Mapping[str, Buffer]
) -> tuple[Step, ...]:
    """Return the steps with what only converts inputs put off while enough of it is there.

    Args:
        steps: In an order that they may run in.
        inputs: The program's.
        buffers: By name.
    """
    changed = {n for s in steps if isinstance(s, Extern) for n in s.mutates}
    changed |= {name for step in steps for name in step.writes()} & set(inputs)
    still = set(inputs) - changed
    writers = Counter(name for step in steps for name in step.writes())
    reader: dict[str, int] = {}  # the first one of each buffer
    for position, step in enumerate(steps):
        for name in step.reads():
            reader.setdefault(name, position)
    waiting = {
        step.body.stores[0].buffer: step
        for step in steps
        if isinstance(step, Compute)
        and _converts(step, still, buffers)
        and writers[step.body.stores[0].buffer] == 1  # nothing is added to it later
        and step.body.stores[0].buffer not in changed
    }
    queue = sorted((reader[name], name) for name in waiting if name in reader)
    queued = {name for _, name in queue}
    early: dict[str, int] = {}
    result: list[Step] = []
    for step in steps:
        if not queued.isdisjoint(step.writes()):
            continue
        needed = set(step.reads())
        asked = bool(queue) and queue[0][1] in needed
        while asked and queue and (queue[0][1] in needed or _room(early, queue[0][1], buffers)):
            _, name = queue.pop(0)
            result.append(waiting[name])
            early[name] = buffer_bytes(buffers[name])
        for name in needed:
            early.pop(name, None)
        result.append(step)
    return tuple(result + [waiting[name] for _, name in queue])


def _converts(step: Compute, inputs: set[str], buffers: Mapping[str, Buffer]) -> bool:
    body = step.body
    return (
        len(body.stores) == 1
        and not body.has_reduction
        and not body.products
        and body.stores[0].mode == "set"
        and bool(body.reads())
        and set(body.reads()) <= inputs
        and buffer_bytes(buffers[body.stores[0].buffer]) >= LEAST_SUNK_BYTES
    )


def _room(early: Mapping[str, int], name: str, buffers: Mapping[str, Buffer]) -> bool:
    return sum(early.values()) + buffer_bytes(buffers[name]) <= EARLY_BYTES


__all__ = ["sink_conversions"]
