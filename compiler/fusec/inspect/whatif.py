"""What if two computations shared a kernel, or did not: compiled, compared and timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fusec.compiled.graph import CompiledGraph, NoInputs
from fusec.compiled.part import CompiledPart
from fusec.devices import is_gpu
from fusec.inspect.reschedule import compile_again
from fusec.ir.interpret import run_program
from fusec.ir.program import Compute
from fusec.memory.strided import clone_strided
from fusec.report import OutputError, Timing
from fusec.schedule.choices import points
from fusec.schedule.overrides import Overrides
from fusec.schedule.step_graph import FusionView, fusion_view, why
from fusec.timing.measure import PRECISION, interleave
from fusec.verify.comparison.compare import compare_outputs

# The reference in float64 holds every value of a kernel at once: a gigabyte of them at the most.
_MOST_ELEMENTS = 1 << 27


@dataclass(frozen=True)
class WhatIf:
    """A part of a graph under another schedule, beside the one in use.

    Attributes:
        overrides: What was asked for.
        kernels: The kernels that came of it, by name.
        texts: Their texts, in the same order.
        now: Time of the part as it is in use.
        then: Time of the part as it would be, interleaved with ``now``.
        errors: How far its outputs are from those in use; empty where it draws random numbers.
        view: What fusion would do.
        refused: Overrides that could not be granted: why, in a sentence each.
    """

    overrides: Overrides
    kernels: tuple[str, ...]
    texts: tuple[str, ...]
    now: Timing
    then: Timing
    errors: tuple[OutputError, ...]
    view: FusionView
    refused: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether its outputs are those in use, within rounding."""
        return all(error.ok for error in self.errors)


def part_view(part: CompiledPart) -> FusionView:
    """Return what fusion did in a part of a graph."""
    state = part.state
    assert state.program is not None
    assert state.schedule is not None
    return fusion_view(state.program, state.scheduled, state.schedule.decisions)


def what_if(
    graph: CompiledGraph, part: CompiledPart, overrides: Overrides, seconds: float = 0.3
) -> WhatIf:
    """Compile a part with other fusions, compare it with the one in use, and time the two.

    Nothing that is in use changes.

    Args:
        graph: Whose part it is.
        part: What is compiled again; its latest inputs are used.
        overrides: Which computations are to share a kernel, or not.
        seconds: For the timing.

    Raises:
        NoInputs: The part has not run with its inputs kept.
        CompileError: A kernel of it does not compile.
    """
    with graph.lock, torch.no_grad():
        if part.last_inputs is None:
            raise NoInputs(graph.name)
        other, _ = compile_again(graph, part, part.state.options, overrides)

        def fresh() -> list[Any]:
            assert part.last_inputs is not None
            return [
                clone_strided(t) if isinstance(t, torch.Tensor) else t for t in part.last_inputs
            ]

        inputs = fresh()  # what is updated in place is a copy, and another one in each run
        tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
        device = tensors[0].device.type if tensors else "cpu"
        errors: tuple[OutputError, ...] = ()
        now, then = part.plain_entry(), other.plain_entry()
        if not part.draws_seed:
            mine = [t for t in then(fresh()) if isinstance(t, torch.Tensor)]
            used = [t for t in now(fresh()) if isinstance(t, torch.Tensor)]
            names = [f"output {n}" for n in range(len(mine))]
            errors = compare_outputs(names, mine, used, _exact(part, fresh()))
        times = interleave(
            {"now": lambda: now(list(inputs)), "then": lambda: then(list(inputs))},
            seconds=seconds,
            device=device,
            flush_l2=is_gpu(device),
            precision=PRECISION,
        )
    view = part_view(other)
    known = {node.name: node for node in view.before.nodes}
    pairs = [sorted(each) for each in overrides.together if each <= known.keys()]
    refused = tuple(
        why(view, a, b) for a, b in pairs if not set(known[a].kernels) & set(known[b].kernels)
    )
    kernels = tuple(other.kernels)
    texts = tuple(kernel.source for kernel in other.kernels.values())
    return WhatIf(overrides, kernels, texts, times["now"], times["then"], errors, view, refused)


def _exact(part: CompiledPart, inputs: list[Any]) -> list[torch.Tensor | None] | None:
    """Return the part's outputs in float64, where they fit beside everything else."""
    program = part.state.program
    if program is None or _elements(part) > _MOST_ELEMENTS:
        return None
    outputs = run_program(program, inputs, torch.float64)
    return [value for value in outputs if isinstance(value, torch.Tensor)]


def _elements(part: CompiledPart) -> int:
    """Return how many elements the reference interpreter would hold at once."""
    program = part.state.scheduled
    return max(
        (
            points(step.body.axes) * points(step.body.reduce_axes) * len(step.body.nodes())
            for step in program.steps
            if isinstance(step, Compute)
        ),
        default=0,
    )
