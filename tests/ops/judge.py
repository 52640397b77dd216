"""What a backend makes of one case: run it in eager and compiled, compare, and say how it ran."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves

from support.compare import difference

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
SEED = 7
# What AOTAutograd says of gradients of gradients that it made.
_NO_SECOND_GRADIENTS = "does not currently support double backward"
target = "auto"  # what kernels are written in, for the whole of a process


class Run(Protocol):
    """Runs a case from the beginning, with what is to be compiled passed through ``wrap``."""

    def __call__(self, wrap: Wrap, *, exact: bool) -> tuple[Any, Any]:
        """Return the results, and what the inputs and the state are afterwards.

        With ``exact`` everything is computed in float64.
        """


@dataclass(frozen=True)
class Case:
    """Something to be run in eager and compiled.

    Attributes:
        run: Does it.
        program: Returns the text of a Python program that shows what it does; None if there is
            none.
        determined: Whether its inputs say what its results are; if not, shapes are compared.
        asks: Whether torch's own code computes otherwise where it is compiled, whatever the
            backend; what TorchDynamo captures, run in eager, is right as well then.
    """

    run: Run
    program: Callable[[], str] | None = None
    determined: bool = True
    asks: bool = False


@dataclass
class Sample:
    """What a backend did with one sample.

    Attributes:
        verdict: ``ok``; ``float64`` (differs from eager, but is no further from float64 than
            eager is); ``rounding`` (equals eager, or what TorchDynamo captured run in eager, once
            half precision is rounded wherever eager rounds it, which the option
            ``emulate_rounding`` does); ``captured`` (equals what TorchDynamo captured, run in
            eager); ``wrong``; ``error`` (eager did not raise); ``eager`` (compiled, but ran in
            eager after all); ``not compiled`` (nothing reached the backend); ``not captured``
            (TorchDynamo itself fails, or what it captured does in eager too; or AOTAutograd, which
            has no gradients of gradients).  Of what eager
            refuses: ``raises`` (as it should), ``raises another`` (of another class), or
            ``computes``.
        detail: The worst element, or the error.
        kernels: Generated kernels.
        externs: Reasons of its extern calls.
        variant: Of a changed sample, how.
        breaks: Reasons of graph breaks.
        program: A program that shows what is bad.
    """

    verdict: str
    detail: str = ""
    kernels: int = 0
    externs: list[str] = field(default_factory=list)
    variant: str = ""
    breaks: list[str] = field(default_factory=list)
    program: str = ""


BAD = ("wrong", "error", "eager", "timeout", "crash", "computes", "mistranslated")


def judge(case: Case, backend: str, *, dynamic: bool = False) -> Sample | None:
    """Run one case; None where eager refuses it.

    Args:
        case: What to run.
        backend: ``fusec`` or ``inductor``.
        dynamic: Whether every size is symbolic.
    """
    torch.manual_seed(SEED)
    try:
        expected, left = case.run(_plain, exact=False)
    except Exception:
        return None
    graphs: list[Any] = []
    try:
        actual, mine = _compiled(case, backend, graphs, dynamic)
    except Exception as error:
        made = error_of(error)
        if made.verdict == "error" and case.asks:
            _raised_as_captured(made, case, error, dynamic)
    else:
        made = Sample("ok")
        _compare(made, case, (actual, mine), (expected, left))
        _how(made, backend, graphs)
        if made.verdict == "wrong" and backend == "fusec" and case.determined:
            _look_closer(made, case, (actual, mine), (expected, left), dynamic)
    made.breaks = [" ".join(reason.split())[:200] for reason in breaks()]
    return with_program(made, case)


def judge_all(
    cases: Iterable[Case], limit: int, backend: str, *, dynamic: bool = False
) -> list[Sample]:
    """Run the first ``limit`` cases; those that eager refuses are left out.

    What is drawn at random for a case does not hang on the runs of those before it.
    """
    found = []
    for case in islice(cases, limit):
        state = torch.get_rng_state()
        result = judge(case, backend, dynamic=dynamic)
        torch.set_rng_state(state)
        if result is not None:
            found.append(result)
    return found


def must_raise(case: Case, backend: str, *, dynamic: bool = False) -> Sample | None:
    """Run a case that eager refuses; None if it does not."""
    torch.manual_seed(SEED)
    try:
        case.run(_plain, exact=False)
        return None
    except Exception as error:
        refused = error
    graphs: list[Any] = []
    wanted = f"{type(refused).__name__}: {_line(refused)}"
    try:
        _compiled(case, backend, graphs, dynamic)
    except Exception as error:
        cause = getattr(error, "inner_exception", error)
        shown = f"{type(cause).__name__}: {_line(cause)}"
        same = isinstance(cause, type(refused)) or isinstance(refused, type(cause))
        captured = isinstance(error, torch._dynamo.exc.TorchRuntimeError)
        return Sample("raises" if same or captured else "raises another", f"{shown} | {wanted}")
    made = Sample("computes" if graphs else "not compiled", wanted)
    _how(made, backend, graphs)
    made.verdict = "computes"  # also where it falls back: eager itself would have raised
    return with_program(made, case)


def error_of(error: Exception) -> Sample:
    """Return the verdict on an error that eager does not raise."""
    if isinstance(error, torch._dynamo.exc.TorchRuntimeError):
        # TorchDynamo's own fake tensors refuse it, before any backend is asked.
        return Sample("not captured", _line(error)[:200])
    cause = getattr(error, "inner_exception", error)
    if _NO_SECOND_GRADIENTS in str(cause):
        return Sample("not captured", _line(cause)[:200])
    return Sample("error", f"{type(cause).__name__}: {_line(cause)}"[:300])


def with_program(made: Sample, case: Case) -> Sample:
    """Add the program that shows what is bad, if anything is."""
    if made.verdict in BAD and case.program is not None:
        try:
            made.program = case.program()
        except Exception as error:  # the verdict counts, with or without a program
            made.program = f"# no program: {type(error).__name__}: {_line(error)}\n"
    return made


def shown(found: list[Sample | None]) -> int:
    """Print what came of samples; return 1 if any is bad."""
    for sample in found:
        print("eager refuses it" if sample is None else f"{sample.verdict}: {sample.detail}")
    return int(any(sample is not None and sample.verdict in BAD for sample in found))


def breaks() -> list[str]:
    """Return the reasons of TorchDynamo's graph breaks since the last reset."""
    return list(torch._dynamo.utils.counters["graph_break"])


