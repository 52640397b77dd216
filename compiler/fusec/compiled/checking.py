"""Whether a compiled graph, or an edit of one of its kernels, computes what eager does."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from fusec.call.launch import CppRunnable
from fusec.call.runnable import build_runnable
from fusec.codegen.common.signatures import argument_buffers, body_sizes
from fusec.compiled.calls import GraphCalls
from fusec.compiled.part import CompiledPart
from fusec.graph.simplify.attention_blocks import listed_inputs
from fusec.ir.interpret import Evaluator, run_body
from fusec.kernel import Kernel
from fusec.kernel_source import Runnable, simulation
from fusec.lower.names import in_full, traced_name
from fusec.random import SameNumbers, generators_kept
from fusec.report import Verdict
from fusec.target_api.base import LibraryTarget, PythonTarget
from fusec.target_api.registry import find_target
from fusec.timing.threads import one_thread
from fusec.verify.check import KINDS, Case, check_graph, check_kernel
from fusec.verify.comparison.exact_graph import ExactGraph
from fusec.verify.comparison.graph_outputs import (
    GraphReferences,
    KeptReferences,
    RunDrawn,
    RunGraph,
)
from fusec.verify.comparison.words import praise
from fusec.verify.probation import journal
from fusec.verify.trials.inputs import fresh_inputs
from fusec.verify.trials.references import KeptTrials
from fusec.verify.trials.sampled import sampled
from fusec.verify.trials.small import is_too_slow, smaller


def verify(graph: GraphCalls, *, timed: bool) -> Verdict:
    """Return ``CompiledGraph.verify``."""
    with graph.lock, generators_kept():
        real = graph.copies()
        verdict = _check_on(graph, real, timed)
        if not verdict.ok:
            return verdict
        # Lists of blocks go with each other: no other values would do.
        own = len(graph.held.tensors)
        listed = {place + own for place in listed_inputs(graph.eager.graph)}
        # Nor would they for what it holds: a count of steps, a mean of squares.
        listed |= set(range(own))
        drawn = [v if place not in listed else None for place, v in enumerate(real)]
        given = _with_tensors(drawn, fresh_inputs(_tensors(drawn)))
        fresh = [
            v if place in listed else new
            for place, (v, new) in enumerate(zip(real, given, strict=True))
        ]
        second = _check_on(graph, fresh, False)
        if not second.ok:
            return replace(second, reason=f"on fresh random inputs: {second.reason}")
        return replace(verdict, seconds=verdict.seconds + second.seconds)


@dataclass(frozen=True)
class _Runs:
    """What a graph is compared with, on tensors that take the places of its inputs'.

    Attributes:
        eager: Eager.
        reference: Eager with the kernels' random numbers.
        float64: In float64, of inputs in that type; None where there is no such thing.
        drawn: The same with roundings drawn by chance.
        halves: Whether eager has values of float16 or bfloat16 on the way.
    """

    eager: RunGraph
    reference: RunGraph
    float64: RunGraph | None
    drawn: RunDrawn | None
    halves: bool


def _runs(graph: GraphCalls, inputs: list[Any]) -> _Runs:
    exact = _in_float64(graph)

    def eager(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return _tensors(graph.held.eager(*_with_tensors(inputs, given)))

    def reference(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if not any(part.draws_seed for part in graph.parts):
            return eager(given)
        with SameNumbers():
            return eager(given)

    if exact is None:
        return _Runs(eager, reference, None, None, False)

    def drawn(
        given: Sequence[torch.Tensor],
        seed: int | None = None,
        claimed: Sequence[torch.Tensor] = (),
    ) -> list[torch.Tensor]:
        return _tensors(exact.results(_with_tensors(inputs, given), seed, claimed))

    return _Runs(eager, reference, drawn, drawn, exact.halves)


def _prepare(graph: GraphCalls, kept: KeptReferences) -> None:
    """Work out what the whole graph will be compared with, where that may be used again."""
    takes_seed = _draws(graph) or any(part.draws_seed for part in graph.parts)
    # What a graph holds besides its inputs may be another the next time.
    holds = any(node.op in ("get_attr", "call_module") for node in graph.eager.graph.nodes)
    if takes_seed or holds:
        return
    inputs = graph.copies()
    with torch.set_grad_enabled(graph.records_gradients):
        runs = _runs(graph, inputs)
        kept.prepare(runs.eager, runs.float64, inputs, draws=False)


def _check_on(
    graph: GraphCalls,
    inputs: list[Any],
    timed: bool,
    calls: int | None = None,
    known: GraphReferences | None = None,
) -> Verdict:
    runs = _runs(graph, inputs)

    def fused(given: Sequence[Any]) -> list[torch.Tensor]:
        with graph.keeping_nothing():
            return _tensors(graph.call_copies(*_with_tensors(inputs, given)))

    simulated = any(simulation(kernel.runnable()) for kernel in graph.kernels)
    with torch.set_grad_enabled(graph.records_gradients):
        return check_graph(
            fused,
            runs.eager,
            runs.float64,
            _tensors(inputs),
            names=_output_names(graph),
            input_names=_input_names(graph, inputs),
            timed=timed and not simulated,  # what stands in for a device has times of its own
            reference=runs.reference,
            calls=calls,
            known=known,
            run_drawn=runs.drawn,
            halves=runs.halves,
            draws=_draws(graph),
        )


def _draws(graph: GraphCalls) -> bool:
    """Whether a graph draws from torch's generators, and not only seeds on the CPU."""
    return not graph.parts or any(part.draws for part in graph.parts)


