"""A compiled part: one ATen-level graph (forward or backward) as a callable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from fusec.build.queue import BuildQueue, BuildRequest
from fusec.call import native
from fusec.call.epilogue import Epilogue
from fusec.call.huge_pages import POOLED_BYTES, empty_cpu, empty_large, pooled
from fusec.call.input_check import InputCheck, SharedMemory, UnexpectedInput
from fusec.call.launch import CppRunnable, empty_cuda, multiply_into, raise_check
from fusec.call.native_program import NativeProgram, native_group, native_program, python_group
from fusec.call.results import expect, expecting
from fusec.codegen.host_program import Group, HostProgram, emit_host
from fusec.codegen.host_values import DTYPES, buffer_bytes, called_as
from fusec.device.plan import DeviceProgram, device_of, device_program, wanted
from fusec.devices import CPU
from fusec.errors import FusecError
from fusec.ir.program import Compute, Extern, ExternKind
from fusec.kernel import Kernel, KernelHost
from fusec.kernel_source import Runnable, simulation
from fusec.memory.poison import poisoned
from fusec.memory.readable import Unreadable, require_plain
from fusec.memory.strided import clone_strided
from fusec.pipeline import Compilation
from fusec.report import ExternCall
from fusec.target_api.base import LibraryTarget
from fusec.target_api.registry import find_target

_MOST_NOTES = 8
_KNOWN = ("aten", "prims", "mkldnn")  # what is random there is tagged so


def is_backward(kind: str) -> bool:
    """Whether a part of this kind computes gradients."""
    return kind.startswith("backward")


def _draws(step: Extern, on_cpu: bool) -> bool:
    """Whether a step may draw from torch's generators, and not only a seed on the CPU."""
    if step.kind is ExternKind.RANDOM_SEED:
        return not on_cpu
    # Nobody knows what an operator of the user's does.
    known = step.is_plumbing or getattr(step.target, "namespace", "aten") in _KNOWN
    return step.is_random or not known


