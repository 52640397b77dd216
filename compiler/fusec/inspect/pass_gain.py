"""What a pass over the graph is worth: the graph compiled without it, compared and timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fusec.capture.backend import Backend
from fusec.compiled.graph import CompiledGraph
from fusec.devices import is_gpu
from fusec.errors import FusecError
from fusec.report import OutputError, Timing
from fusec.timing.measure import PRECISION, interleave
from fusec.timing.training_step import with_backward
from fusec.verify.comparison.compare import compare_outputs


class NotCompiled(FusecError):
    """A graph runs in eager, so that there is nothing to leave out."""


@dataclass(frozen=True)
class PassGain:
    """A graph with a pass and without it.

    Attributes:
        name: The pass.
        now: Time of the graph with the pass.
        then: Time of the graph without it, interleaved with ``now``.
        kernels: How many kernels there are, with it and without it.
        errors: How far the outputs without it are from those with it; empty where the graph draws
            random numbers.
    """

    name: str
    now: Timing
    then: Timing
    kernels: tuple[int, int]
    errors: tuple[OutputError, ...]

    @property
    def same(self) -> bool:
        """Whether the outputs are the same, within rounding."""
        return all(error.ok for error in self.errors)


def passes_that_changed(graph: CompiledGraph) -> tuple[str, ...]:
    """Return the passes that changed something and may be left out, in order."""
    from fusec.graph.pipeline import PASSES

    optional = {each.name for each in PASSES if not each.required}
    changed = (run.name for run in graph.passes if run.changes)
    return tuple(name for name in dict.fromkeys(changed) if name in optional)


def pass_gain(graph: CompiledGraph, name: str, seconds: float = 0.3) -> PassGain:
    """Compile a graph with and without a pass, compare the two, and time them.

    Both are compiled anew and called alike, with AOTAutograd's wrappers around them; nothing that
    is in use changes.  Where backward has run, a call is forward and backward.

    Args:
        graph: It has run with its inputs kept.
        name: The pass, as ``passes_that_changed`` names it.
        seconds: For the timing.

    Raises:
        NoInputs: The graph has not run with its inputs kept.
        NotCompiled: It runs in eager.
        BadOption: There is no such pass, or results would be wrong without it.
        CompileError: A kernel does not compile.
    """
    if graph.fallback or not graph.parts:
        raise NotCompiled(f"{graph.name} runs in eager", graph.fallback)
    with graph.lock, torch.set_grad_enabled(graph.records_gradients):
        given = [graph.copies(), graph.copies()]
        options = replace(graph.parts[0].state.options, keep_inputs=False)
        without = replace(options, without=(*options.without, name))
        compiled = [_compiled(graph, each, graph.copies()) for each in (options, without)]
        whole = with_backward if graph.ran_backward else _forward
        calls = [whole(call, own) for (call, _), own in zip(compiled, given, strict=True)]
        results = [_tensors(call()) for call in calls]
        found = [r + _gradients(own) for r, own in zip(results, given, strict=True)]
        errors: tuple[OutputError, ...] = ()
        if not any(part.draws_seed for part in graph.parts):
            names = [f"output {n}" for n in range(len(results[0]))]
            names += [f"gradient {n}" for n in range(len(found[0]) - len(names))]
            errors = compare_outputs(names, found[1], found[0], None)
        device = next((t.device.type for t in given[0] if isinstance(t, torch.Tensor)), "cpu")
        times = interleave(
            {"now": calls[0], "then": calls[1]},
            seconds=seconds,
            device=device,
            flush_l2=is_gpu(device),
            precision=PRECISION,
        )
    counts = [len(made.kernels) for _, made in compiled]
    return PassGain(name, times["now"], times["then"], (counts[0], counts[1]), errors)


def _compiled(
    graph: CompiledGraph, options: Any, inputs: Sequence[Any]
) -> tuple[Callable[..., Any], CompiledGraph]:
    backend = Backend(options)
    call = backend(graph.held.eager, list(inputs))
    (made,) = backend.graphs
    return call, made


def _forward(call: Callable[..., object], inputs: Sequence[Any]) -> Callable[[], object]:
    return lambda: call(*inputs)


def _gradients(inputs: Sequence[Any]) -> list[torch.Tensor]:
    tensors = (each for each in inputs if isinstance(each, torch.Tensor) and each.is_leaf)
    return [each.grad for each in tensors if each.grad is not None]


def _tensors(results: object) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(results)
    return [each.detach() for each in leaves if isinstance(each, torch.Tensor)]


__all__ = ["NotCompiled", "PassGain", "pass_gain", "passes_that_changed"]
