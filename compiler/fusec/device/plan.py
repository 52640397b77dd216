"""A compiled part on a GPU as one native call; with ``cuda_graphs``, as CUDA graphs.

The host program runs once with every launch recorded. From then on calls with the same sizes and
the same alignment go through a *plan* (``call/native/plan.cpp``): torch's allocator, the
driver's launches, ATen's operators, and no Python in between. What has no plan runs as the host
program.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from fusec.call import native
from fusec.call.results import expect
from fusec.device.capture_policy import HELD, MOST_GRAPHS, MOST_RESIDING, Policy
from fusec.device.captured_steps import (
    baked_inputs,
    for_graph,
    is_random,
    unmovable_inputs,
    work_count,
)
from fusec.device.driver import PlanDriver, machine
from fusec.device.plan_check import agree, may_repeat
from fusec.device.plan_policy import MOST_PLANS, Returning
from fusec.device.plan_steps import device_steps
from fusec.device.residents import Homes, at_home, may_stay
from fusec.device.step_numbers import Numbered, numbered
from fusec.device.steps import SizedProgram
from fusec.devices import is_gpu
from fusec.ir.body import Buffer
from fusec.ir.index import Symbol
from fusec.ir.program import Compute, Extern, Program
from fusec.memory import poison, readable
from fusec.target_api.launches import LaunchRecord

_PLANS = "FUSEC_GPU_PLANS"
# Views whose readers change what lies in memory; no kernel is told so, and an address says nothing.
_LAZY = (torch.ops.aten._conj.default, torch.ops.aten._neg_view.default)
_WRONG = "its results were not those of the host program"
# A single start, or a single operator, costs less than the replay of a graph.
_LEAST_WORK = 2


class _Modes:
    """How many modes and transforms see operators first: what inputs tell where there are some."""

    def __len__(self) -> int:
        transforms = torch._C._functorch.peek_interpreter_stack() is not None
        return torch._C._len_torch_dispatch_stack() + int(transforms)


class DeviceProgram:
    """A compiled part's host program on a GPU.

    Attributes:
        call: The native object: takes the inputs, returns the outputs in a list.
    """

    def __init__(
        self,
        program: Program,
        device: int,
        on: PlanDriver,
        run: Callable[[list[Any]], list[Any]],
        trace: Callable[..., list[Any]],
        runnables: Callable[[str], Any],
        *,
        graphs: bool = False,
        saved: Collection[int] = (),
        check: Any = None,
    ) -> None:
        """Prepare; the first call makes the first plan.

        Args:
            program: The scheduled program.
            device: Where its tensors are.
            on: The machine.
            run: The host program.
            trace: The same with a function in place of every launch.
            runnables: Returns a kernel's current build.
            graphs: Whether to capture CUDA graphs.
            saved: Positions of the outputs that nobody but backward sees.
            check: The native check of the inputs.
        """
        self.program = program
        self.device = device
        self.machine = on
        self.graphs = graphs
        self.saved = frozenset(saved) if on.holders is not None else frozenset()
        self._run = run
        self._trace = trace
        self._runnables = runnables
        self._lock = threading.RLock()
        self._entered = threading.local()
        self._steps: OrderedDict[tuple[int, ...], SizedProgram] = OrderedDict()
        self._returning = Returning(int(bool(program.sizes)))
        self._policy = Policy({})
        self._captured: dict[str, int] = {}  # what was captured, in words, and how often
        self._direct = False  # whether there is something that is cheaper without a graph
        self._broken = 0
        self._wrong: set[tuple[int, ...]] = set()  # keys whose plan did something else
        self._foreign: set[str] = set()  # outputs whose memory was not the graph's alone
        self._changed = program.changed_inputs()
        self._instead: Callable[[list[Any]], list[Any]] | None = None
        inputs = {name: i for i, name in enumerate(program.inputs)}
        touched = set(_touched(program))
        used = tuple(i for name, i in inputs.items() if name in touched)
        sizes = tuple(
            (inputs[source], -1 if dim is None else dim) for source, dim in program.sizes.values()
        )
        found = native.device_types()
        assert found is not None
        self.call = found.DeviceProgram(
            len(inputs),
            MOST_GRAPHS if graphs else MOST_PLANS,
            device,
            used,
            sizes,
            self._slow,
            on.get_device,
            on.get_stream,
            readable.address,
            on.hooks if used else (*on.hooks, _Modes()),
            native.exchange(),
            graphs,
            check,
        )

    def link(self, name: str, runnable: object) -> None:
        """Take note that a kernel has another build."""
        self.forget()

    def redirect(self, run: Callable[[list[Any]], list[Any]] | None) -> None:
        """Let another program answer every call from now on, or this one again if None."""
        with self._lock:
            self._instead = run
            self.forget()

    def forget(self) -> None:
        """Start anew: plans know only the old builds of kernels."""
        with self._lock:
            self.call.drop(None)
            self._steps.clear()
            self._returning = Returning(int(bool(self.program.sizes)))
            self._policy = Policy({})
            self._captured.clear()
            self._wrong.clear()
            self._foreign.clear()
            self._direct = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What became of CUDA graphs, where they were asked for: a line each."""
        if not self.graphs:
            return ()
        lines = [f"CUDA graphs: {what}" for what in self._captured]
        if self._direct:
            lines.append("no CUDA graph: a single launch costs less than a graph's")
        lines += [f"no CUDA graph: {reason}" for reason in self._policy.reasons]
        return tuple(lines or ["no CUDA graph yet: the first calls run without"])

    # -- calls that have no plan ------------------------------------------------------------

    def _slow(self, inputs: list[Any]) -> list[Any]:
        """Run a call for which there is no plan, and make one if that is due."""
        if self._instead is not None:
            return self._instead(inputs)
        if getattr(self._entered, "now", False) or self.machine.is_capturing():
            return self._run(inputs)
        found = self.call.key(*inputs)
        if found is None:
            return self._run(inputs)
        self._entered.now = True
        try:
            with self._lock:
                key, places, stream = found
                return self._learn(key, places, stream, inputs)
        finally:
            self._entered.now = False

    def _learn(
        self, key: tuple[int, ...], places: Mapping[int, int], stream: int, inputs: list[Any]
    ) -> list[Any]:
        if self._instead is not None:  # since just now
            return self._instead(inputs)
        plain = key[1:] if self.graphs else key
        steps = self._steps.get(plain)
        if steps is None:
            if key in self._wrong or not self._returning.due(plain):
                return self._run(inputs)
            outputs, steps = self._record(plain, inputs)
            if self.graphs:  # it is long before there is one; a plan is made at once
                self._steps[plain] = steps
            if len(self._steps) > MOST_PLANS:
                self._steps.popitem(last=False)
            if self._added(key, places, stream, steps, inputs):
                return self._checked(key, steps, inputs, outputs)
            return outputs
        self._steps.move_to_end(plain)
        if not self._added(key, places, stream, steps, inputs):
            return self._run(inputs)
        if may_repeat(steps, self._changed):
            return self._checked(key, steps, inputs, self._run(list(inputs)))
        result: list[Any] = self.call.boxed(inputs)
        return result

    def _checked(
        self, key: tuple[int, ...], steps: SizedProgram, inputs: list[Any], expected: list[Any]
    ) -> list[Any]:
        """Run a new plan once beside the host program; forget it if they differ.

        Returns:
            What the plan returned, where that is right: backward shall see at once where residents
            are.
        """
        if not may_repeat(steps, self._changed):
            return expected
        try:
            outputs: list[Any] = self.call.boxed(list(inputs))
        except readable.Unreadable:  # an operator's result, which has no address
            outputs = []
        if agree(expected, outputs):
            return outputs
        self._wrong.add(key)
        self._policy.refuse(key, _WRONG)
        self.call.drop(key)
        return expected

    def _added(
        self,
        key: tuple[int, ...],
        places: Mapping[int, int],
        stream: int,
        steps: SizedProgram,
        inputs: Sequence[Any],
    ) -> bool:
        """Add a plan for a call, if it is to have one now."""
        if key in self._wrong:
            return False
        if not self.graphs or work_count(steps) < _LEAST_WORK:
            self._direct = self.graphs
            self.call.add(key, self._plan(numbered(steps), steps))
            return True
        baked = [steps.inputs.index(name) for name in baked_inputs(steps)]
        home = at_home(places, baked)
        held = bool(self.saved) and self.call.held(*inputs)
        known = (*key, HELD) if held else self._policy.key(key, home)
        if self.call.broken > self._broken:
            self._broken = self.call.broken
            self._policy.refuse(known, "the driver refused to move its memory")
        self._policy.unmovable = {
            steps.inputs.index(name): self.program.buffers[name].hint or name
            for name in unmovable_inputs(steps) | (self._changed & steps.tensors.keys())
        }
        decision = self._policy.decide(known, places, baked, home)
        if decision.forget:
            self.call.drop(key)
        if decision.capture:
            copied = {steps.inputs[i] for i in decision.copied}
            may_keep = not held and self.call.residing < MOST_RESIDING
            # What is made in inference mode cannot be saved.
            may_keep = may_keep and not torch.is_inference_mode_enabled()
            residents = may_stay(steps, self.saved) if may_keep else ()
            try:
                plan = self._captured_plan(stream, steps, copied, residents, tuple(inputs))
                if plan is None:
                    plan = self._captured_plan(stream, steps, copied, (), tuple(inputs))
                self.call.add(key, plan, held)
                return True
            except (RuntimeError, NotImplementedError) as error:
                reason = str(error).strip().splitlines() or [type(error).__name__]
                self._policy.refuse(known, f"an operator cannot be captured: {reason[0]}")
        if self._policy.history(known).refused:
            self.call.add(key, self._plan(numbered(steps), steps), held)
            return True
        return False

    def _captured_plan(
        self,
        stream: int,
        steps: SizedProgram,
        copied: set[str],
        residents: Sequence[str],
        inputs: tuple[Any, ...],
    ) -> Any:
        """Return a plan that is a graph, with those of ``residents`` that are the graph's alone.

        None where there is not enough memory for them to stay.
        """
        residents = [name for name in residents if name not in self._foreign]
        graph = for_graph(steps, copied, residents)
        given = numbered(
            graph.steps,
            before=graph.before,
            loose=graph.loose,
            fixed=graph.fixed,
            residents=graph.residents,
        )
        homes = Homes()
        plan = self._plan(given, steps, homes)
        try:
            self.machine.capture(
                plan,
                inputs,
                device=self.device,
                stream=stream,
                random=is_random(steps),
                alone=bool(graph.residents),
            )
        except torch.OutOfMemoryError:
            if not graph.residents:
                raise
            return None
        foreign = {graph.residents[i] for i in plan.foreign()}
        if foreign:  # an operator returned what it was given, or keeps what it returned
            self._foreign |= foreign
            del plan
            return self._captured_plan(stream, steps, copied, residents, inputs)
        reach = {memory.name: memory.bytes for memory in steps.made}
        homes.lie_at(plan.places(), [reach[name] for name in graph.residents])
        inputs_copied = self._names(graph.copied_inputs)
        outputs_copied = self._names(graph.copied_outputs)
        text = f"captured; of {len(steps.tensors)} inputs {inputs_copied} copied"
        text += f", of {len(steps.outputs)} outputs {outputs_copied}"
        if graph.residents:
            text += f", {len(graph.residents)} stay for backward"
        self._captured[text] = self._captured.get(text, 0) + 1
        return plan

    def _plan(self, given: Numbered, steps: SizedProgram, homes: Homes | None = None) -> Any:
        found = native.device_types()
        assert found is not None
        how, residents = self.machine.holders, None
        if how is not None and given.residents:
            residents = given.residents, how.use_count, how.hooked, how.probe
        return found.Plan(
            self.machine.driver,
            given.inputs,
            given.slots,
            given.before,
            given.steps,
            given.results,
            given.loose,
            given.fixed,
            self.machine.allocate,
            readable.address,
            expect,
            native.exchange(),
            (steps.kept, homes),
            residents,
        )

    def _names(self, names: Sequence[str], most: int = 4) -> str:
        if not names:
            return "none is"
        hints = [self.program.buffers[name].hint or name for name in names[:most]]
        shown = ", ".join(hints) + (", ..." if len(names) > most else "")
        return f"{len(names)} ({shown}) {'is' if len(names) == 1 else 'are'}"

    def _record(self, key: tuple[int, ...], inputs: list[Any]) -> tuple[list[Any], SizedProgram]:
        """Run the host program, and return its outputs and what it did."""
        sizes: dict[Symbol, int] = dict(zip(self.program.sizes, key, strict=False))
        records: dict[str, LaunchRecord | None] = {}
        functions: dict[str, Callable[..., Any]] = {}

        def launch(name: str, tensors: list[torch.Tensor], extra: list[int]) -> None:
            runnable = self._runnables(name)
            count = len(tensors)
            direct = getattr(runnable, "direct", None)
            functions[name] = direct or (lambda *a: runnable(a[:count], a[count:]))
            recorded = getattr(runnable, "recorded", None)
            if recorded is not None:
                records[name] = recorded(tensors, extra)
            else:
                runnable(tensors, extra)
                records[name] = None

        outputs = self._trace(inputs, launch)
        steps = device_steps(self.program, sizes, records, functions, self.machine.join)
        return outputs, steps


