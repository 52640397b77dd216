"""From a captured graph to its parts: forward and backward, each on its way through the stages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo import disable
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition

from fusec.build.queue import BuildQueue
from fusec.capture.background import EarlyValue
from fusec.capture.dynamo.unread_texts import unread_texts
from fusec.capture.eager_reasons import strict
from fusec.capture.fast_path.direct import (
    epilogue_instead_of_wrappers,
    keep_saved_tensors,
    returns_a_base,
    saved_outputs,
    views_of_updated_inputs,
)
from fusec.capture.gradients.unasked import (
    JointGradients,
    Missing,
    joint_gradients,
    missing_gradients,
)
from fusec.capture.inputs.graph_inputs import (
    Names,
    has_subclasses,
    name_gradients,
    name_inputs,
    result_names,
    saved_names,
    updated_inputs,
)
from fusec.capture.inputs.shared_inputs import sharing_elements
from fusec.capture.number_restarts import (
    looking_for_numbers,
)
from fusec.compiled.graph import CompiledGraph
from fusec.compiled.part import CompiledPart, is_backward
from fusec.devices import GPU, is_gpu
from fusec.errors import DeviceNotThere, FusecError, in_words
from fusec.freezing import FrozenMiss, refuse_if_frozen
from fusec.gc_pause import Rest
from fusec.graph.decompositions import decomposition_table
from fusec.graph.pipeline import GraphForm, Subject, format_passes, run_passes
from fusec.graph.regions import inline_regions
from fusec.graph.training.saved import recomputed_operators, saved_tensors
from fusec.graph.training.unasked import asks_in_part, copied, without_gradients
from fusec.ir.body import Buffer
from fusec.lower.values import GraphNotLowered
from fusec.options import Options
from fusec.pipeline import Compilation, run_stages
from fusec.report import Stage
from fusec.target_api.base import PythonTarget
from fusec.tune.asked import choose_products, pin

# AOTAutograd's option to hand out the backward graph when it has the forward part compiled.
_ASK_FOR_BOTH = "force_non_lazy_backward_lowering"
# How many forms a backward part has at most, by which of its gradients are missing.
_MOST_FORMS = 8


@dataclass(frozen=True)
class Orders:
    """What whoever compiles graphs wants of each.

    Attributes:
        options: How to compile.
        taken: Names that no kernel gets; those of new kernels are added.
        lock: Held while something is compiled.
        put_off: None where kernels are built; else they are only written, and this is given what
            makes a backward part, which is not made before a gradient is asked for.
    """

    options: Options
    taken: set[str]
    lock: threading.RLock
    put_off: Callable[[Callable[[], object]], None] | None = None


@dataclass(frozen=True)
class _Made:
    """A part as it was compiled.

    Attributes:
        kind: ``forward``, ``backward`` or ``inference``.
        module: Its graph.
        part: None if it could not be compiled.
        stages: What its compilation yielded.
        reason: Why it runs in eager.
    """

    kind: str
    module: fx.GraphModule
    part: CompiledPart | None
    stages: Sequence[Stage]
    reason: str = ""


class GraphCompiler:
    """Compiles the parts of one captured graph."""

    def __init__(
        self, orders: Orders, graph: CompiledGraph, stages: list[Stage], names: Names
    ) -> None:
        self.orders = orders
        self.graph = graph
        self.stages = stages
        self.names = names
        self.saved_names: dict[str, str] = {}  # of forward's results, by its graph's own names
        self.unwraps_subclasses = False  # whether AOTAutograd takes tensor subclasses apart
        self.views_of_updated: tuple[int, ...] = ()
        self.returns_a_base = False
        self.inputs = 0  # of the captured graph
        # Which of its inputs have elements in common with another one.
        self.sharing: frozenset[int] = frozenset()
        self.entered = 0.0
        # As where the graph is called, by TorchDynamo's guards; AOTAutograd changes both meanwhile.
        self.autocast = torch._C._is_any_autocast_enabled()
        self.records = torch.is_grad_enabled()
        self.would_record = False  # an operator, as an input requires gradients
        self.partition: tuple[Stage, ...] = ()
        self.returned: int | None = None  # by the forward part of a joint graph, to its caller
        self.joint = JointGradients()
        # All of the graph, if it can be called by itself.
        self.direct: CompiledPart | None = None
        self.forward: CompiledPart | None = None  # the part of a joint graph that calls run

    def compile(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile the graph for its example inputs; return what AOTAutograd hands out."""
        self.would_record = self.records and any(
            isinstance(each, torch.Tensor) and each.requires_grad for each in inputs
        )
        module = self._run_passes(GraphForm.CAPTURED, self.graph.eager)
        self.entered = time.perf_counter()
        self.inputs = len(inputs)
        self.sharing = sharing_elements(inputs)
        self.unwraps_subclasses = has_subclasses(module, inputs)
        # As in eager, where one leaves autocast before asking for gradients: each operator's
        # gradient has the types of its forward pass, and nothing else is converted.
        changes: dict[str, Any] = {"backward_pass_autocast": "off"}
        if hasattr(functorch_config, _ASK_FOR_BOTH):
            changes[_ASK_FOR_BOTH] = True  # what becomes of it is up to ``_backward_compiler``
        numbers = looking_for_numbers(self.graph.eager)
        with functorch_config.patch(changes), numbers, unread_texts():
            compiled = aot_module_simplified(
                module,
                inputs,
                fw_compiler=self._compiler("forward"),  # type: ignore[arg-type]
                bw_compiler=self._backward_compiler(),  # type: ignore[arg-type]
                inference_compiler=self._compiler("inference"),  # type: ignore[arg-type]
                decompositions=decomposition_table(),  # type: ignore[arg-type]
                partition_fn=self._partition,
                keep_inference_input_mutations=False,
            )
        return compiled  # TorchDynamo keeps its own hands off what a backend returns

    def _partition(self, joint: fx.GraphModule, inputs: Any, **given: Any) -> Any:
        """Divide a joint graph into forward and backward, which see the same random numbers."""
        started = time.perf_counter()
        results = given["num_fwd_outputs"]
        inline_regions(joint)
        self.joint = joint_gradients(joint, results)
        self._run_passes(GraphForm.JOINT, joint, results=results)
        with functorch_config.patch(cse=False):  # torch's own pass imports TorchInductor
            forward, backward = min_cut_rematerialization_partition(joint, inputs, **given)
        self._run_passes(GraphForm.SPLIT, forward, results=results, backward=backward)
        seconds = time.perf_counter() - started
        self.entered += seconds  # what is left is the decomposition's
        passes = self._passes()
        self.partition = (passes, graph_stage("partition", seconds - passes.seconds, joint))
        self.returned = results
        self.graph.saved = saved_tensors(forward, results)
        self.graph.recomputed = recomputed_operators(forward, backward)
        return forward, backward

    def _run_passes(self, form: GraphForm, module: fx.GraphModule, **more: Any) -> fx.GraphModule:
        """Run the passes for a form of the graph; return the graph, which may be another one."""
        subject = Subject(
            module,
            self.orders.options,
            updated=updated_inputs(module),
            unwraps_subclasses=self.unwraps_subclasses,
            **more,
        )
        self.graph.passes += run_passes(form, subject)
        return subject.module

    def _passes(self) -> Stage:
        """Return the passes over the graph as a stage; it shows those of later parts as well."""
        graph, without = self.graph, self.orders.options.without
        # those before belong to what was captured, whose time is the decomposition's
        seconds = sum(run.seconds for run in graph.passes if run.form != GraphForm.CAPTURED.value)
        return Stage("passes", seconds, lambda: format_passes(graph.passes, without))

    def _backward_compiler(self) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        """Return the compiler of backward graphs, out of TorchDynamo's sight.

        It may run inside of a compiled region, when the first gradient is asked for; neither it
        nor what it returns is to be traced.
        """
        compile_part = self._compiler("backward")

        def compile_backward(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            keep_saved_tensors()
            if self.orders.put_off is not None and _has_known_sizes(module):
                self.orders.put_off(lambda: self._part("backward", module))
                return module
            kept = copied(module) if self._may_leave_out(module) else None
            if self.graph.compiled is not None or not _has_known_sizes(module):
                refuse_if_frozen(f"the backward part of {self.graph.name}")
                whole = disable(compile_part)(module, inputs)
            else:
                whole = self._later(module)
            return disable(whole if kept is None else self._leaving_out(whole, kept))

        return compile_backward

    def _may_leave_out(self, module: fx.GraphModule) -> bool:
        """Whether a backward graph may have to do without some of the gradients that it takes.

        On a GPU it is compiled while forward runs first, when nobody knows which are missing.
        """
        values = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
        devices = {v.device.type for v in values if isinstance(v, torch.Tensor)}
        return len(self.joint.flows) > 1 and devices == {"cpu"}

    def _leaving_out(
        self, whole: Callable[[list[Any]], Any], kept: fx.GraphModule
    ) -> Callable[[list[Any]], Any]:
        """Return a backward part of which another form runs where gradients are missing.

        Args:
            whole: Takes all of them.
            kept: Its graph, before passes changed it.
        """
        others: dict[Missing, Callable[[list[Any]], Any]] = {}

        def without(missing: Missing) -> Callable[[list[Any]], Any]:
            with self.orders.lock:
                if missing not in others and len(others) < _MOST_FORMS:
                    others[missing] = self._without(missing, kept) or whole
                return others.get(missing, whole)

        def call(inputs: list[Any]) -> Any:
            missing = missing_gradients()
            return (without(missing) if missing else whole)(inputs)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def _without(self, missing: Missing, kept: fx.GraphModule) -> Callable[[list[Any]], Any] | None:
        """Return a backward part that does without some gradients; None if there is none."""
        if asks_in_part(self.graph.eager, missing[0], len(self.joint.flows)):
            return None
        module = without_gradients(kept, *missing)
        if module is None:
            return None
        try:
            refuse_if_frozen(f"another backward part of {self.graph.name}")
        except FrozenMiss:
            return None  # the whole one computes from zeros
        number = 2 + sum(part.kind.startswith("backward ") for part in self.graph.parts)
        self.stages.append(graph_stage("decompose backward", 0.0, module))
        found: Callable[[list[Any]], Any] = self._part(f"backward {number}", module)
        return found

    def _later(self, module: fx.GraphModule) -> Callable[[list[Any]], Any]:
        """Return the backward part of a graph that is compiled while forward runs first.

        Where forward runs on the CPU that would take the cores from it; there it is compiled when
        it is called, as where kernels are chosen by timing them.
        """
        early = EarlyValue(lambda: self._make("backward", module))
        if self.forward is not None and _leaves_cores_free(self.forward):
            self.forward.announce = early.begin
        entry: Callable[[list[Any]], Any] | None = None

        def ready() -> Callable[[list[Any]], Any]:
            nonlocal entry
            if entry is None:
                refuse_if_frozen(f"the backward part of {self.graph.name}")
                made = early.result()
                with self.orders.lock:
                    if entry is None:
                        self.stages.append(graph_stage("decompose backward", 0.0, module))
                        entry = self._take(made)
            return entry

        def call(inputs: list[Any]) -> Any:
            return (entry or ready())(inputs)

        call._boxed_call = True  # type: ignore[attr-defined]
        self.graph.make_backward = ready
        return call

    def _compiler(self, kind: str) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        def compile_part(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            if self.graph.compiled is not None:
                # At the first gradient: what happened since the forward part is not compilation.
                self.entered = time.perf_counter()
            label = "decompose" if kind != "backward" else "decompose backward"
            self.stages.append(graph_stage(label, time.perf_counter() - self.entered, module))
            self.stages += self.partition
            self.partition = ()
            if kind != "backward":
                self.views_of_updated = views_of_updated_inputs()
                self.returns_a_base = returns_a_base(self.inputs)
            with Rest():
                result = self._part(kind, module)
            self.graph.stages = tuple(self.stages)
            self.entered = time.perf_counter()
            return result

        return compile_part

    def _part(self, kind: str, module: fx.GraphModule) -> Any:
        return self._take(self._make(kind, module))

    def _make(self, kind: str, module: fx.GraphModule) -> _Made:
        """Compile a part; nobody sees it until it is taken.

        A backward part may be compiled where it is first called: in autocast, say, which would
        give the operators that passes add other types than they return when the part runs.
        """
        stages: list[Stage] = []
        reason = ""
        with self.orders.lock, Rest(), torch._C._DisableAutocast(), torch.no_grad():
            try:
                part = self._compile_part(kind, module, stages)
                return _Made(kind, module, part, stages)
            except GraphNotLowered as error:
                reason = str(error)
            except (DeviceNotThere, FrozenMiss):
                raise  # eager would fail as well; and nothing was to be compiled
            except FusecError as error:
                if strict():
                    raise
                reason = str(error)
            except Exception as error:
                # A defect of the compiler must never become the user's: eager is always right.
                if strict():
                    raise
                reason = in_words(error)
        return _Made(kind, module, None, stages, reason)

    def _compile_part(self, kind: str, module: fx.GraphModule, stages: list[Stage]) -> CompiledPart:
        if is_backward(kind):
            results = result_names(self.graph.eager)
            name_gradients(module, self.names, results, self.saved_names)
        else:
            name_inputs(module, self.names)
            self.saved_names = saved_names(module)
        inline_regions(module)
        if kind == "inference":  # the parts of a joint graph have been through this as one
            self._run_passes(GraphForm.INFERENCE, module)
            stages.append(self._passes())
        self._run_passes(GraphForm.PART, module)
        queue = BuildQueue()
        state = Compilation(
            module,
            self.orders.options,
            self.orders.taken,
            updated=updated_inputs(module),
            saved=self._saved(kind, module),
            written=queue.begin if self.orders.put_off is None else lambda kernel: None,
            choose_products=choose_products,
        )
        try:
            stages += run_stages(state)
            part = CompiledPart(kind, state, self.graph, self.orders.options.keep_inputs)
            if self.orders.put_off is not None:
                return part
            started = time.perf_counter()
            if kind == "inference":
                self._choose_epilogue(part)
            part.build(queue, pin=pin)
            stages.append(Stage("build", time.perf_counter() - started, ""))
            return part
        finally:
            queue.close()

    def _saved(self, kind: str, module: fx.GraphModule) -> tuple[int, ...]:
        return (
            saved_outputs(module, self.returned)
            if kind == "forward" and not self.unwraps_subclasses
            else ()
        )

    def _take(self, made: _Made) -> Any:
        """Make a part that has been compiled one of the graph's; return what runs it."""
        self.stages += made.stages
        if made.part is None:
            found = self._fall_back(made.kind, made.module, made.reason)
        else:
            self.graph.parts.append(made.part)
            if made.kind == "forward":
                self.forward = made.part
            found = made.part.entry() if self.orders.put_off is None else made.module
        self.graph.stages = tuple(self.stages)
        return found

    def _choose_epilogue(self, part: CompiledPart) -> None:
        """See whether the part can be called past AOTAutograd's wrappers."""
        program = part.state.scheduled
        if self.unwraps_subclasses or len(program.inputs) != len(self.names):
            return
        found = epilogue_instead_of_wrappers(
            len(self.names), would_record=part.calls_operators and self.would_record
        )
        if found is None:
            return
        if found.changes_outputs and any(b.device.type != "cpu" for b in program.buffers.values()):
            return  # plans and graphs on a GPU return what the graph does
        part.epilogue = found
        self.direct = part

    def _fall_back(self, kind: str, module: fx.GraphModule, reason: str) -> Any:
        self.graph.fallback = f"{kind} runs in eager: {reason}"

        def run(inputs: list[Any]) -> Any:
            arguments = list(inputs)
            inputs.clear()
            if not torch._C._is_any_autocast_enabled():
                return module(*arguments)
            with torch._C._DisableAutocast():
                return module(*arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def graph_stage(name: str, seconds: float, module: fx.GraphModule) -> Stage:
    """Return the stage that yielded a graph."""
    return Stage(name, seconds, lambda: str(module.print_readable(print_output=False)))


def _has_known_sizes(module: fx.GraphModule) -> bool:
    values = [node.meta.get("val") for node in module.graph.nodes]
    return not any(
        isinstance(value, torch.SymInt)
        or (isinstance(value, torch.Tensor) and value._has_symbolic_sizes_strides)
        for value in values
    )


def _leaves_cores_free(part: CompiledPart) -> bool:
    """Whether something can be compiled while a part runs without being in its way."""
    program = part.state.scheduled
    if part.state.options.matmul == "auto" or not any(map(_is_on_gpu, program.buffers.values())):
        return False
    target = part.state.options.target_for(GPU)
    return isinstance(target, PythonTarget) and target.workers() > 0


def _is_on_gpu(buffer: Buffer) -> bool:
    return is_gpu(buffer.device)


__all__ = ["GraphCompiler", "Orders", "graph_stage"]
