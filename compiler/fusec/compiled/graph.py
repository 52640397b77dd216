"""A compiled graph: what TorchDynamo captured in one piece, with all that can be asked of it."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.autograd import forward_ad

from fusec.call.autocast import without_autocast
from fusec.call.eager_graph import run_eagerly
from fusec.call.launch import CppRunnable
from fusec.call.runnable import build_runnable
from fusec.compiled.part import CompiledPart
from fusec.devices import is_gpu
from fusec.errors import FusecError
from fusec.ir.interpret import run_body, size_values
from fusec.kernel import Kernel, Runnable, simulation
from fusec.memory.readable import has_tangent
from fusec.memory.strided import clone_strided
from fusec.random import SameNumbers
from fusec.report import (
    ExternCall,
    FusionDecision,
    PassRun,
    SavedTensor,
    Stage,
    Timing,
    TuningRun,
    Verdict,
    counted,
)
from fusec.target_api.base import LibraryTarget, PythonTarget
from fusec.target_api.registry import find_target
from fusec.timing.limits import Limit
from fusec.timing.measure import PRECISION, interleave
from fusec.timing.training_step import with_backward
from fusec.verify.inputs import fresh_inputs

if TYPE_CHECKING:
    from fusec.verify.trials import KeptTrials


def _forward(call: Callable[..., object], inputs: Sequence[Any]) -> Callable[[], object]:
    return partial(call, *inputs)


class NoInputs(FusecError):
    """Checking and timing need the inputs of a call, and there are none."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} has not run with its inputs kept",
            "call it once, compiled with keep_inputs=True",
        )