# -- which programs ---------------------------------------------------------------------------


def _touched(program: Program) -> list[str]:
    """Return the buffers that steps read or write, inputs first."""
    found = {name for step in program.steps for name in (*step.reads(), *step.writes())}
    names = dict.fromkeys((*program.inputs, *program.buffers))
    return [name for name in names if name in found and name in program.buffers]


def device_of(program: Program) -> int | str:
    """Return the GPU that all of a program is on, or why it is no program for plans."""
    buffers: list[Buffer] = [program.buffers[name] for name in _touched(program)]
    devices = {buffer.device for buffer in buffers}
    for buffer in buffers:
        if not is_gpu(buffer.device):
            where = "the CPU" if buffer.device.type == "cpu" else str(buffer.device)
            return f"{buffer.hint or buffer.name} is on {where}"
    if len(devices) != 1:
        return "there is more than one GPU in it" if devices else "nothing is computed"
    for step in program.steps:
        if isinstance(step, Extern):
            tags = getattr(step.target, "tags", ())
            if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
                return f"what {step.target} returns depends on values, for which the CPU waits"
            if step.target in _LAZY:
                return f"what {step.target} returns stands for other numbers than its memory holds"
    known = set(program.sizes)
    for buffer in buffers:
        if any(s not in known for e in (*buffer.shape, *buffer.strides) for s in e.symbols()):
            return "a size depends on values"
    (device,) = devices
    return device.index or 0


def wanted() -> bool:
    """Whether programs on a GPU run by plans; ``FUSEC_GPU_PLANS=0`` leaves them to Python."""
    return os.environ.get(_PLANS, "1") != "0" and not poison.is_on()


def device_program(
    program: Program,
    run: Callable[[list[Any]], list[Any]],
    trace: Callable[..., list[Any]],
    runnables: Callable[[str], Any],
    *,
    graphs: bool,
    saved: Collection[int] = (),
    check: Any = None,
) -> DeviceProgram | str:
    """Return a program as native calls on its GPU, or why there is no way.

    Args:
        program: As for ``DeviceProgram``.
        run: Likewise.
        trace: Likewise.
        runnables: Likewise.
        graphs: Likewise.
        saved: Likewise.
        check: Likewise.
    """
    device = device_of(program)
    if isinstance(device, str):
        return device
    if not any(isinstance(step, (Compute, Extern)) for step in program.steps):
        return "nothing is computed"
    found = machine()
    if found is None:
        return "there is no driver of CUDA's" if native.types() else native.problem()
    return DeviceProgram(
        program, device, found, run, trace, runnables, graphs=graphs, saved=saved, check=check
    )


__all__ = ["DeviceProgram", "device_of", "device_program", "wanted"]