def _compiled(
    case: Case, backend: str, graphs: list[Any], dynamic: bool, *, emulate_rounding: bool = False
) -> tuple[Any, Any]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    own = _backend(backend, graphs, emulate_rounding)

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(call, backend=own, dynamic=dynamic)

    torch.manual_seed(SEED)
    return case.run(wrap, exact=False)


def _compare(made: Sample, case: Case, found: tuple[Any, Any], wanted: tuple[Any, Any]) -> None:
    (actual, mine), (expected, left) = found, wanted
    if not case.determined:
        actual, expected, mine, left = map(_shapes, (actual, expected, mine, left))
    problem = difference(actual, expected)
    if not problem:
        problem = _left_over(mine, left)
    if problem:
        made.detail = problem
        near = case.determined and _is_as_near_to_float64(case, actual, expected)
        made.verdict = "float64" if near else "wrong"


def _look_closer(
    made: Sample, case: Case, found: tuple[Any, Any], wanted: tuple[Any, Any], dynamic: bool
) -> None:
    """Say so if a difference is one of rounding in between, or of what TorchDynamo captured.

    Both together, too: rounded wherever eager rounds, it is what was captured, run in eager.
    """
    try:
        rounded = _compiled(case, "fusec", [], dynamic, emulate_rounding=True)
    except Exception:
        rounded = None
    if rounded is not None and _same(rounded, wanted):
        made.verdict = "rounding"
    elif case.asks:
        captured = _compiled(case, "eager", [], dynamic)
        if _same(found, captured):
            made.verdict = "captured"
        elif rounded is not None and _same(rounded, captured):
            made.verdict = "rounding"


def _same(found: tuple[Any, Any], wanted: tuple[Any, Any]) -> bool:
    return not difference(found[0], wanted[0]) and not _left_over(found[1], wanted[1])


def _raised_as_captured(made: Sample, case: Case, error: Exception, dynamic: bool) -> None:
    """Say so if what TorchDynamo captured raises the same where eager does no more than run it."""
    try:
        _compiled(case, "eager", [], dynamic)
    except Exception as captured:
        causes = [getattr(each, "inner_exception", each) for each in (error, captured)]
        if type(causes[0]) is type(causes[1]) and str(causes[0]) == str(causes[1]):
            made.verdict = "not captured"


