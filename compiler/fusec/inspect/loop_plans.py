"""What the decisions about a kernel's loops are worth: other plans compiled, compared, timed."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.compiled.graph import CompiledGraph
from fusec.compiled.part import CompiledPart
from fusec.inspect.whatif import WhatIf, part_view, what_if
from fusec.rule_text import loop_rule
from fusec.schedule.overrides import LoopOverride, Overrides


@dataclass(frozen=True)
class PlanTrial:
    """Another plan of a kernel's loops, beside the one in use.

    Attributes:
        asked: What was asked for, in the words of a rule, without the computation's name.
        found: The part under it: its time beside that of the part in use, and how right it is.
        ratio: How many times as long it takes.
    """

    asked: str
    found: WhatIf
    ratio: float


def try_plans(
    graph: CompiledGraph, part: CompiledPart, kernel: str, seconds: float = 0.3
) -> list[PlanTrial]:
    """Try what the kernel's target has to offer instead of its plan; the fastest come first.

    Nothing that is in use changes; ``CompiledFunction.reschedule(loops=...)`` puts a plan in use.

    Args:
        graph: Whose kernel it is.
        part: Likewise.
        kernel: The kernel's name.
        seconds: For each timing.

    Raises:
        NoInputs: The part has not run with its inputs kept.
    """
    nodes = part_view(part).before.nodes
    step = next(node.name for node in nodes if kernel in node.kernels)
    trials = []
    for asked in part.kernels[kernel].generated.alternatives:
        _, strategy, settings = loop_rule(f"{step}: {asked}")
        overrides = Overrides(loops=(LoopOverride(step, strategy, settings),))
        found = what_if(graph, part, overrides, seconds)
        if found.texts == tuple(each.source for each in part.kernels.values()):
            continue  # it was not possible, or made no difference
        trials.append(PlanTrial(asked, found, found.then.median / found.now.median))
    return sorted(trials, key=lambda trial: trial.ratio)


__all__ = ["PlanTrial", "try_plans"]
