"""Copies that nobody needs: of a library call's result that nothing else reads.

An update of some elements is lowered as a copy of the tensor and a kernel that changes the copy.
Where the tensor is the result of a matrix product or a convolution, fresh memory that only the copy
would read, the update changes that one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from fusec.ir.node import Load
from fusec.ir.program import Compute, Extern, Program, Step
from fusec.report import FusionDecision

aten = torch.ops.aten
FRESH: tuple[object, ...] = (  # their results share memory with nothing
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    aten.convolution_backward.default,
)
if hasattr(torch.ops.mkldnn, "_linear_pointwise"):  # in builds with oneDNN
    FRESH += (torch.ops.mkldnn._linear_pointwise.default,)


def take_over(
    program: Program, steps: Sequence[Step]
) -> tuple[tuple[Step, ...], list[FusionDecision]]:
    """Return ``steps`` without such copies, and what was done.

    Args:
        program: What the steps are of.
        steps: In order.
    """
    reads = Counter(name for step in steps for name in step.reads())
    kept = program.output_buffers() | set(program.inputs)
    makers = {name: step for step in steps for name in step.writes() if isinstance(step, Extern)}
    renamed: dict[str, str] = {}  # a library call's result to the copy that it becomes
    gone: set[str] = set()
    decisions = []
    for step in steps:
        if not isinstance(step, Compute):
            continue
        source = _copied(step, program)
        maker = makers.get(source)
        if maker is None or maker.target not in FRESH or source in kept or reads[source] != 1:
            continue
        (made,) = step.writes()
        renamed[source] = made
        gone.add(step.name)
        saved = 2 * program.buffers[made].bytes
        reason = "the result is changed where it lies"
        decisions.append(FusionDecision(maker.name, step.name, True, reason, saved))
    left: list[Step] = []
    for step in steps:
        if step.name in gone:
            continue
        if isinstance(step, Extern) and not renamed.keys().isdisjoint(step.outputs):
            outputs = tuple(renamed.get(name, name) for name in step.outputs)
            step = replace(step, outputs=outputs)
        left.append(step)
    return tuple(left), decisions


def _copied(step: Compute, program: Program) -> str:
    """Return the buffer that a step does nothing but copy, as it lies; else an empty name."""
    if len(step.body.stores) != 1:
        return ""
    (store,) = step.body.stores
    value = store.value
    if store.updates or not isinstance(value, Load) or value.mask is not None:
        return ""
    if value.index != store.index:
        return ""
    source, made = program.buffers[value.buffer], program.buffers[store.buffer]
    alike = all(
        getattr(source, name) == getattr(made, name)
        for name in ("shape", "strides", "dtype", "device")
    )
    return source.name if alike else ""


__all__ = ["FRESH", "take_over"]
