"""How long each step of a graph takes alone: its kernels, and its calls of ATen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch.utils import _pytree as pytree

from fusec.devices import is_gpu
from fusec.ir.program import Extern
from fusec.kernel import Kernel
from fusec.memory.strided import clone_strided
from fusec.random import generators_kept
from fusec.report import SourceLine, Timing
from fusec.timing.measure import PRECISION, interleave


class TimedPart(Protocol):
    """What is asked of a compiled part (``compiled.part.CompiledPart``)."""

    state: Any
    kernels: dict[str, Kernel]

    @property
    def last_inputs(self) -> tuple[object, ...] | None:
        """Inputs of its latest call, where they are kept."""

    def trace(
        self,
        inputs: Sequence[object],
        launch: Callable[[str, list[torch.Tensor], list[int]], None],
        extern: Callable[..., Any] | None = None,
    ) -> list[Any]:
        """Run it with others in place of its launches and its calls of ATen."""


class TimedGraph(Protocol):
    """What is asked of a compiled graph (``compiled.graph.CompiledGraph``)."""

    @property
    def lock(self) -> AbstractContextManager[Any, Any]:
        """Held while it runs."""

    @property
    def parts(self) -> Sequence[TimedPart]:
        """Its parts, in the order in which they run."""


@dataclass(frozen=True)
class StepTime:
    """The time of one step, alone, on its own inputs of the latest call.

    Attributes:
        name: The kernel's name, or the operator's.
        kind: Which of the two.
        where: The user's line of a call; a kernel has several, which its source knows.
        timing: With its data left in the cache, on the CPU.
    """

    name: str
    kind: Literal["kernel", "extern"]
    where: SourceLine | None
    timing: Timing


def step_times(
    graph: TimedGraph,
    seconds: float = 0.2,
    *,
    externs: bool = True,
    stop: Callable[[], bool] | None = None,
) -> tuple[StepTime, ...]:
    """Time the steps of a graph's parts against each other, interleaved.

    Args:
        graph: A part of it that has not run with its inputs kept is left out.
        seconds: For all steps together.
        externs: Whether to time the calls of ATen as well.
        stop: Asked between rounds; what was measured so far is returned.

    Returns:
        In the order in which they run.
    """
    with graph.lock, torch.no_grad(), generators_kept():
        found: list[tuple[str, Literal["kernel", "extern"], SourceLine | None, Any]] = []
        device = "cpu"
        alive: list[Sequence[torch.Tensor]] = []  # a call knows where they are, and no more
        for part in graph.parts:
            if part.last_inputs is None:
                continue
            for step, call, tensors in step_calls(part, externs=externs):
                device = next((t.device.type for t in tensors), device)
                alive.append(tensors)
                if isinstance(step, str):
                    found.append((step, "kernel", None, call))
                elif not step.is_plumbing:
                    label = str(step.target).removesuffix(".default")
                    found.append((label, "extern", step.where, call))
        timings = interleave(
            {str(number): call for number, (_, _, _, call) in enumerate(found)},
            seconds=seconds,
            device=device,
            flush_l2=is_gpu(device),
            precision=PRECISION,
            stop=stop,
        )
    return tuple(
        StepTime(name, kind, where, timings[str(number)])
        for number, (name, kind, where, _) in enumerate(found)
    )


def step_calls(
    part: TimedPart, *, externs: bool = False
) -> list[tuple[str | Extern, partial[Any], Sequence[torch.Tensor]]]:
    """Run a part once; return each step as a call with what it was given, in order."""
    found: list[tuple[str | Extern, partial[Any], Sequence[torch.Tensor]]] = []
    steps = (step for step in part.state.scheduled.steps if isinstance(step, Extern))

    def launch(name: str, tensors: list[torch.Tensor], sizes: list[int]) -> None:
        runnable = part.kernels[name].runnable()
        given = [clone_strided(tensor) for tensor in tensors]  # as they are before the launch
        bound = getattr(runnable, "bound", None)
        call = bound(given, list(sizes)) if bound else partial(runnable, given, list(sizes))
        found.append((name, call, given))
        runnable(tensors, sizes)

    def extern(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        step = next(steps)
        if step.mutates:
            given, named = pytree.tree_map_only(torch.Tensor, clone_strided, (args, kwargs))
        else:
            given, named = args, kwargs
        tensors = [t for t in pytree.tree_leaves((given, named)) if isinstance(t, torch.Tensor)]
        found.append((step, partial(function, *given, **named), tensors))
        return function(*args, **kwargs)

    assert part.last_inputs is not None
    part.trace(part.last_inputs, launch, extern if externs else None)
    return found


def kernel_launches(part: TimedPart) -> dict[str, tuple[list[torch.Tensor], list[int]]]:
    """Run a part once; return what each kernel is first given, as it is before the launch."""
    found: dict[str, tuple[list[torch.Tensor], list[int]]] = {}

    def launch(name: str, tensors: list[torch.Tensor], sizes: list[int]) -> None:
        if name not in found:
            found[name] = [clone_strided(tensor) for tensor in tensors], list(sizes)
        part.kernels[name].runnable()(tensors, sizes)

    assert part.last_inputs is not None
    part.trace(part.last_inputs, launch)
    return found