def _how(made: Sample, backend: str, graphs: list[Any]) -> None:
    """Add what came of the graphs."""
    if backend == "fusec":
        made.kernels = sum(len(graph.kernels) for graph in graphs)
        made.externs = [f"{e.name}: {e.reason}" for graph in graphs for e in graph.externs]
    elif calls := torch._dynamo.utils.counters["inductor"]["extern_calls"]:
        made.externs = [f"{calls} calls"]
    if made.verdict != "ok":
        return
    if not graphs:
        made.verdict = "not compiled"
    elif backend == "fusec" and any(graph.fallback for graph in graphs):
        made.verdict = "eager"
        made.detail = next(graph.fallback for graph in graphs if graph.fallback)


def _backend(name: str, graphs: list[Any], emulate_rounding: bool) -> Callable[..., Any]:
    if name == "fusec":
        from fusec.capture.backend import Backend
        from fusec.options import Options

        rounding = emulate_rounding
        own = Backend(Options(target=target, eager_random=True, emulate_rounding=rounding))
        own.graphs = graphs
        return own

    compile_peer = torch._dynamo.lookup_backend(name)

    def peer(module: Any, inputs: Any, **options: Any) -> Any:
        graphs.append(module)
        return compile_peer(module, inputs, **options)

    return peer


def _plain(call: Callable[..., Any]) -> Callable[..., Any]:
    return call


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]


def _shapes(results: Any) -> list[str]:
    tensors = [t for t in tree_leaves(results) if isinstance(t, torch.Tensor)]
    return [f"{t.dtype} {tuple(t.shape)}" for t in tensors]


def _left_over(mine: Any, eagers: Any) -> str:
    """Return how an input differs, after the call, from what eager left: mostly as it was."""
    pairs = zip(tree_leaves(mine), tree_leaves(eagers), strict=True)
    tensors = [(a, b) for a, b in pairs if isinstance(a, torch.Tensor) and a.layout == b.layout]
    problems = [difference(a.detach(), b.detach()) for a, b in tensors]
    return next((f"an input, after the call: {text}" for text in problems if text), "")


def _is_as_near_to_float64(case: Case, actual: Any, expected: Any) -> bool:
    """Whether the results are at most twice as far from float64 as eager's, and a rounding.

    Each element as eager's own, or as eager's of that tensor are in the mean (their root mean
    square): an element that eager happens to get right says nothing of how exact a sum is that
    nearly cancels.
    """
    torch.manual_seed(SEED)
    try:
        exact, _ = case.run(_plain, exact=True)
    except Exception:
        return False
    triples = list(zip(*map(tree_leaves, (actual, expected, exact)), strict=False))
    if not triples or len(tree_leaves(actual)) != len(tree_leaves(expected)):
        return False
    for got, plain, truth in triples:
        if not isinstance(got, torch.Tensor) or not (got.is_floating_point() or got.is_complex()):
            if difference(got, plain):
                return False
            continue
        if got.shape != truth.shape or got.dtype != plain.dtype or got.layout != torch.strided:
            return False
        rounding = torch.finfo(got.dtype).eps
        wide = torch.complex128 if got.is_complex() else torch.float64
        got, plain, truth = got.to(wide), plain.to(wide), truth.to(wide)
        errors = [(each - truth).abs() for each in (got, plain)]
        same = (got == plain) | (got.isnan() & plain.isnan())
        finite = errors[1][errors[1].isfinite()]
        usual = finite.square().mean().sqrt() if finite.numel() else 0.0
        allowed = 2 * errors[1].clamp(min=usual) + rounding * truth.abs()
        # Where eager overflowed on the way and float64 did not, finite is right.
        better = truth.isfinite() & ~plain.isfinite() & (errors[0] <= 1e-2 * truth.abs())
        if not bool((same | (errors[0] <= allowed) | better).all()):
            return False
    return True


__all__ = [
    "BAD",
    "SEED",
    "Case",
    "Run",
    "Sample",
    "Wrap",
    "breaks",
    "judge",
    "judge_all",
    "must_raise",
    "shown",
]