class CompiledGraph:
    """One captured graph and its compiled parts.

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
        self._recorded: Callable[..., Any] | None = None
        self._last_inputs: tuple[Any, ...] | None = None
        self._trials: KeptTrials | None = None  # from the first check of an edit on
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
        found = (note for part in self.parts for note in (*part.notes, *part.graph_notes()))
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
        if self.keep:
            self._last_inputs = inputs
            self._gradients = torch.is_grad_enabled()
        assert self.compiled is not None
        if forward_ad._current_level >= 0 and any(map(has_tangent, inputs)):
            return self.run_captured(*inputs)  # kernels would leave the tangents behind
        return self.compiled(*inputs)

    def run_captured(self, *inputs: Any) -> Any:
        """Run the captured graph by torch's own functions, as it was written."""
        return run_eagerly(self.eager)(*inputs)

    def run_in_eager(self, reason: str) -> None:
        """Run the captured graph by torch's own functions; what raises leaves torch's state alone.

        Args:
            reason: Why, for people.
        """
        self.fallback, self.parts = reason, []
        self.compiled = run_eagerly(self.eager)

    def bypass(self, part: CompiledPart, *, converts: bool = False) -> None:
        """From now on give the inputs straight to the only part, past AOTAutograd's wrappers.

        Whoever calls this has made sure that the wrappers have nothing to do but the part's
        ``epilogue``; see ``fusec.capture.fast_path.direct``.

        Args:
            part: The part.
            converts: Whether it calls operators where autocast is on, which would convert their
                inputs once more.
        """
        native, marks = part.native(), part.epilogue.marks
        if marks and native is None:
            part.forget_epilogue()
            return  # only a native program puts them on
        if native is not None and marks:
            native.call.marks = marks
        run = part.direct_entry()
        if converts:
            self.compiled = without_autocast(run)
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
        if native is None:
            return self
        self.compiled = native.call
        return native.call  # type: ignore[no-any-return]

    def is_entry(self, function: object) -> bool:
        """Whether ``function`` is what ``entry`` returned."""
        native = self._direct.native() if self._direct is not None else None
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
        part = self._part_of(kernel)
        return part is not None and part.last_inputs is not None

    @contextlib.contextmanager
    def _keeping_nothing(self) -> Iterator[None]:
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

    def _inputs(self) -> tuple[Any, ...]:
        if self.last_inputs is None:
            raise NoInputs(self.name)
        return self.last_inputs

    def _run_fused(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        assert self.compiled is not None
        with self._keeping_nothing():
            return _tensors(self.compiled(*inputs))

    def _run_eager(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        return _tensors(self.eager(*inputs))

    def _run_reference(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run eager with the random numbers that the kernels compute."""
        if not any(part.draws_seed for part in self.parts):
            return self._run_eager(inputs)
        with SameNumbers():
            return self._run_eager(inputs)

    def _run_float64(self) -> Callable[[Sequence[Any]], list[torch.Tensor]] | None:
        from torch._dynamo.debug_utils import cast_to_fp64

        if any(part.draws_seed for part in self.parts):
            return None  # random numbers in float64 are other numbers
        try:
            module, _ = cast_to_fp64(copy.deepcopy(self.eager), [])
        except (RuntimeError, TypeError, AttributeError):
            return None

        def run(inputs: Sequence[Any]) -> list[torch.Tensor]:
            raised = [
                t.to(torch.float64) if isinstance(t, torch.Tensor) and t.is_floating_point() else t
                for t in inputs
            ]
            # Not by a call: where it fails, a graph module prints what failed.
            return _tensors(module.forward(*raised))

        return run

    # -- measuring and checking -------------------------------------------------------------

    def measure(self, seconds: float = 0.3) -> tuple[Timing, Timing]:
        """Return (eager, fused) timings on the inputs of the last call, interleaved.

        Inputs that the graph updates in place are updated further: only the cost counts here, and
        it is done on copies.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        timings = self.measure_beside({}, seconds)
        return timings["eager"], timings["fused"]

    def measure_beside(
        self,
        others: Mapping[str, Callable[..., object]],
        seconds: float = 0.3,
        stop: Callable[[], bool] | None = None,
    ) -> dict[str, Timing]:
        """Return the timings of ``eager``, ``fused`` and others from one interleaved run.

        Where backward has run since the graph was compiled, a call is forward and backward.

        Args:
            others: By name: what computes the same from the same inputs.
            seconds: For all of them together.
            stop: Asked between rounds; what was measured so far is returned.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        with self.lock, torch.set_grad_enabled(self._gradients):
            inputs = self.copies()
            device = next((t.device.type for t in inputs if isinstance(t, torch.Tensor)), "cpu")
            with self._keeping_nothing():
                assert self.compiled is not None
                calls: dict[str, Callable[..., object]] = {"eager": self.eager}
                calls |= {"fused": self.compiled, **others}
                whole = with_backward if self.ran_backward else _forward
                found = interleave(
                    {name: whole(call, inputs) for name, call in calls.items()},
                    seconds=seconds,
                    device=device,
                    flush_l2=is_gpu(device),
                    precision=PRECISION,
                    stop=stop,
                )
        if not self.ran_backward:
            return found
        return {
            name: replace(timing, method=f"forward and backward, {timing.method}")
            for name, timing in found.items()
        }

    @property
    def ran_backward(self) -> bool:
        """Whether backward has run with its inputs kept; what is timed has it then, too."""
        kinds = {part.kind for part in self.parts if part.last_inputs is not None}
        return self._gradients and "backward" in kinds

    @property
    def records_gradients(self) -> bool:
        """Whether the latest call recorded for autograd."""
        return self._gradients

    def copies(self) -> list[Any]:
        """Return copies of the inputs of the latest call, laid out as they are.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        return [
            clone_strided(t).requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
            for t in self._inputs()
        ]

    def replay(self) -> Callable[[], object]:
        """Return a call that runs the graph on copies of its latest inputs, as compiled.

        What it updates in place, it updates further; for timing it against something else.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        inputs = self.copies()

        def run() -> object:
            assert self.compiled is not None
            with torch.set_grad_enabled(self._gradients), self._keeping_nothing():
                return self.compiled(*inputs)

        return run

    def limit(self) -> Limit | None:
        """Return how fast the graph could be; None where a part of it runs in eager.

        Its inputs and outputs are moved once, as in a plain copy; its products of matrices run
        as the machine's best ones do. Backward counts where it has run, as in ``measure``.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        from torch.utils.flop_counter import FlopCounterMode

        from fusec.timing.eager_traffic import EagerTraffic
        from fusec.timing.limits import least_bytes, limit, moved_bytes

        forward = [part for part in self.parts if part.kind != "backward"]
        if len(forward) != 1 or forward[0].last_inputs is None:
            return None
        backward = [part for part in self.parts if part.kind == "backward" and part.last_inputs]
        timed = forward + (backward if self.ran_backward else [])
        whole = with_backward if self.ran_backward else _forward
        with self.lock, torch.set_grad_enabled(self.ran_backward):
            inputs = self.copies()
            device = next((t.device.type for t in inputs if isinstance(t, torch.Tensor)), "cpu")
            counter = FlopCounterMode(display=False)
            traffic = EagerTraffic()
            with counter, traffic:
                whole(self.eager, inputs)()
        least = moved = 0
        for part in timed:
            assert part.last_inputs is not None
            program = part.state.scheduled
            sizes = size_values(program, part.last_inputs)
            least += least_bytes(program, sizes)
            moved += moved_bytes(program, sizes, _traffic(part))
        found = limit(least, counter.get_total_flops(), device)
        return replace(found, eager=traffic.bytes, moved=moved)

    def kernel_timings(self, seconds: float = 0.2) -> dict[str, Timing]:
        """Return the time of each kernel alone, on its own inputs of the last call."""
        from fusec.timing.step_times import step_times

        return {step.name: step.timing for step in step_times(self, seconds, externs=False)}

    def verify(self, *, timed: bool = False) -> Verdict:
        """Compare all outputs with eager and float64, on the real inputs and on fresh ones.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        from fusec.verify.check import check_graph

        with self.lock:
            real = self.copies()
            verdict = self._check_graph(check_graph, real, timed)
            if not verdict.ok:
                return verdict
            fresh = _with_tensors(real, fresh_inputs(_tensors(real)))
            second = self._check_graph(check_graph, fresh, False)
            if not second.ok:
                return replace(second, reason=f"on fresh random inputs: {second.reason}")
            return replace(verdict, seconds=verdict.seconds + second.seconds)

    def _check_graph(
        self,
        check_graph: Callable[..., Verdict],
        inputs: list[Any],
        timed: bool,
        calls: int | None = None,
    ) -> Verdict:
        tensors = _tensors(inputs)
        float64 = self._run_float64()
        names = self._output_names()

        def placed(run: Callable[[Sequence[Any]], list[torch.Tensor]]) -> Callable[..., Any]:
            return lambda given: run(_with_tensors(inputs, given))

        with torch.set_grad_enabled(self._gradients):
            return check_graph(
                placed(self._run_fused),
                placed(self._run_eager),
                placed(float64) if float64 is not None else None,
                tensors,
                names=names,
                timed=timed and not self._simulated(),
                reference=placed(self._run_reference),
                calls=calls,
            )

    def _output_names(self) -> list[str] | None:
        """Return what the user calls each output, where every output is a tensor of the graph."""
        (output,) = (node for node in self.eager.graph.nodes if node.op == "output")
        values = output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args
        nodes = [value for value in values if isinstance(value, fx.Node)]
        if len(nodes) != len(values) or len({node.name for node in nodes}) != len(nodes):
            return None
        if not all(isinstance(node.meta.get("example_value"), torch.Tensor) for node in nodes):
            return None
        return [node.name for node in nodes]

    def _simulated(self) -> bool:
        """Whether something stands in for the device of a kernel: times mean nothing then."""
        return any(simulation(kernel.runnable()) for kernel in self.kernels)

    def artifact(self, kernel: Kernel, kind: str) -> str:
        """Return a lower form of a kernel's text; see ``Kernel.artifact``."""
        from fusec.build.artifacts import artifact

        part = self._part_of(kernel)
        return artifact(kernel, kind, part.state.options.gpu if part is not None else "sm_90")

    def export(self, kernel: Kernel, path: Path, *, form: str) -> Path:
        """Write a kernel's text in use as a file that stands alone; see ``Kernel.export``."""
        from fusec.export.forms import export_kernel

        return export_kernel(kernel, path, form=form)

    # -- KernelHost -------------------------------------------------------------------------

    def build(self, kernel: Kernel, text: str) -> Runnable:
        """Build ``text`` in place of a kernel's source and launch it from now on."""
        runnable = _watched(kernel, text)
        part = self._part_of(kernel)
        if part is not None:
            part.link(kernel.name, runnable)
        return runnable

    def _part_of(self, kernel: Kernel) -> CompiledPart | None:
        return next((p for p in self.parts if p.kernels.get(kernel.name) is kernel), None)

    def check(
        self, kernel: Kernel, text: str, *, timed: bool = True, trust: bool = False
    ) -> Verdict:
        """Check ``text`` for a kernel: guarded worker first, then within the whole graph."""
        from fusec.verify.check import Case, check_graph, check_kernel
        from fusec.verify.trials import KeptTrials

        with self.lock:
            self._trials = self._trials or KeptTrials()
            part = self._part_of(kernel)
            if part is None or part.last_inputs is None:
                raise NoInputs(self.name)
            tensors, sizes = part.kernel_inputs(kernel.name, part.last_inputs)
            verdict = check_kernel(
                kernel,
                text,
                cases=[Case(tuple(tensors), tuple(sizes), "on the real inputs")],
                build=lambda t: _library(kernel, t),
                interpret=lambda t, s, p: interpret_kernel(part, kernel, t, s, p),
                generated=build_runnable(kernel, kernel.generated.text),
                timed=timed,
                kept=self._trials,
                trust=trust,
            )
            if not verdict.ok or part.kind == "backward":
                return verdict
            before = kernel.runnable()
            part.link(kernel.name, _watched(kernel, text))
            try:
                whole = self._check_graph(check_graph, self.copies(), timed, verdict.calls)
            finally:
                part.link(kernel.name, before)
            seconds = verdict.seconds + whole.seconds
            if not whole.ok:
                return replace(whole, timing=verdict.timing, seconds=seconds)
            return replace(
                verdict,
                outputs=whole.outputs,
                graph=whole.graph or whole.timing,
                eager=whole.eager,
                seconds=seconds,
            )

    def tune(
        self,
        kernel: Kernel,
        *,
        budget: float,
        progress: Callable[[TuningRun], None] | None,
        stop: threading.Event | None,
    ) -> TuningRun:
        """Search a kernel's plans and tunables on the inputs of the last call; see ``tune``."""
        from fusec.tune.run import tune_in_graph

        with self.lock:
            part = self._part_of(kernel)
            if part is None or part.last_inputs is None:
                raise NoInputs(self.name)
            tensors, sizes = part.kernel_inputs(kernel.name, part.last_inputs)
            inputs = self.copies()
            return tune_in_graph(
                self,
                kernel,
                tensors,
                sizes,
                budget=budget,
                progress=progress,
                stop=stop,
                eager=(lambda: self.eager(*inputs)) if part.kind != "backward" else None,
                eager_is_whole=len(self.kernels) != 1 or bool(self.externs),
            )


def _watched(kernel: Kernel, text: str) -> Runnable:
    """Build a text; where a user has written it, a process that ends in a call leaves a note."""
    from fusec.verify.probation import journal

    runnable = build_runnable(kernel, text)
    if isinstance(runnable, CppRunnable) and kernel.is_edit(text):
        found = journal(kernel.name, text)
        if found is not None:
            runnable.watch(found.address)
    return runnable


def _traffic(part: CompiledPart) -> dict[str, int]:
    """Return the bytes that each kernel of a part moves, where they are known."""
    sources = {name: kernel.generated for name, kernel in part.kernels.items()}
    return {
        name: source.read_bytes + source.written_bytes
        for name, source in sources.items()
        if min(source.read_bytes, source.written_bytes) >= 0
    }


def _library(kernel: Kernel, text: str) -> Path | None:
    target = find_target(kernel.target)
    if isinstance(target, LibraryTarget):
        generated = kernel.generated
        return target.compile(text, flags=generated.flags, edited=text != generated.text)
    assert isinstance(target, PythonTarget)
    target.check(text, kernel.signature, kernel.generated.entry)
    return None


def interpret_kernel(
    part: CompiledPart,
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    sizes: Sequence[int],
    precision: torch.dtype | None,
) -> list[torch.Tensor]:
    """Run a kernel's loop-level IR by eager operators; return what it writes."""
    from fusec.codegen.common.signatures import argument_buffers, body_sizes

    program = part.state.scheduled
    names = argument_buffers(kernel.body)
    symbols = body_sizes(kernel.body, program.buffers)
    given: dict[str, torch.Tensor] = {}
    for name, tensor in zip(names, tensors, strict=True):
        raised = precision if precision and tensor.is_floating_point() else tensor.dtype
        copy_ = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=raised, device=tensor.device
        )
        given[name] = copy_.copy_(tensor)
    run_body(kernel.body, given, dict(zip(symbols, sizes, strict=True)), precision)
    return [
        given[name]
        for name, argument in zip(names, kernel.signature.arguments, strict=True)
        if argument.role != "in"
    ]


def _tensors(values: object) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [v for v in values if isinstance(v, torch.Tensor)]
    return []


def _with_tensors(pattern: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    given = iter(tensors)
    return [next(given) if isinstance(v, torch.Tensor) else v for v in pattern]
