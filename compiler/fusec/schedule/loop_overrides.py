"""How the loops of kernels are to run, put into a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.ir.program import Compute, Program
from fusec.schedule.overrides import LoopOverride
from fusec.schedule.plan import Schedule
from fusec.schedule.step_graph import fusion_view


def with_loop_overrides(
    lowered: Program, schedule: Schedule, overrides: Sequence[LoopOverride]
) -> Schedule:
    """Return a schedule whose kernels say how their loops are to run.

    Args:
        lowered: The program before fusion.
        schedule: What became of it.
        overrides: What somebody wants; a later one of the same kernel adds to the earlier ones.
    """
    nodes = fusion_view(lowered, schedule.program, schedule.decisions).before.nodes
    kernels = {node.name: node.kernels for node in nodes}
    steps = list(schedule.program.steps)
    for override in overrides:
        for number, step in enumerate(steps):
            if isinstance(step, Compute) and step.name in kernels.get(override.step, ()):
                settings = {**dict(step.settings), **dict(override.settings)}
                strategy = override.strategy or step.strategy
                steps[number] = replace(step, strategy=strategy, settings=tuple(settings.items()))
    return replace(schedule, program=replace(schedule.program, steps=tuple(steps)))


__all__ = ["with_loop_overrides"]