def _input_names(graph: GraphCalls, inputs: Sequence[Any]) -> list[str]:
    """Return what the user calls each tensor that a copy of the graph's call is given."""
    places: list[int | str] = [*graph.held.places]
    places += range(len(inputs) - len(places))
    names = [graph.input_names.get(place, "") for place in places]
    named = zip(names, inputs, strict=True)
    return [name for name, value in named if isinstance(value, torch.Tensor)]


def _output_names(graph: GraphCalls) -> list[str] | None:
    """Return what the user calls each output, where every output is a tensor of the graph."""
    (output,) = (node for node in graph.eager.graph.nodes if node.op == "output")
    values = output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args
    nodes = [value for value in values if isinstance(value, fx.Node)]
    if len(nodes) != len(values) or len({node.name for node in nodes}) != len(nodes):
        return None
    if not all(isinstance(node.meta.get("example_value"), torch.Tensor) for node in nodes):
        return None
    known = {node.name for node in graph.eager.graph.nodes}
    called = [_called(node, known) for node in nodes]
    return [
        name if called.count(name) == 1 else node.name
        for name, node in zip(called, nodes, strict=True)
    ]


def _called(node: fx.Node, known: set[str]) -> str:
    """Return ``y`` for ``y_1``, the second of that name, and a module's for torch's ``input``."""
    base = re.sub(r"_\d+$", "", node.name)
    again = base == "input" or base in known - {node.name}
    return traced_name(node) if again or node.name.startswith("_") else in_full(node.name, node)


def _in_float64(graph: GraphCalls) -> ExactGraph | None:
    """Return what runs the captured graph in float64; None where nothing can."""
    random = any(part.draws_seed for part in graph.parts)
    try:
        return ExactGraph(graph.held.eager, random=random)
    except (RuntimeError, TypeError, AttributeError):
        return None


