"""What is written for a function: its kernels, schedule and host program, none of them built."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import fx

import fusec
from fusec.capture import graph_compiler
from fusec.graph.pipeline import GraphForm
from fusec.ir.printer import format_program
from fusec.ir.program import Program
from fusec.lower import lower_graph
from fusec.lower.values import GraphNotLowered
from fusec.options import Options
from fusec.pipeline import Compilation, run_stages


@dataclass(frozen=True)
class Written:
    """What became of one graph.

    Attributes:
        program: The scheduled program.
        host: The host program.
        kernels: Their texts, by name.
    """

    program: str
    host: str
    kernels: dict[str, str]

    @property
    def texts(self) -> tuple[str, ...]:
        """All of it."""
        return (self.program, self.host, *self.kernels.values())

    def without_comments(self) -> tuple[str, ...]:
        """Return all of it less what is for readers alone."""
        return tuple(re.sub(r"\s*(//|#(?!include|pragma|define)).*", "", t) for t in self.texts)


def staged(module: fx.GraphModule, options: Options, **more: Any) -> Written:
    """Take a graph through the stages of the pipeline."""
    state = Compilation(module, options, set(), **more)
    run_stages(state)
    assert state.host is not None
    kernels = {name: kernel.source.text for name, kernel in state.kernels.items()}
    return Written(format_program(state.scheduled), state.host.text, kernels)


def on_gpu(*given: Any, **more: Any) -> Program:
    """Lower a graph as if its tensors were on a GPU."""
    program = lower_graph(*given, **more)
    there = torch.device("cuda", 0)
    buffers = {name: replace(b, device=there) for name, b in program.buffers.items()}
    return replace(program, buffers=buffers)


@contextmanager
def collecting() -> Iterator[list[Written]]:
    """Collect what is written for every graph that is compiled in the block; all runs in eager."""
    found: list[Written] = []

    def compile_part(self: Any, kind: str, module: fx.GraphModule, stages: Any) -> Any:
        if kind == "inference":
            self._run_passes(GraphForm.INFERENCE, module)
        self._run_passes(GraphForm.PART, module)
        saved = self._saved(kind, module)
        updated = graph_compiler.updated_inputs(module)
        found.append(staged(module, self.orders.options, updated=updated, saved=saved))
        raise GraphNotLowered("this test runs it in eager")

    with patch.object(graph_compiler.GraphCompiler, "_compile_part", compile_part):
        yield found


def written(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], *, target: str = "cpp"
) -> list[Written]:
    """Return what is written for a call of a function, and for its gradients.

    Args:
        function: Takes the inputs.
        inputs: On the CPU; what wants gradients is a leaf.
        target: ``cpp``, ``triton``, or ``gpu`` for a GPU that need not be there.
    """
    torch._dynamo.reset()
    on = patch("fusec.pipeline.lower_graph", on_gpu) if target == "gpu" else nullcontext()
    options = {"matmul": "small"} if target == "gpu" else {"target": target}
    with on, collecting() as found:
        results = fusec.compile(function, **options)(*inputs)
        parts = results if isinstance(results, (tuple, list)) else (results,)
        ends = [r for r in parts if isinstance(r, torch.Tensor) and r.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    return found
