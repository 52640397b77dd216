"""The TorchDynamo backend: every captured graph goes through AOTAutograd and our pipeline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo import disable
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

from fusec.build.queue import BuildQueue
from fusec.call import native
from fusec.capture import aot, cache_artifacts, whole_calls
from fusec.capture.background import EarlyValue
from fusec.capture.fast_path.direct import (
    analyze_no_operators,
    epilogue_instead_of_wrappers,
    keep_saved_tensors,
    saved_outputs,
    views_of_updated_inputs,
    wraps_no_more,
)
from fusec.capture.fast_path.recorded import recorded_call
from fusec.capture.frozen_calls import refuse_capture
from fusec.capture.graph_inputs import (
    has_gaps,
    has_subclasses,
    input_names,
    name_gradients,
    name_inputs,
    needs_eager,
    result_names,
    saved_names,
    updated_inputs,
)
from fusec.capture.list_inputs import Flat, has_lists
from fusec.capture.number_restarts import (
    LOSES_UPDATES,
    Restart,
    forget_numbers,
    looking_for_numbers,
    loses_updates,
)
from fusec.capture.result_modes import loses_hooks, mixes_modes, result_modes
from fusec.capture.side_effects import side_effects
from fusec.capture.tuned_calls import TunedCalls
from fusec.capture.untraceable import in_short, is_untraceable
from fusec.compiled.graph import CompiledGraph
from fusec.compiled.part import CompiledPart
from fusec.devices import GPU, is_gpu
from fusec.errors import BadOption, DeviceNotThere, FusecError
from fusec.freezing import FrozenMiss, refuse_if_frozen
from fusec.gc_pause import Rest
from fusec.graph.decompositions import decomposition_table
from fusec.graph.pipeline import GraphForm, Subject, check_without, format_passes, run_passes
from fusec.graph.refusals.calls import refused_call
from fusec.graph.regions import inline_regions
from fusec.graph.training.saved import recomputed_operators, saved_tensors
from fusec.ir.body import Buffer
from fusec.lower.values import GraphNotLowered
from fusec.options import Options
from fusec.pipeline import Compilation, run_stages
from fusec.report import Stage
from fusec.target_api.base import PythonTarget
from fusec.tune.asked import choose_products, pin

_STRICT = "FUSEC_STRICT"
_MISPLACED = (
    "it returns a view of symbolic size of an input that it updates and that has gaps, "
    "which AOTAutograd would lay over other elements"
)
# AOTAutograd's option to hand out the backward graph when it has the forward part compiled.
_ASK_FOR_BOTH = "force_non_lazy_backward_lowering"


# torch keeps the assertion that has a message, and drops the one without as nobody reads it.
fx.node.has_side_effect(torch.ops.aten._assert_async.default)
cache_artifacts.install()
whole_calls.install()  # before anything is captured: this module is what names the backend


def strict() -> bool:
    """Whether a failure inside the compiler is raised instead of running in eager (tests)."""
    return os.environ.get(_STRICT, "") not in ("", "0")


class Backend:
    """One user's compiler: what ``torch.compile(backend=...)`` calls for each captured graph.

    Attributes:
        options: How to compile.
        graphs: Every graph compiled so far, in order.
        clock: When the work that is not the compiler's ended; capture is timed from there.
        builds: Whether kernels are built; where not, they are only written, nothing can be run,
            and whoever asked looks at ``graphs``.
    """

    builds = True

    # TorchDynamo compares backends by this when a function is compiled twice.
    _torchdynamo_orig_callable = None

    def __init__(self, options: Options) -> None:
        check_without(options.without)
        if self.builds and torch.cuda.is_initialized():
            # what compiles is ready by the time that something is captured
            (options.asked or options.target_for(GPU)).prepare()
        self.options = options
        self.graphs: list[CompiledGraph] = []
        self.clock = time.perf_counter()
        self._taken: set[str] = set()
        self._lock = threading.RLock()

    def take(self, names: Iterable[str]) -> None:
        """Give no later kernel one of these names."""
        with self._lock:
            self._taken.update(names)

    def put_off(self, make: Callable[[], object]) -> None:
        """Be given what makes a backward part, which is not made before a gradient is asked for."""
        raise NotImplementedError  # for those that do not build

    def __call__(
        self, module: fx.GraphModule, example_inputs: Sequence[Any], **_: object
    ) -> Callable[..., Any]:
        """Compile one captured graph; what cannot be compiled runs in eager, with the reason."""
        if not any(node.op.startswith("call") for node in module.graph.nodes):
            # TorchDynamo may hand over what only guards came of; there is nothing to show of it.
            return module.forward
        if has_lists(example_inputs):
            flat = Flat(module)
            if not has_lists(given := flat.pick(example_inputs)):
                return flat.call(self(flat.module, given))
        if self.builds:
            refuse_capture()
        with self._lock, Rest():
            started = time.perf_counter()
            graph = CompiledGraph(f"graph {len(self.graphs)}", module, self.options.keep_inputs)
            graph.traced = tuple(TracingContext.get_traced_code() or ())
            graph.effects = side_effects()
            self.graphs.append(graph)
            records = torch.is_grad_enabled()
            reason = needs_eager(module, example_inputs) or mixes_modes(module, records)
            reason = reason or loses_hooks(module, records)
            if reason:
                graph.run_in_eager(f"it runs in eager: {reason}")
                return graph
            stages = [_as_text("capture", max(started - self.clock, 0.0), module)]
            compiler = _GraphCompiler(self, graph, stages, input_names(module))
            try:
                refused = refused_call(module)
                if refused:
                    graph.run_in_eager(f"runs in eager, which raises: {refused}")
                    return graph
                graph.compiled = compiler.compile(example_inputs)
                analyze_no_operators(graph.compiled)
                if any(has_gaps(example_inputs[i]) for i in compiler.views_of_updated):
                    graph.run_in_eager(f"it runs in eager: {_MISPLACED}")
                    return graph
                if not self.builds:
                    return graph
                modes = result_modes(module, records)
                if modes:
                    if compiler.direct is not None:
                        compiler.direct.forget_epilogue()
                    graph.compiled = modes.around(graph.compiled, module)
                elif compiler.direct is not None and not graph.fallback:
                    if wraps_no_more(graph.compiled, compiler.direct):
                        converts = compiler.autocast and compiler.direct.calls_operators
                        graph.bypass(compiler.direct, converts=converts)
                    else:
                        compiler.direct.forget_epilogue()
                elif compiler.forward is not None and not graph.fallback:
                    short = recorded_call(graph.compiled, compiler.forward, graph.run_captured)
                    graph.record(short)
            except BaseException as error:
                # Also how AOTAutograd asks TorchDynamo to capture once more.
                if isinstance(error, Restart) and loses_updates(module):
                    forget_numbers()
                    graph.run_in_eager(f"it runs in eager: {LOSES_UPDATES}")
                    return graph
                if is_untraceable(error) and not strict():
                    forget_numbers()
                    why = f"AOTAutograd refuses it: {in_short(error)}"
                    graph.run_in_eager(f"it runs in eager: {why}")
                    return graph
                self.graphs.remove(graph)
                raise
            finally:
                graph.stages = tuple(stages)
                self.clock = time.perf_counter()
            forget_numbers()
            native.prepare()  # not earlier: where it has to be built, that takes a compiler's time
            return graph.entry()


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


class _GraphCompiler:
    """Compiles the parts of one captured graph."""

    def __init__(
        self, backend: Backend, graph: CompiledGraph, stages: list[Stage], names: dict[int, str]
    ) -> None:
        self.backend = backend
        self.graph = graph
        self.stages = stages
        self.names = names
        self.saved_names: dict[str, str] = {}  # of forward's results, by its graph's own names
        self.unwraps_subclasses = False  # whether AOTAutograd takes tensor subclasses apart
        self.views_of_updated: tuple[int, ...] = ()
        self.entered = 0.0
        # As where the graph is called, by TorchDynamo's guards; AOTAutograd changes both meanwhile.
        self.autocast = torch._C._is_any_autocast_enabled()
        self.records = torch.is_grad_enabled()
        self.partition: tuple[Stage, ...] = ()
        self.returned: int | None = None  # by the forward part of a joint graph, to its caller
        # All of the graph, if it can be called by itself.
        self.direct: CompiledPart | None = None
        self.forward: CompiledPart | None = None  # the part of a joint graph that calls run

    def compile(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        module = self._run_passes(GraphForm.CAPTURED, self.graph.eager)
        self.entered = time.perf_counter()
        self.unwraps_subclasses = has_subclasses(module, inputs)
        # As in eager, where one leaves autocast before asking for gradients: each operator's
        # gradient has the types of its forward pass, and nothing else is converted.
        changes: dict[str, Any] = {"backward_pass_autocast": "off"}
        if hasattr(functorch_config, _ASK_FOR_BOTH):
            changes[_ASK_FOR_BOTH] = True  # what becomes of it is up to ``_backward_compiler``
        with functorch_config.patch(changes), looking_for_numbers(self.graph.eager):
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
        self._run_passes(GraphForm.JOINT, joint, results=results)
        with functorch_config.patch(cse=False):  # torch's own pass imports TorchInductor
            forward, backward = min_cut_rematerialization_partition(joint, inputs, **given)
        self._run_passes(GraphForm.SPLIT, forward, results=results, backward=backward)
        seconds = time.perf_counter() - started
        self.entered += seconds  # what is left is the decomposition's
        passes = self._passes()
        self.partition = (passes, _as_text("partition", seconds - passes.seconds, joint))
        self.returned = results
        self.graph.saved = saved_tensors(forward, results)
        self.graph.recomputed = recomputed_operators(forward, backward)
        return forward, backward

    def _run_passes(self, form: GraphForm, module: fx.GraphModule, **more: Any) -> fx.GraphModule:
        """Run the passes for a form of the graph; return the graph, which may be another one."""
        subject = Subject(
            module,
            self.backend.options,
            updated=updated_inputs(module),
            unwraps_subclasses=self.unwraps_subclasses,
            **more,
        )
        self.graph.passes += run_passes(form, subject)
        return subject.module

    def _passes(self) -> Stage:
        """Return the passes over the graph as a stage; it shows those of later parts as well."""
        graph, without = self.graph, self.backend.options.without
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
            if not self.backend.builds and _has_known_sizes(module):
                self.backend.put_off(lambda: self._part("backward", module))
                return module
            if self.graph.compiled is not None or not _has_known_sizes(module):
                refuse_if_frozen(f"the backward part of {self.graph.name}")
                return disable(disable(compile_part)(module, inputs))
            return disable(self._later(module))

        return compile_backward

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
                with self.backend._lock:
                    if entry is None:
                        self.stages.append(_as_text("decompose backward", 0.0, module))
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
            self.stages.append(_as_text(label, time.perf_counter() - self.entered, module))
            self.stages += self.partition
            self.partition = ()
            if kind != "backward":
                self.views_of_updated = views_of_updated_inputs()
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
        with self.backend._lock, Rest(), torch._C._DisableAutocast(), torch.no_grad():
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
                reason = f"{type(error).__name__}: {error}"
        return _Made(kind, module, None, stages, reason)

    def _compile_part(self, kind: str, module: fx.GraphModule, stages: list[Stage]) -> CompiledPart:
        if kind == "backward":
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
            self.backend.options,
            self.backend._taken,
            updated=updated_inputs(module),
            saved=self._saved(kind, module),
            written=queue.begin if self.backend.builds else lambda kernel: None,
            choose_products=choose_products,
        )
        try:
            stages += run_stages(state)
            part = CompiledPart(kind, state, self.graph, self.backend.options.keep_inputs)
            if not self.backend.builds:
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
            found = made.part.entry() if self.backend.builds else made.module
        self.graph.stages = tuple(self.stages)
        return found

    def _choose_epilogue(self, part: CompiledPart) -> None:
        """See whether the part can be called past AOTAutograd's wrappers."""
        program = part.state.scheduled
        if self.unwraps_subclasses or len(program.inputs) != len(self.names):
            return
        found = epilogue_instead_of_wrappers(
            len(self.names), calls_operators=part.calls_operators, records=self.records
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


def _as_text(name: str, seconds: float, module: fx.GraphModule) -> Stage:
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


_MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "matmul": "auto"},
    "max-autotune-no-cudagraphs": {"matmul": "auto"},
}
# For each kernel: most of what a search finds, it finds in so many seconds.
_TUNING_SECONDS = 5.0


def fusec_backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The entry point for ``torch.compile(model, backend="fusec", options={...})``.

    Args:
        module: The captured graph.
        example_inputs: Its inputs.
        options: Fields of ``fusec.Options``.
        mode: None, ``default``, ``reduce-overhead``: with CUDA graphs; ``max-autotune``: with CUDA
            graphs, products by whatever is faster, and every kernel tuned in the first calls, for
            five seconds at most, unless it was before; or ``max-autotune-no-cudagraphs``. Others
            are refused.

    Raises:
        BadOption: An option or mode that does not exist.
    """
    if mode not in (None, *_MODES):
        raise BadOption("mode", mode, tuple(_MODES))
    chosen = {**_MODES.get(mode or "default", {}), **(options or {})}
    backend = Backend(Options.from_mapping(chosen))
    if aot.is_asked():
        with aot.without_torchs_cache():
            found = backend(module, example_inputs)
        return aot.SavedGraph(found, backend.graphs[-1] if backend.graphs else None)
    found = backend(module, example_inputs)
    if mode is None or not mode.startswith("max-autotune") or not backend.graphs:
        return found
    return TunedCalls(backend.graphs[-1], _TUNING_SECONDS)


__all__ = ["Backend", "fusec_backend", "strict"]
