"""A captured graph and its compiled parts: what a call runs, and what is kept of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad

from fusec.call.eager_graph import run_eagerly
from fusec.call.epilogue import Epilogue
from fusec.call.grad_mode import in_modes
from fusec.call.input_check import SharedMemory, UnexpectedInput
from fusec.call.native_program import NativeProgram
from fusec.call.recorded_plan import RecordedPlan
from fusec.compiled.held import Held
from fusec.compiled.moved_parameters import capture_again, holds_tensors
from fusec.compiled.part import CompiledPart
from fusec.errors import FusecError
from fusec.kernel import Kernel
from fusec.memory.readable import has_tangent
from fusec.memory.strided import clone_strided
from fusec.report import (
    ExternCall,
    FusionDecision,
    PassRun,
    SavedTensor,
    Stage,
    counted,
)


class NoInputs(FusecError):
    """Checking and timing need the inputs of a call, and there are none."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} has not run with its inputs kept",
            "call it once, compiled with keep_inputs=True",
        )


class EarlierInputs(tuple[Any, ...]):
    """Inputs of a call that came before somebody began to look for calls."""


class GraphCalls:
    """One captured graph, its compiled parts, and how calls reach them.

    Attributes:
        name: For people: ``graph 0``.
        eager: The captured graph itself; running it is running eager.
        parts: The compiled parts: one for inference, or forward and backward.
        fallback: Why the graph runs in eager, or an empty string.
        saved: What the forward part keeps for the backward part.
        recomputed: Operators that the backward part computes again instead.
        passes: What each pass over the graph did, in order.
    """

    def __init__(self, name: str, eager: fx.GraphModule, keep: bool) -> None:
        self.name = name
        self.eager = eager
        self.keep = keep
        self.parts: list[CompiledPart] = []
        self._stages: tuple[Stage, ...] = ()
        self._stages_of: dict[int, tuple[Stage, ...]] = {}
        self._firsts: dict[str, CompiledPart] = {}
        self.fallback = ""
        self.saved: tuple[SavedTensor, ...] = ()
        self.recomputed: tuple[str, ...] = ()
        self.passes: tuple[PassRun, ...] = ()
        self.compiled: Callable[..., Any] | None = None
        self.lock = threading.RLock()
        self._direct: CompiledPart | None = None
        # The only part, what is to be done beside running it; whether with autocast off, autograd;
        # which results become inference tensors.
        self.plain: tuple[CompiledPart, Epilogue] | None = None
        self.converts = self.records = False
        self.inference: tuple[int, ...] = ()
        self.traced: tuple[CodeType, ...] = ()  # what TorchDynamo went through
        self.input_names: dict[int | str, str] = {}  # by position, or where the graph has it
        self.input_sources: dict[int, str] = {}  # where each was found, in torch's words
        self._recorded: Callable[..., Any] | None = None
        # What calls that record for autograd do beside running the parts; None where not known.
        self.recorded_plan: RecordedPlan | None = None
        # Compiles the backward part where that waits for the first gradient.
        self.make_backward: Callable[[], object] | None = None
        self._held: Held | None = None
        self._last_inputs: tuple[Any, ...] | None = None
        # Whether calls record for autograd, which is guarded; replays do alike.
        self._gradients = torch.is_grad_enabled()

    # -- what it is -------------------------------------------------------------------------

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel, in order of launch, forward before backward."""
        return tuple(k for part in self.parts for k in part.kernels.values())

    @property
    def externs(self) -> tuple[ExternCall, ...]:
        """Every operator that runs as ATen's own kernel."""
        return tuple(e for part in self.parts for e in part.externs)

    @property
    def fusions(self) -> tuple[FusionDecision, ...]:
        """Every fusion made or refused."""
        return tuple(d for p in self.parts if p.state.schedule for d in p.state.schedule.decisions)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of how it runs."""
        found = (
            note
            for part in self.parts
            for note in (*part.notes, *part.by_operators, *part.graph_notes())
        )
        return tuple(dict.fromkeys(found))

    @property
    def seconds(self) -> float:
        """How long it took to compile, capture included."""
        return sum(stage.seconds for stage in self.stages)

    def __repr__(self) -> str:
        what = (
            f"{counted(len(self.kernels), 'kernel')}, {counted(len(self.externs), 'extern call')}"
        )
        return f"<CompiledGraph {self.name}: {self.fallback or what}>"

    # -- running ----------------------------------------------------------------------------

    def __call__(self, *inputs: Any) -> Any:
        """Run the compiled graph, as TorchDynamo calls it."""
        if not self.keep:
            return self._run(*inputs)
        before = self._last_inputs, self._gradients
        self._last_inputs, self._gradients = inputs, torch.is_grad_enabled()
        try:
            return self._run(*inputs)
        except BaseException:  # a call that raises leaves what is checked and timed as it was
            self._last_inputs, self._gradients = before
            raise

    def _run(self, *inputs: Any) -> Any:
        assert self.compiled is not None
        if forward_ad._current_level >= 0 and any(map(has_tangent, inputs)):
            return self.run_captured(*inputs)  # kernels would leave the tangents behind
        if self._direct is None and torch._C._are_functorch_transforms_active():
            # Inputs that a transform knows nothing of: autograd's functions refuse to run there.
            return self.run_captured(*inputs)
        try:
            return self.compiled(*inputs)
        except SharedMemory:  # raised before anything ran
            return self.run_captured(*inputs)
        except UnexpectedInput:  # likewise
            if not holds_tensors(self.eager):
                raise
            capture_again()
            return self.run_captured(*inputs)

    def run_captured(self, *inputs: Any) -> Any:
        """Run the captured graph by torch's own functions, as it was written."""
        return run_eagerly(self.eager)(*inputs)

    def run_in_eager(self, reason: str) -> None:
        """Run the captured graph by torch's own functions; what raises leaves torch's state alone.

        Args:
            reason: Why, for people.
        """
        self.fallback, self.parts, self._held = reason, [], Held(self.eager, None)
        self.compiled = run_eagerly(self.eager)

    def bypass(
        self,
        part: CompiledPart,
        *,
        converts: bool = False,
        records: bool = False,
        inference: tuple[int, ...] = (),
    ) -> None:
        """From now on give the inputs straight to the only part, past AOTAutograd's wrappers.

        Whoever calls this has made sure that the wrappers have nothing to do but the part's
        ``epilogue``; see ``fusec.capture.fast_path.direct``.

        Args:
            part: The part.
            converts: Whether it calls operators where autocast is on, which would convert their
                inputs once more.
            records: Whether it calls operators where autograd is on, which would record them.
            inference: The results that are made in inference mode.
        """
        self.converts, self.records, self.inference = converts, records, inference
        self.plain = part, part.epilogue
        part.captured = self.run_captured
        native, marks = part.native(), part.epilogue.marks
        if marks and native is None:
            part.forget_epilogue()
            return  # only a native program puts them on
        if native is not None and marks:
            native.call.marks = marks
        run = part.direct_entry()
        if converts or records or inference:
            self.compiled = in_modes(run, converts, records, inference)
            return  # nobody may call the native program itself
        self._direct = part
        self.compiled = run

    def record(self, call: Callable[..., Any] | None) -> None:
        """From now on call the graph, which records for autograd, by ``call``, unless it is None.

        Whoever calls this has made sure that it does what AOTAutograd's wrappers would do; see
        ``fusec.capture.fast_path.recorded``.
        """
        if call is not None:
            self.compiled = self._recorded = call

    def entry(self) -> Callable[..., Any]:
        """Return the shortest way to call the graph: past this object where there is one."""
        if self._recorded is not None and not self.keep:
            return self._recorded
        native = self._direct.native() if self._direct is not None else None
        if native is None or self._direct is None:
            return self
        if self._direct.updates_inputs and not isinstance(native, NativeProgram):
            return self  # which runs the captured graph where inputs share memory
        self.compiled = native.call
        return native.call  # type: ignore[no-any-return]

    def is_entry(self, function: object) -> bool:
        """Whether ``function`` is what ``entry`` returned."""
        native = self._direct.native() if self._direct is not None else None
        if function is None:
            return False
        if function is self or function is self._recorded:
            return True
        return native is not None and function is native.call

    def first_of(self, part: CompiledPart) -> CompiledPart:
        """Return what was compiled first where a part runs now: what callers hold."""
        return self._firsts.get(part.kind, part)

    def exchange(self, new: CompiledPart, stages: Sequence[Stage] | None = None) -> None:
        """Run another part in place of the one of its kind, from the next call on.

        Args:
            new: Built; the one that was compiled first is put back by giving it.
            stages: What its compilation yielded, shown instead; None for those it had.

        Raises:
            FusecError: The part in use cannot be replaced.
        """
        with self.lock:
            position = next(n for n, part in enumerate(self.parts) if part.kind == new.kind)
            first = self._firsts.setdefault(new.kind, self.parts[position])
            if stages is not None:
                self._stages_of[id(new)] = tuple(stages)
            first.put_in_place(None if new is first else new)
            self.parts[position] = new

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What each stage of the compilation yielded, with its time; of the parts in use."""
        replaced = [self._stages_of.get(id(part)) for part in self.parts]
        if not any(replaced):
            return self._stages
        found, number = [], -1
        for stage in self._stages:
            number += stage.name == "lower"  # each part begins with it
            own = replaced[number] if 0 <= number < len(replaced) else None
            other = next((s for s in own or () if s.name == stage.name), stage)
            found.append(other)
        return tuple(found)

    @stages.setter
    def stages(self, stages: tuple[Stage, ...]) -> None:
        self._stages = stages

    @property
    def output_count(self) -> int:
        """How many values a call returns."""
        (output,) = (node for node in self.eager.graph.nodes if node.op == "output")
        values = output.args[0]
        return len(values) if isinstance(values, (list, tuple)) else 1

    @property
    def last_inputs(self) -> tuple[Any, ...] | None:
        """Inputs of the latest call, where they are kept."""
        if self._direct is not None:
            part = self._direct.current
            native = part.native()
            if native is not None and native.call.last is not None:
                return native.call.last  # type: ignore[no-any-return]
            if part is not self._direct and part.last_inputs is not None:
                return part.last_inputs
        return self._last_inputs

    def await_call(self) -> None:
        """From now on tell by ``called`` whether a call has come."""
        if self._last_inputs is not None:
            self._last_inputs = EarlierInputs(self._last_inputs)
        for part in self.parts:
            part.await_call(EarlierInputs)

    @property
    def called(self) -> bool:
        """Whether a call whose inputs are kept has come, since somebody awaited one."""
        return self.last_inputs is not None and not isinstance(self.last_inputs, EarlierInputs)

    def keep_inputs(self, keep: bool) -> None:
        """Keep the inputs of calls from now on, or leave what is kept as it is."""
        self.keep = keep
        for part in self.parts:
            part.keep_inputs(keep)

    def forget_inputs(self) -> None:
        """Let go of the inputs that were kept."""
        self._last_inputs = None
        for part in self.parts:
            part.forget_inputs()

    def has_inputs(self, kernel: Kernel) -> bool:
        """Whether the inputs of a call of the kernel's part are kept."""
        part = self.part_of(kernel)
        return part is not None and part.last_inputs is not None

    @contextlib.contextmanager
    def keeping_nothing(self) -> Iterator[None]:
        """Let calls leave the kept inputs as they are."""
        keep, self.keep = self.keep, False
        parts = [(part, part.keep) for part in self.parts]
        for part, _ in parts:
            part.keep_inputs(False)
        try:
            yield
        finally:
            self.keep = keep
            for part, kept in parts:
                part.keep_inputs(kept)

    def inputs(self) -> tuple[Any, ...]:
        """Return ``last_inputs``.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        if self.last_inputs is None:
            raise NoInputs(self.name)
        return self.last_inputs

    @property
    def ran_backward(self) -> bool:
        """Whether backward has run with its inputs kept; what is timed has it then, too."""
        ran = [part for part in self.parts if part.last_inputs is not None]
        return self._gradients and any(part.is_backward for part in ran)

    @property
    def records_gradients(self) -> bool:
        """Whether the latest call recorded for autograd."""
        return self._gradients

    def hold(self) -> None:
        """Remember what AOTAutograd returned, before anything is put round it."""
        self._held = Held(self.eager, self.compiled)

    @property
    def held(self) -> Held:
        """The graph in a form whose calls change nothing that it holds, to be timed and checked."""
        if self._held is None:
            self.hold()
        assert self._held is not None
        return self._held

    def copies(self) -> list[Any]:
        """Return copies of what ``held`` takes: of what it holds, and the latest call's inputs.

        They are laid out as these are.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        given = self.inputs()
        return [
            clone_strided(t).requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
            for t in (*self.held.tensors, *given)
        ]

    def call_copies(self, *inputs: Any) -> Any:
        """Call what was compiled with what ``copies`` returned; see ``held``."""
        run = self.held.compiled if self.held.tensors else self.compiled
        assert run is not None
        return run(*inputs)

    def replay(self) -> Callable[[], object]:
        """Return a call that runs the graph on copies of its latest inputs, as compiled.

        What it updates in place, it updates further; for timing it against something else.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        inputs = self.copies()

        def run() -> object:
            with torch.set_grad_enabled(self._gradients), self.keeping_nothing():
                return self.call_copies(*inputs)

        return run

    def part_of(self, kernel: Kernel) -> CompiledPart | None:
        """Return the part that a kernel is in use in."""
        return next((p for p in self.parts if p.kernels.get(kernel.name) is kernel), None)

    def kernel_call(self, kernel: Kernel) -> tuple[CompiledPart, list[torch.Tensor], list[int]]:
        """Return a kernel's part, and its tensors and sizes in the call whose inputs are kept.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        part = self.part_of(kernel)
        if part is None or part.last_inputs is None:
            raise NoInputs(self.name)
        tensors, sizes = part.kernel_inputs(kernel.name, part.last_inputs)
        return part, tensors, sizes


__all__ = ["GraphCalls", "NoInputs"]
