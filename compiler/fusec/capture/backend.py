"""The TorchDynamo backend: every captured graph goes through AOTAutograd and our pipeline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext

from fusec.call import native
from fusec.capture import aot, cache_artifacts
from fusec.capture.dynamo import (
    class_guards,
    limited_deques,
    number_arithmetic,
    number_texts,
    optimizer_guards,
    parameter_guards,
    quiet_dynamo,
    same_tensor,
    whole_calls,
)
from fusec.capture.dynamo.device_guard import keep_device_guard
from fusec.capture.dynamo.own_tracing import own_tracing
from fusec.capture.dynamo.said_once import install as install_said_once
from fusec.capture.dynamo.side_effects import install as install_effects
from fusec.capture.eager_reasons import GraphCall, reason_after, reason_before, reason_of_failure
from fusec.capture.fast_path.direct import (
    analyze_no_operators,
    wraps_no_more,
)
from fusec.capture.fast_path.recorded import recorded_call, recorded_plan
from fusec.capture.frozen_calls import refuse_capture
from fusec.capture.gradients.result_modes import ResultModes, result_modes
from fusec.capture.gradients.second_gradients import refuse_second_gradients
from fusec.capture.gradients.unasked import leave_unasked
from fusec.capture.graph_compiler import GraphCompiler, Orders, graph_stage
from fusec.capture.inputs.attention_numbers import install as install_numbers
from fusec.capture.inputs.graph_inputs import (
    input_names,
    input_sources,
)
from fusec.capture.inputs.list_inputs import Flat, has_lists
from fusec.capture.inputs.number_inputs import as_given
from fusec.capture.number_restarts import (
    forget_numbers,
)
from fusec.capture.transforms_left import transforms_left
from fusec.capture.tuned_calls import TunedCalls
from fusec.compiled.graph import CompiledGraph
from fusec.devices import GPU
from fusec.errors import BadOption
from fusec.gc_pause import Rest
from fusec.graph.pipeline import check_without
from fusec.options import Options

# torch keeps the assertion that has a message, and drops the one without as nobody reads it; so
# does torch 2.11 with the check of what a factorization found.
fx.node.has_side_effect(torch.ops.aten._assert_async.default)
fx.node.has_side_effect(torch.ops.aten._linalg_check_errors.default)
cache_artifacts.install()
install_effects()
install_numbers()
quiet_dynamo.install()
same_tensor.install()
install_said_once()
class_guards.install()
limited_deques.install()
number_arithmetic.install()
number_texts.install()
whole_calls.install()  # before anything is captured: this module is what names the backend
keep_device_guard()
parameter_guards.install()
optimizer_guards.install()


class Backend:
    """One user's compiler: what ``torch.compile(backend=...)`` calls for each captured graph.

    Attributes:
        options: How to compile.
        graphs: Every graph compiled so far, in order.
        every: The same with those of the parts that others compile.
        clock: When the work that is not the compiler's ended; capture is timed from there.
        builds: Whether kernels are built; where not, they are only written, nothing can be run,
            and whoever asked looks at ``graphs``.
    """

    builds = True

    # TorchDynamo compares backends by this when a function is compiled twice.
    _torchdynamo_orig_callable = None

    def __init__(self, options: Options, beside: Backend | None = None) -> None:
        """Make one.

        Args:
            options: How to compile.
            beside: Another one, of whose function this one compiles a part: graphs are numbered
                together, and kernels have different names.
        """
        check_without(options.without)
        if self.builds:
            native.prepare_memory()
        if self.builds and torch.cuda.is_initialized():
            # what compiles is ready by the time that something is captured
            (options.asked or options.target_for(GPU)).prepare()
        self.options = options
        self.graphs: list[CompiledGraph] = []
        self.clock = time.perf_counter()
        self.every: list[CompiledGraph] = [] if beside is None else beside.every
        self._taken: set[str] = set() if beside is None else beside._taken
        # of the type that threading.RLock() makes, which is a function to the type checker
        self._lock: Any = threading.RLock() if beside is None else beside._lock

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
        example_inputs = as_given(module, example_inputs)
        if has_lists(example_inputs):
            flat = Flat(module)
            if not has_lists(given := flat.pick(example_inputs)):
                return flat.call(self(flat.module, given))
        if self.builds:
            refuse_capture()
        with self._lock, own_tracing(), Rest():
            captured = GraphCall(
                module, example_inputs, torch.is_grad_enabled(), self.options.eager_random
            )
            return self._compile(captured)

    def _compile(self, captured: GraphCall) -> Callable[..., Any]:
        started, module = time.perf_counter(), captured.module
        graph = CompiledGraph(f"graph {len(self.every)}", module, self.options.keep_inputs)
        graph.traced = tuple(TracingContext.get_traced_code() or ())
        graph.input_names, graph.input_sources = input_names(module), input_sources(module)
        self.graphs.append(graph)
        self.every.append(graph)
        stages = [graph_stage("capture", max(started - self.clock, 0.0), module)]
        put_off = None if self.builds else self.put_off
        orders = Orders(self.options, self._taken, self._lock, put_off)
        try:
            reason = reason_before(captured)
            if not reason:
                compiler = GraphCompiler(orders, graph, stages, graph.input_names)
                with transforms_left():
                    graph.compiled = compiler.compile(captured.inputs)
                analyze_no_operators(graph.compiled)
                reason = reason_after(captured, compiler.views_of_updated, compiler.returns_a_base)
        except BaseException as error:
            reason = reason_of_failure(captured, error)
            if not reason:
                self.graphs.remove(graph)
                self.every.remove(graph)
                raise
        finally:
            graph.stages = tuple(stages)
            self.clock = time.perf_counter()
        forget_numbers()
        if reason:
            graph.run_in_eager(reason)
        if reason or not self.builds:
            return graph
        graph.hold()
        modes = result_modes(module, captured.records)
        if graph.compiled is not None:
            leave_unasked(graph.compiled, module, compiler.joint)
            refuse_second_gradients(graph.compiled)
        _take_shortcuts(graph, compiler, modes)
        native.prepare()  # not earlier: where it has to be built, that takes a compiler's time
        return graph.entry()


def _take_shortcuts(graph: CompiledGraph, compiler: GraphCompiler, modes: ResultModes) -> None:
    """Have calls of a graph go past AOTAutograd's wrappers as far as these have nothing to do."""
    assert graph.compiled is not None
    direct = compiler.direct
    if any(part.changes_some_of(compiler.sharing, compiler.inputs) for part in graph.parts):
        graph.run_in_eager(_SHARED)
    elif modes and (not modes.only_inference or direct is None or graph.fallback):
        graph.compiled = modes.around(graph.compiled, graph.eager)
    elif graph.fallback:
        return
    elif direct is not None and wraps_no_more(graph.compiled, direct):
        graph.bypass(
            direct,
            converts=compiler.autocast and direct.calls_operators,
            records=compiler.would_record and direct.calls_operators,
            inference=modes.inference,
        )
        return
    elif modes:
        graph.compiled = modes.around(graph.compiled, graph.eager)
    elif direct is None and compiler.forward is not None:
        graph.recorded_plan = plan = recorded_plan(graph.compiled)
        if plan is not None:
            graph.record(recorded_call(graph.compiled, plan, compiler.forward, graph.run_captured))
    if direct is not None:
        direct.forget_epilogue()


_SHARED = "it updates an input that shares memory with another one"

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


fusec_backend.is_fusecs = True  # type: ignore[attr-defined]  # for capture/dynamo/quiet_dynamo.py


__all__ = ["Backend", "fusec_backend"]