class CompiledPart:
    """The kernels and the host program of one ATen-level graph.

    Attributes:
        kind: ``forward``, ``backward`` or ``inference``; ``backward 2`` is another form of a
            backward part, for calls in which some of the gradients that it takes are missing.
        state: What the pipeline's stages yielded.
        kernels: By name, in order of launch.
        externs: The operators that run as ATen's own kernels, with reasons.
        notes: What the user should know of how it runs.
        draws_seed: Whether its kernels compute random numbers.
        draws: Whether it draws from torch's generators, and not only a seed on the CPU.
        calls_operators: Whether ATen's operators run in it, and not only kernels.
        announce: Called once, when the part runs for the first time, if there is one.
        epilogue: What ``direct_entry`` does with the outputs; ``entry`` leaves them as they are.
            To be set before ``build``.
    """

    def __init__(self, kind: str, state: Compilation, host: KernelHost, keep: bool) -> None:
        self.kind = kind
        self.state = state
        self.keep = keep
        self._last_inputs: tuple[object, ...] | None = None
        self.announce: Callable[[], None] | None = None
        self.epilogue = Epilogue()
        self._instead: CompiledPart | None = None
        self._native: NativeProgram | DeviceProgram | None = None
        self._no_graphs = ""  # why there are no CUDA graphs, where they are asked for
        self._groups: list[NativeProgram] = []
        self._linked: dict[str, Runnable] = {}  # what is launched as each library's kernel
        self._native_lock = threading.Lock()
        self._native_known = False  # whether there is nothing more to hope for
        self.notes: list[str] = []
        self.by_operators: list[str] = []  # why calls ran by ATen's operators, of which some did
        program = state.scheduled
        # Of what backward reads nothing is the user's to share.
        self._check = InputCheck(program, state.updated, alone=not is_backward(kind))
        # The captured graph in eager, where this part is called in its place.
        self.captured: Callable[..., Any] | None = None
        bodies = {s.name: s.body for s in program.steps if isinstance(s, Compute)}
        self.kernels = {
            name: Kernel(source, bodies[name], host) for name, source in state.kernels.items()
        }
        self.externs = tuple(
            ExternCall(str(s.target), s.reason, s.where)
            for s in program.steps
            if isinstance(s, Extern) and not s.is_plumbing
        )
        self.draws_seed = any(
            isinstance(s, Extern) and s.kind is ExternKind.RANDOM_SEED for s in program.steps
        )
        on_cpu = all(buffer.device.type == CPU for buffer in program.buffers.values())
        self.draws = any(_draws(s, on_cpu) for s in program.steps if isinstance(s, Extern))
        self.calls_operators = any(isinstance(step, Extern) for step in program.steps)
        self._namespace: dict[str, Any] = {}
        self._run: Callable[..., list[Any]] | None = None
        self._entry: Callable[..., list[Any]] | None = None

    @property
    def is_backward(self) -> bool:
        """Whether it computes gradients."""
        return is_backward(self.kind)

    # -- building ---------------------------------------------------------------------------

    def build(
        self, queue: BuildQueue, *, pin: Callable[[Iterable[Kernel]], object] | None = None
    ) -> None:
        """Have all kernels built and link the host program to them.

        Args:
            queue: Where those of the C++ kernels that are not equal to others may be under way.
            pin: Gives kernels the settings that they start from, where the options ask for those
                of earlier tuning; ``tune.asked.pin``.

        Raises:
            CompileError: A kernel does not compile.
            CompilerNotFound: There is no C++ compiler.
        """
        leaders = {name: self.kernels[first] for name, first in self.state.leaders.items()}
        found = [(kernel.generated, find_target(kernel.target)) for kernel in leaders.values()]
        queue.finish(
            BuildRequest(source.text, target, source.flags)
            for source, target in found
            if isinstance(target, LibraryTarget)
        )
        if self.state.options.tuned and pin is not None:
            pin(self.kernels.values())
        # loading finds them in the store
        for name, leader in leaders.items():
            self.kernels[name].share(leader)
        assert self.state.host is not None
        self._namespace = {
            **DTYPES,
            **self.state.host.constants,
            "empty_cpu": poisoned(empty_cpu),
            "empty_large": poisoned(empty_large),
            "empty_cuda": poisoned(empty_cuda),
            "empty": poisoned(torch.empty_strided),
            "expect": expect,
            "expect_inputs": self._expect_inputs,
            "multiply_into": multiply_into,
            "threads": torch.get_num_threads,
            "failed": self._failed,
        }
        for name, kernel in self.kernels.items():
            self.link(name, kernel.runnable())
        for name, group in self.state.host.groups.items():
            self._namespace[name] = self._group(name, group)
        simulated = (simulation(kernel.runnable()) for kernel in self.kernels.values())
        self.notes += dict.fromkeys(note for note in simulated if note)
        code = compile(self.state.host.text, f"<host program of {self._label()}>", "exec")
        exec(code, self._namespace)
        self._run = self._namespace["run"]
        if self.has_large_tensors():
            self._run = pooled(self._run)
        self._run = self._or_by_operators(self._run)
        self.native()

    def _expect_inputs(self, inputs: list[object]) -> None:
        """Check the inputs; from the next call on natively, where there is a way."""
        found = self._check.native()
        if found is not None:
            self._namespace |= {"expect_inputs": found, "expect": expecting()}
        self._check(inputs)

    def has_large_tensors(self) -> bool:
        """Whether the program, or an operator that it calls, may allocate such on the CPU."""
        sizes = [
            buffer_bytes(buffer)
            for buffer in self.state.scheduled.buffers.values()
            if buffer.device.type == "cpu"
        ]
        return any(size is None or size >= POOLED_BYTES for size in sizes)

    def _group(self, name: str, group: Group) -> Callable[..., object]:
        """Return what launches a group of kernels: natively, as soon as there is a way."""
        program = self.state.scheduled
        by_python = python_group(group, program, self._namespace, self._failed)

        def launch(*given: Any) -> object:
            if native.types() is None:
                return by_python(*given)
            with self._native_lock:
                found = native_group(group, program, self._linked, self._failed, self._work())
                if found is not None:
                    self._groups.append(found)
                self._namespace[name] = found.call if found is not None else by_python
            return self._namespace[name](*given)

        return launch

    def native(self) -> NativeProgram | DeviceProgram | None:
        """Return the host program as one native call, if it can be one and the means are there."""
        if not self._native_known and native.types() is not None:
            with self._native_lock:  # one program: an edited kernel takes its place in it
                if not self._native_known:
                    found: NativeProgram | DeviceProgram | None = native_program(
                        self.state.scheduled,
                        self._linked,
                        self._failed,
                        self._work(),
                        frees_inputs=self.is_backward,
                        epilogue=self.epilogue,
                        check=self._check.native(),
                    )
                    if found is None and not self.epilogue.changes_outputs:
                        found = self._on_device()
                    if found is not None:
                        found.call.keep = self.keep
                    if isinstance(found, NativeProgram):
                        found.call.otherwise = (self._surprises, self._instead_of_kernels)
                    self._native, self._native_known = found, True
                    if self._instead is not None:
                        self._redirect()
        return self._native

    def _on_device(self) -> DeviceProgram | None:
        assert self._run is not None
        graphs = self.state.options.cuda_graphs
        if not wanted():
            return None
        found = device_program(
            self.state.scheduled,
            self._run,
            self.trace,
            lambda name: self.kernels[name].runnable(),
            graphs=graphs,
            saved=self._saved(),
            check=self._check.native(),
        )
        if isinstance(found, str):
            self._no_graphs = found if graphs else ""
            return None
        return found

    def _saved(self) -> tuple[int, ...]:
        """Return the positions of the program's outputs that only backward sees."""
        if self.state.options.keep_inputs:
            return ()  # those of backward's latest call stay with it
        (output,) = self.state.module.graph.find_nodes(op="output")
        known = len(output.args[0]) == len(self.state.scheduled.outputs)
        return self.state.saved if known else ()

    def graph_notes(self) -> tuple[str, ...]:
        """Return what became of CUDA graphs, where they are asked for: a line each."""
        if not self.state.options.cuda_graphs:
            return ()
        if isinstance(self._native, DeviceProgram):
            return self._native.notes
        device = device_of(self.state.scheduled)
        reason = device if isinstance(device, str) else self._no_graphs or native.problem()
        reason = reason or "the native part of calls is being built"
        return (f"no CUDA graph: {reason}",)

    def _work(self) -> dict[str, int]:
        leaders = self.state.leaders  # equal kernels do equal work
        return {name: self.kernels[leaders[name]].generated.operations for name in self.kernels}

    def _label(self) -> str:
        return next(iter(self.kernels), self.kind)

    def link(self, name: str, runnable: Runnable) -> None:
        """Make the host program launch ``runnable`` as kernel ``name``."""
        if isinstance(runnable, CppRunnable) and self.state.takes_pointers(name):
            self._namespace[name] = runnable.function
            with self._native_lock:
                self._linked[name] = runnable
                for program in (self._native, *self._groups):
                    if program is not None:
                        program.link(name, runnable)
            return
        if isinstance(self._native, DeviceProgram):
            self._native.forget()
        if getattr(runnable, "direct", None) is not None:
            self._namespace[name] = runnable.direct  # type: ignore[attr-defined]
        else:
            leader = self.kernels[self.state.leaders[name]]  # takes as many
            count = len(leader.signature.arguments)
            self._namespace[name] = lambda *args: runnable(args[:count], args[count:])

    def _failed(self, name: str, status: int) -> None:
        kernel = self.kernels[name]
        lines = [line for found in kernel.generated.origins.values() for line in found]
        raise_check(name, status, kernel.signature, lines)

    # -- running ----------------------------------------------------------------------------

    def entry(self) -> Callable[..., list[Any]]:
        """Return the function that AOTAutograd calls with its inputs in a list, to be emptied.

        Its operators run without autocast, whatever the state that it is called in.
        """
        assert self._run is not None
        calls_operators, converts = self.calls_operators, torch._C._is_any_autocast_enabled

        def call(inputs: list[Any]) -> list[Any]:
            if calls_operators and converts():
                with torch._C._DisableAutocast():
                    return call(inputs)
            if self.announce is not None:
                announce, self.announce = self.announce, None
                announce()
            part = self.current
            program = part.native()
            if program is not None and not part.epilogue.changes_outputs:
                return program.call.boxed(inputs)  # type: ignore[no-any-return]
            # It finds its kernels in its globals at each call, where edits replace them.
            run: Callable[[list[Any]], list[Any]] = part._run  # type: ignore[assignment]
            return part._keeping(inputs, run) if part.keep else run(inputs)

        call._boxed_call = True  # type: ignore[attr-defined]
        self._entry = call
        return call

    def _keeping(self, inputs: list[Any], run: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """Keep a call's inputs; where it raises, what was kept before stays."""
        before, self._last_inputs = self._last_inputs, tuple(inputs)
        try:
            return run(inputs)
        except BaseException:
            self._last_inputs = before
            raise

    def is_entry(self, function: object) -> bool:
        """Whether ``function`` is what ``entry`` returned last."""
        return function is self._entry

    @property
    def _surprises(self) -> tuple[type[Exception], ...]:
        """What checks raise of inputs that operators know better than kernels.

        No guard has looked at those of a backward part, and between forward and backward anybody
        may put something else in their place: hooks on saved tensors return other strides, another
        dtype. Those of the others were guarded: they are a mistake.
        """
        return (Unreadable, UnexpectedInput) if self.is_backward else (Unreadable,)

    def _or_by_operators(
        self, run: Callable[[list[Any]], list[Any]]
    ) -> Callable[[list[Any]], list[Any]]:
        def call(inputs: list[Any]) -> list[Any]:
            begun = False
            try:
                if not inputs:  # no input tells that operators go to somebody else first
                    require_plain(torch.empty(0), "a new tensor")
                begun = True
                return run(inputs)
            except SharedMemory:
                raise  # the part's own operators take its inputs for apart, too
            except self._surprises as problem:
                if begun and not inputs:
                    raise
                self._note(problem)
            return self._by_operators(inputs)

        return call

    def _note(self, problem: Exception) -> None:
        """Say once why a call ran by operators, which may take many times as long."""
        words = problem.message if isinstance(problem, FusecError) else problem
        note = f"a call of the {self.kind} part ran by ATen's operators: {words}"
        if note not in self.by_operators and len(self.by_operators) < _MOST_NOTES:
            self.by_operators.append(note)

    def changes_some_of(self, positions: Collection[int], inputs: int) -> bool:
        """Whether one of some inputs holds something else afterwards.

        Args:
            positions: Of inputs of the captured graph.
            inputs: How many that has.  AOTAutograd makes one input of several that share memory;
                then any change counts.
        """
        program = self.state.scheduled
        changed = {name for step in program.steps for name in step.writes()}
        changed = {*self.state.updated, *changed} & {*program.inputs}
        if len(program.inputs) == inputs:
            changed = {name for i, name in enumerate(program.inputs) if i in positions} & changed
        return bool(positions) and bool(changed) and not self.is_backward

    @property
    def updates_inputs(self) -> bool:
        """Whether it changes an input that might share memory with another one."""
        return bool(self._check.updated)

    def _instead_of_kernels(self, *inputs: Any) -> list[Any]:
        if self.updates_inputs and self._check.shares_memory(inputs):
            if self.captured is not None:
                return list(self.captured(*inputs))
            self._check.look_at(inputs)
        try:
            self._check.look_at(inputs)
        except self._surprises as problem:
            self._note(problem)
        return self.epilogue.finish(inputs, self._by_operators(list(inputs)))

    def _by_operators(self, inputs: list[Any]) -> list[Any]:
        """Run the graph by ATen's operators: on inputs that are more than their memory."""
        given = [
            v.resolve_conj().resolve_neg() if isinstance(v, torch.Tensor) else v for v in inputs
        ]
        inputs.clear()
        self.state.module.recompile()  # passes have changed its graph
        with torch._C._DisableAutocast(), torch.no_grad():
            return list(self.state.module(*given))

    def direct_entry(self) -> Callable[..., list[Any]]:
        """Return the function that TorchDynamo calls with its inputs, past AOTAutograd."""
        assert self._run is not None

        def call(*inputs: Any) -> list[Any]:
            # What stands in for this part is called by its native program, if it has one: that
            # puts marks on the outputs.
            part = self if self._native is not None else self.current
            program = part.native()
            if program is not None:
                return program.call(*inputs)  # type: ignore[no-any-return]
            run: Callable[[list[Any]], list[Any]] = part._run  # type: ignore[assignment]
            given = list(inputs)
            made = part._keeping(given, run) if part.keep else run(given)
            return part.epilogue.finish(inputs, made)

        return call

    def forget_epilogue(self) -> None:
        """Leave the outputs as they are: AOTAutograd's wrappers see to them."""
        if self.epilogue.changes_outputs:
            self._native, self._native_known = None, False
        self.epilogue = Epilogue()

    def plain_entry(self) -> Callable[[list[Any]], list[Any]]:
        """Return ``entry`` without keeping inputs: what measures or tries must not be remembered.

        It takes its inputs in a list and empties it.
        """
        call = self.entry()

        def run(inputs: list[Any]) -> list[Any]:
            part = self.current
            keep = part.keep
            part.keep_inputs(False)
            try:
                return call(inputs)
            finally:
                part.keep_inputs(keep)

        return run

    def keep_inputs(self, keep: bool) -> None:
        """Keep the inputs of calls from now on, or leave what is kept as it is."""
        self.keep = keep
        if self._native is not None:
            self._native.call.keep = keep

    def forget_inputs(self) -> None:
        """Let go of the inputs that were kept."""
        self._last_inputs = None
        if self._native is not None:
            self._native.call.last = None

    def await_call(self, earlier: Callable[[Iterable[Any]], tuple[Any, ...]]) -> None:
        """Mark the kept inputs as those of an earlier call.

        Args:
            earlier: Makes what they are kept as from now on.
        """
        if self._last_inputs is not None:
            self._last_inputs = earlier(self._last_inputs)
        if self._native is not None and self._native.call.last is not None:
            self._native.call.last = earlier(self._native.call.last)

    @property
    def current(self) -> CompiledPart:
        """What runs where this part is called: itself, or what was put in its place."""
        return self._instead if self._instead is not None else self

    def put_in_place(self, other: CompiledPart | None) -> None:
        """From now on run another part wherever this one is called; None to run this one again.

        Args:
            other: The same graph under another schedule, built.
        """
        with self._native_lock:
            before, self._instead = self.current, other
            self._redirect()
        inputs, after = before.last_inputs, self.current
        after._last_inputs = inputs
        if after._native is not None:
            after._native.call.last = inputs

    def _redirect(self) -> None:
        """Let whoever holds the native program arrive where the part is called."""
        other = self._instead
        if isinstance(self._native, NativeProgram):
            self._native.call.instead = other.direct_entry() if other is not None else None
        elif self._native is not None:
            self._native.redirect(other.entry() if other is not None else None)

    @property
    def last_inputs(self) -> tuple[object, ...] | None:
        """Inputs of the latest call, where they are kept."""
        if self._native is not None and self._native.call.last is not None:
            return self._native.call.last  # type: ignore[no-any-return]
        return self._last_inputs

    @cached_property
    def _traced(self) -> HostProgram:
        """The host program, launching through ``launch``."""
        return emit_host(self.state.scheduled, self.state.by_pointers, traced=True)

    def trace(
        self,
        inputs: Sequence[object],
        launch: Callable[[str, list[torch.Tensor], list[int]], None],
        extern: Callable[..., Any] | None = None,
    ) -> list[Any]:
        """Run the host program with ``launch`` in place of every kernel launch.

        Args:
            inputs: Of the part.
            launch: Given a kernel's name, its tensors and its symbolic sizes.
            extern: Called in place of every extern call, in the order of the steps, with what
                would be called and its arguments; returns what that returns.
        """
        host = self._traced
        namespace = {**self._namespace, **host.constants, "launch": launch}
        if extern is not None:
            steps = (s for s in self.state.scheduled.steps if isinstance(s, Extern))
            targets = {id(called_as(step.target)) for step in steps}
            for name, value in host.constants.items():
                if id(value) in targets:
                    namespace[name] = partial(extern, value)
        exec(compile(host.text, "<traced host program>", "exec"), namespace)
        run: Callable[..., list[Any]] = namespace["run"]
        program = self.state.scheduled
        written = {name for step in program.steps for name in step.writes()}
        return run(  # a trace changes nothing: what is updated in place is a copy
            [
                clone_strided(v) if name in written and isinstance(v, torch.Tensor) else v
                for name, v in zip(program.inputs, inputs, strict=True)
            ]
        )

    def kernel_inputs(
        self, name: str, inputs: Sequence[object]
    ) -> tuple[list[torch.Tensor], list[int]]:
        """Return the tensors (as they are before the launch) and sizes that a kernel gets."""
        caught: list[tuple[list[torch.Tensor], list[int]]] = []

        def launch(kernel: str, tensors: list[torch.Tensor], sizes: list[int]) -> None:
            if kernel == name and not caught:
                caught.append(([clone_strided(t) for t in tensors], list(sizes)))
            self.kernels[kernel].runnable()(tensors, sizes)

        self.trace(inputs, launch)
        return caught[0]
