"""Translation validation: who is to blame for a wrong result, the lowering, the schedule, a kernel.

While ``validating`` is on, every compiled part (forward, backward, inference) is run in four ways
on the inputs of each of its calls: the graph by ATen's operators, the lowered program and the
scheduled program by the reference interpreter, and the kernels themselves; each kernel also alone,
on what its step got.  Two neighbors that differ say which translation is wrong.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import fx

from fusec.codegen.common.signatures import argument_buffers, body_sizes
from fusec.compiled.part import CompiledPart
from fusec.ir.interpret import run_body, run_program, size_values
from fusec.ir.node import recording
from fusec.ir.program import Compute, Program, Step, TensorRef
from fusec.memory.strided import clone_strided
from programs.check import CLOSE, NUDGE, differences, widened

# Points of a loop nest, of which the interpreter holds every value at once.
MOST_POINTS = 4_000_000


@dataclass
class Validation:
    """What was found.

    Attributes:
        calls: Calls of parts that were validated.
        kernels: Kernel launches among them.
        skipped: Calls that were not, with the reason.
        problems: What differs: the part, the stage (``lowering``, ``schedule``, ``kernel``,
            ``host program``), the step, and how.
    """

    calls: int = 0
    kernels: int = 0
    skipped: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return (
            f"{self.calls} calls and {self.kernels} kernels validated{skipped}; "
            f"{len(self.problems)} mistranslated"
        )


@contextlib.contextmanager
def validating() -> Iterator[Validation]:
    """Validate every call of what is compiled from here on.

    Calls go through AOTAutograd's wrappers meanwhile: the shorter ways past them end in the same
    kernels, but pass where nobody can look at their inputs.
    """
    found = Validation()
    real = CompiledPart.entry

    def entry(part: CompiledPart) -> Callable[[list[Any]], list[Any]]:
        run = real(part)

        def call(inputs: list[Any]) -> list[Any]:
            before = _copies(inputs)
            state = torch.get_rng_state()
            outputs = run(inputs)
            after = torch.get_rng_state()
            with torch.no_grad(), torch.amp.autocast("cpu", enabled=False):
                _Part(part, before, state, found).validate(outputs)
            torch.set_rng_state(after)
            return outputs

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledPart, "entry", entry)
        name = "fusec.capture.graph_compiler.epilogue_instead_of_wrappers"
        patch.setattr(name, lambda *_, **__: None)
        yield found


@contextlib.contextmanager
def validated(wanted: bool, total: Validation) -> Iterator[list[str]]:
    """Yield a list that has what was mistranslated once the context is left.

    Args:
        wanted: Whether to validate at all.
        total: What the counts are added to.
    """
    texts: list[str] = []
    if not wanted:
        yield texts
        return
    with validating() as found:
        yield texts
    texts += found.problems
    total.calls += found.calls
    total.kernels += found.kernels
    total.skipped += found.skipped
    total.problems += found.problems


class _Part:
    """One call of a part."""

    def __init__(
        self, part: CompiledPart, inputs: Sequence[Any], state: torch.Tensor, found: Validation
    ) -> None:
        self.part = part
        self.inputs = inputs
        self.state = state
        self.found = found
        self.kind = _coarsest(part.state.scheduled)

    def validate(self, outputs: Sequence[Any]) -> None:
        """Compare each way of running it with the one before."""
        state = self.part.state
        assert state.program is not None
        reason = self._why_not(state.program) or self._why_not(state.scheduled)
        if reason:
            self.found.skipped.append(reason)
            return
        self.found.calls += 1
        self._kernels()
        graph = self._attempt("graph", lambda: list(state.module(*_copies(self.inputs))))
        lowered = self._attempt("lowering", lambda: self._interpret(state.program))
        scheduled = self._attempt("schedule", lambda: self._interpret(state.scheduled))
        if graph is None or lowered is None or scheduled is None:
            return
        for stage, wanted, got, exact in (
            ("lowering", graph, lowered, self._graph_in_float64),
            ("schedule", lowered, scheduled, self._lowered_in_float64),
            ("host program", scheduled, outputs, self._lowered_in_float64),
        ):
            texts = self._compared(wanted, got, exact(0.0), exact(NUDGE[self.kind]))
            if texts and stage == "host program" and self._blamed("kernel"):
                continue  # what the kernel wrote went on
            for number, text in texts:
                self._add(stage, self._step(stage, number), f"output {number}: {text}")

    # -- ways of running ------------------------------------------------------------------------

    def _interpret(self, program: Program | None, **how: Any) -> list[Any]:
        assert program is not None
        with recording(self.part.state.recorder):
            return run_program(program, _copies(self.inputs), **how)

    def _graph_in_float64(self, nudge: float) -> list[Any] | None:
        from torch._dynamo.debug_utils import cast_to_fp64

        module = self.part.state.module
        wide = fx.GraphModule(module, copy.deepcopy(module.graph))
        try:
            wide, _ = cast_to_fp64(wide, ())
            torch.set_rng_state(self.state)
            return list(wide(*self._raised(nudge)))
        except (RuntimeError, IndexError, TypeError):
            return None  # an operator that takes no float64, or another index

    def _lowered_in_float64(self, nudge: float) -> list[Any] | None:
        torch.set_rng_state(self.state)
        program = self.part.state.program
        assert program is not None
        try:
            with recording(self.part.state.recorder):
                return run_program(program, self._raised(nudge), torch.float64)
        except (RuntimeError, IndexError):
            return None

    def _raised(self, nudge: float) -> list[Any]:
        tensors = [each for each in self.inputs if isinstance(each, torch.Tensor)]
        moved = iter(widened(tensors, nudge))
        return [next(moved) if isinstance(v, torch.Tensor) else v for v in self.inputs]

    def _attempt(self, stage: str, run: Callable[[], list[Any]]) -> list[Any] | None:
        torch.set_rng_state(self.state)
        try:
            return run()
        except Exception as error:
            if stage == "graph":
                self.found.skipped.append(f"the graph does not run: {error}"[:200])
            else:
                self._add(stage, "", f"{type(error).__name__}: {error}"[:300])
            return None

    def _kernels(self) -> None:
        """Run each kernel and the interpreter on what its step gets."""
        program = self.part.state.scheduled

        def launch(name: str, tensors: list[torch.Tensor], sizes: list[int]) -> None:
            kernel = self.part.kernels[name]
            names = argument_buffers(kernel.body)
            given = dict(zip(names, map(clone_strided, tensors), strict=True))
            before = {key: clone_strided(value) for key, value in given.items()}
            kernel.runnable()(tensors, sizes)
            symbols = dict(zip(body_sizes(kernel.body, program.buffers), sizes, strict=True))
            self.found.kernels += 1
            try:
                run_body(kernel.body, given, symbols)
            except Exception as error:
                self._add("kernel", name, f"{type(error).__name__}: {error}"[:300])
                return
            exact, near = (
                _exact_body(kernel.body, before, symbols, nudge)
                for nudge in (0.0, NUDGE[self.kind])
            )
            for written in kernel.body.writes():
                got = tensors[names.index(written)]
                e, n = (each.get(written) if each else None for each in (exact, near))
                for text in differences(given[written], got, e, _several(n), self.kind):
                    self._add("kernel", name, f"{written}: {text}")

        torch.set_rng_state(self.state)
        self.part.trace(_copies(self.inputs), launch)

    # -- what is found --------------------------------------------------------------------------

    def _compared(
        self,
        wanted: Sequence[Any],
        got: Sequence[Any],
        exact: Sequence[Any] | None,
        near: Sequence[Any] | None,
    ) -> list[tuple[int, str]]:
        found = []
        for number, (want, have) in enumerate(zip(wanted, got, strict=True)):
            if not isinstance(want, torch.Tensor) or not isinstance(have, torch.Tensor):
                if isinstance(want, torch.Tensor) != isinstance(have, torch.Tensor):
                    found.append((number, f"{have!r} instead of {want!r}"[:200]))
                continue
            e, n = (each[number] if each is not None else None for each in (exact, near))
            texts = differences(want, have, e, _several(n), self.kind)
            # strides are the host program's business, and what it calls sees to them
            found += [(number, text) for text in texts if not text.startswith("layout")]
        return found

    def _step(self, stage: str, number: int) -> str:
        """Return the first scheduled step to differ, or the one that writes an output."""
        program = self.part.state.program if stage == "lowering" else self.part.state.scheduled
        assert program is not None
        if stage == "schedule":
            first = self._first_to_differ()
            if first:
                return first
        output = program.outputs[number]
        if not isinstance(output, TensorRef):
            return ""
        writers = [step for step in program.steps if output.buffer in step.writes()]
        return _called(writers[-1]) if writers else f"input {output.buffer}"

    def _first_to_differ(self) -> str:
        lowered: dict[str, torch.Tensor] = {}
        first = ""

        def keep(step: Step, tensors: Any) -> None:
            lowered.update({name: tensors[name].clone() for name in step.writes()})

        def look(step: Step, tensors: Any) -> None:
            nonlocal first
            for name in step.writes():
                if not first and name in lowered:
                    texts = differences(lowered[name], tensors[name], None, (), self.kind)
                    if any(not text.startswith("layout") for text in texts):
                        first = _called(step)

        torch.set_rng_state(self.state)
        self._interpret(self.part.state.program, observe=keep)
        torch.set_rng_state(self.state)
        self._interpret(self.part.state.scheduled, observe=look)
        return first

    def _why_not(self, program: Program) -> str:
        sizes = size_values(program, self.inputs)
        for step in program.steps:
            if isinstance(step, Compute):
                extents = [axis.size for axis in (*step.body.axes, *step.body.reduce_axes)]
                points = math.prod(
                    int(size.evaluate(lambda s: sizes[s]))  # type: ignore[call-overload]
                    for size in extents
                    if size is not None
                )
                if points > MOST_POINTS and not step.body.products:
                    return f"{_called(step)} has {points} points"
        return ""

    def _blamed(self, stage: str) -> bool:
        return any(text.startswith(f"{self.part.kind}: {stage}") for text in self.found.problems)

    def _add(self, stage: str, step: str, text: str) -> None:
        self.found.problems.append(f"{self.part.kind}: {stage} {step}: {text}")


def _coarsest(program: Program) -> torch.dtype:
    """Return the least precise floating-point type that a program computes in."""
    kinds = {buffer.dtype for buffer in program.buffers.values()}
    for step in program.steps:
        if isinstance(step, Compute):
            kinds |= {node.dtype for node in step.body.nodes()}
    known = kinds & CLOSE.keys() or {torch.float32}
    return max(known, key=CLOSE.__getitem__)


def _exact_body(
    body: Any, before: dict[str, torch.Tensor], sizes: Any, nudge: float
) -> dict[str, torch.Tensor] | None:
    given = dict(zip(before, widened(list(before.values()), nudge), strict=True))
    try:
        run_body(body, given, sizes, torch.float64)
    except (RuntimeError, IndexError):
        return None
    return given


def _several(near: torch.Tensor | None) -> list[torch.Tensor]:
    return [] if near is None else [near]


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [clone_strided(v.detach()) if isinstance(v, torch.Tensor) else v for v in inputs]


def _called(step: Step) -> str:
    return f"{step.name} ({step.label})" if step.label else step.name


__all__ = ["Validation", "validated", "validating"]