def check_edit(
    graph: GraphCalls,
    kernel: Kernel,
    text: str,
    kept: KeptTrials,
    kept_references: KeptReferences,
    *,
    timed: bool,
    trust: bool,
    sanitize: bool = False,
) -> Verdict:
    """Check ``text`` for a kernel: guarded worker first, then within the whole graph."""
    with graph.lock, generators_kept():
        part, tensors, sizes = graph.kernel_call(kernel)
        case = Case(tuple(tensors), tuple(sizes), "on the real inputs")
        interpreted = is_too_slow(kernel, case)
        if interpreted:
            # This process and the worker take turns, with tensors for which a thread is enough.
            with one_thread():
                found = _check_small(graph, part, kernel, text, case, trust=trust)
            if found is not None:
                return found
        verdict = check_kernel(
            kernel,
            text,
            cases=[case],
            kinds=("similar",) if interpreted else KINDS,
            build=lambda t: _library(kernel, t),
            interpret=lambda t, s, p: interpret_kernel(part, kernel, t, s, p),
            reorder=lambda t, s, evaluate: interpret_kernel(
                part, kernel, t, s, torch.float64, evaluate
            ),
            generated=build_runnable(kernel, kernel.generated.text),
            timed=timed,
            kept=kept,
            trust=trust,
            sanitize=sanitize,
            meanwhile=None if part.is_backward else lambda: _prepare(graph, kept_references),
        )
        if not verdict.ok or part.is_backward:
            return verdict
        before = kernel.runnable()
        part.link(kernel.name, watched(kernel, text))
        try:
            inputs = graph.copies()
            known = kept_references.find(inputs)
            whole = _check_on(graph, inputs, timed, verdict.calls, known)
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


def _check_small(
    graph: GraphCalls, part: CompiledPart, kernel: Kernel, text: str, case: Case, *, trust: bool
) -> Verdict | None:
    """Check a text for a GPU that is not there at sizes for which an interpreter is quick enough.

    None where there are no such sizes, and a part of its programs says nothing.
    """

    def interpret(
        own: Kernel,
    ) -> Callable[[Sequence[torch.Tensor], Sequence[int], torch.dtype | None], list[torch.Tensor]]:
        return lambda t, s, p: interpret_kernel(part, own, t, s, p)

    def generated(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """Run the generated kernel at these sizes; it is built only where somebody asks."""
        build_runnable(chosen, chosen.generated.text)(tensors, sizes)

    started = time.perf_counter()
    small = smaller(kernel, part.state.scheduled, text, case, interpret)
    chosen = small.kernel if small else kernel
    verdict = check_kernel(
        chosen,
        small.text if small else text,
        cases=[small.case] if small else [],
        # Its own sizes are what Triton's front end is to see.
        build=lambda _: _library(kernel, text),
        interpret=interpret(chosen),
        reorder=lambda t, s, evaluate: interpret_kernel(
            part, chosen, t, s, torch.float64, evaluate
        ),
        generated=generated,
        timed=False,
        trust=trust,
    )
    if not verdict.ok:
        return verdict
    own = sampled(kernel, text, case, interpret(kernel))
    if own is None and small is None:
        return None
    if own is not None and not own.ok:
        verdict = own
    else:
        passed = verdict if small else own
        assert passed is not None
        where = [small.case.label if small else "", own.reason if own else ""]
        reason = (
            f"{praise(passed.outputs, None, None)}; checked {' and '.join(filter(None, where))}"
        )
        verdict = replace(verdict, reason=reason, outputs=passed.outputs)
    return replace(verdict, seconds=time.perf_counter() - started)


def watched(kernel: Kernel, text: str) -> Runnable:
    """Build a text; where a user has written it, a process that ends in a call leaves a note."""
    runnable = build_runnable(kernel, text)
    if isinstance(runnable, CppRunnable) and kernel.is_edit(text):
        found = journal(kernel.name, text)
        if found is not None:
            runnable.watch(found.address)
    return runnable


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
    evaluate: type[Evaluator] = Evaluator,
) -> list[torch.Tensor]:
    """Run a kernel's loop-level IR by eager operators; return what it writes."""
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
    run_body(kernel.body, given, dict(zip(symbols, sizes, strict=True)), precision, evaluate)
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


__all__ = ["check_edit", "interpret_kernel", "verify", "watched"]
