"""The Python face of the compiler: ``fusec.compile`` and what it returns."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import torch

from fusec.ahead.artefact import TakenUp
from fusec.ahead.precompile import Precompilation, Precompiled, precompile_here
from fusec.ahead.record import Recording, recording
from fusec.ahead.signatures import CallSignature
from fusec.capture.dynamo.graph_breaks import error_line
from fusec.compiled_function import ALIVE, CompiledFunction
from fusec.freezing import FrozenMiss
from fusec.graph.losses.linear_cross_entropy import compile_parts
from fusec.inspect.draft import Draft
from fusec.inspect.draft import draft as draft_of
from fusec.inspect.explain import Explanation
from fusec.inspect.planner import Call, Planner
from fusec.inspect.predict import Prediction, prediction
from fusec.options import Options
from fusec.report import SourceLine

if TYPE_CHECKING:
    pass


@overload
def compile(function: Callable[..., Any], **options: Any) -> CompiledFunction: ...
@overload
def compile(
    function: None = None, **options: Any
) -> Callable[[Callable[..., Any]], CompiledFunction]: ...
def compile(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function or a module; also a decorator, with or without options.

    Args:
        function: What to compile; None when used as ``@fusec.compile(dynamic=True)``.
        **options: Fields of ``fusec.Options``.

    Returns:
        A ``CompiledFunction``.

    Raises:
        BadOption: An option that does not exist or a value that it does not take.
    """
    chosen = Options.from_mapping(options)
    if function is None:
        return lambda given: CompiledFunction(given, chosen)
    return CompiledFunction(function, chosen)


def explain(
    function: Callable[..., Any], *args: Any, draft: bool = False, **kwargs: Any
) -> Explanation | Draft:
    """Compile a function, call it once, and report what became of it.

    Args:
        function: A function, a module, or what ``fusec.compile`` returned.
        *args: For the call.
        draft: Report all that stands in the way instead, before anything is built: every graph
            break, size that depends on data or is fixed by the code, side effect, operator without
            a kernel and guard, each with its line and a way to mend it, and what export would need.
        **kwargs: For the call.

    Returns:
        Every graph break and guard with its line and a way to mend it, the kernels, the calls of
        ATen, and what is kept for backward.
    """
    if draft:
        return _draft(function, Call(args, kwargs))
    compiled = function if isinstance(function, CompiledFunction) else compile(function)
    compiled(*args, **kwargs)
    found: Explanation = compiled.explain()
    return found


def _draft(function: Callable[..., Any], call: Call) -> Draft:
    options = function.options if isinstance(function, CompiledFunction) else Options()
    if isinstance(function, CompiledFunction):
        function = function.function
    captured: list[CompiledFunction] = []
    errors: list[tuple[BaseException, SourceLine | None]] = []
    for chosen in (options, replace(options, dynamic=True)):
        planner = Planner(chosen, function)
        planned = CompiledFunction(function, chosen, planner)
        captured.append(planned)
        try:
            planner.run(planned._run, [call])
        except Exception as error:
            if chosen is options:
                errors.append((error, error_line(error)))
    first, symbolic = captured
    return draft_of(first._name(), [first], symbolic, errors)


def predict(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Prediction:
    """Say what a call would become, without building or running a kernel.

    The function is captured, and its kernels are chosen and written, as for a compilation. Where
    Python must run in between (a graph break), what comes before runs in eager, as what comes
    after may depend on it; tensors that are given, and a module's own, are put back afterwards.

    Args:
        function: A function, a module, or what ``fusec.compile`` returned: then with its options.
        *args: For the call.
        **kwargs: Likewise.

    Returns:
        The kernels, what is in each, the bytes that it reads and writes, the calls of ATen, the
        graph breaks, and what must stay true.
    """
    return predict_calls(function, (Call(args, kwargs),))


def predict_calls(
    function: Callable[..., Any], calls: Sequence[Call | tuple[Any, ...]]
) -> Prediction:
    """Say what several calls in a row would become: what the first compiles, what recompiles.

    Args:
        function: As ``predict``.
        calls: The arguments of each call: a tuple, or a ``fusec.inspect.planner.Call``.
    """
    return _predicted(function, calls, to_the_end=False)[0]


def predict_and_run(function: Callable[..., Any], *args: Any) -> tuple[Prediction, Any]:
    """Say what a call would become, and what the captured operators, run in eager, return.

    Who counts kernels can see by it that what was counted is what the function computes.

    Args:
        function: As ``predict``.
        *args: For the call.
    """
    return _predicted(function, (Call(args, {}),), to_the_end=True)


def _predicted(
    function: Callable[..., Any], calls: Sequence[Call | tuple[Any, ...]], *, to_the_end: bool
) -> tuple[Prediction, Any]:
    options = function.options if isinstance(function, CompiledFunction) else Options()
    if isinstance(function, CompiledFunction):
        function = function.function
    planner = Planner(options, function)
    planned = CompiledFunction(function, options, planner)
    given = [call if isinstance(call, Call) else Call(tuple(call), {}) for call in calls]
    planner.run(planned._run, given, to_the_end=to_the_end)
    return prediction(planned._name(), planned), planner.returned


def freeze(compiled: CompiledFunction) -> CompiledFunction:
    """Compile nothing more for a function: a call that nothing fits raises ``FrozenMiss``.

    Its kernels may still be edited; ``compiled.frozen = False`` lets it compile again. A backward
    part that has not run yet counts as not compiled.

    Args:
        compiled: What ``fusec.compile`` returned, and has been called.

    Returns:
        The same.
    """
    compiled.frozen = True
    return compiled


def precompile(
    function: Callable[..., Any],
    signatures: Iterable[CallSignature | tuple[Any, ...] | torch.Tensor],
    *,
    progress: Callable[[int, int, Precompiled], object] | None = None,
    stop: threading.Event | None = None,
    **options: Any,
) -> Precompilation:
    """Compile a function for calls that are known, and keep that for other processes.

    The function is called once for each. What another process needs (guards, TorchDynamo's code,
    the host program, the kernels) goes to the store on disk; ``fusec.compile`` of the same
    function, with the same options, finds it there and captures nothing. A call that cannot be
    kept whole (one that breaks into several graphs, draws random numbers, or has symbolic sizes)
    is captured again there, and finds its kernels built; the result says which and why.

    Args:
        function: A function, a module, or what ``fusec.compile`` returned: then with its options.
        signatures: What the calls are like (``fusec.record`` collects them,
            ``fusec.CallSignature.of`` makes one), or the arguments of one as a tuple.
        progress: Told after each: how many are done, of how many, and what became of it.
        stop: Set it, and no further one is begun.
        **options: Fields of ``fusec.Options``.
    """
    if isinstance(function, CompiledFunction):
        compiled = function
    else:
        compiled = CompiledFunction(function, Options.from_mapping(options))
    compiled._taken = TakenUp()  # what is there already is made anew
    return precompile_here(
        compiled, compiled._name(), list(signatures), progress=progress, stop=stop
    )


@contextlib.contextmanager
def record(function: CompiledFunction | None = None) -> Iterator[Recording]:
    """Collect the signatures of real calls, to precompile for: ``with fusec.record() as calls:``.

    Args:
        function: What ``fusec.compile`` returned; None for every compiled function.
    """
    try:
        with recording(function) as found:
            _choose_routes()
            yield found
    finally:
        _choose_routes()


def _choose_routes() -> None:
    for each in list(ALIVE):
        each._choose_route()


def device_summary() -> str:
    """Return what this process computes on, in a few words."""
    threads = torch.get_num_threads()
    level = torch.backends.cpu.get_cpu_capability()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{threads} CPU thread{'s' if threads != 1 else ''} ({level}), {gpu}"


def _for_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled, but where nothing may be compiled any more."""
    compiled = compile(function, dynamic=False)

    def call(*args: Any) -> Any:
        try:
            return compiled(*args)
        except FrozenMiss:
            return function(*args)

    return call


compile_parts(_for_parts)

__all__ = [
    "compile",
    "device_summary",
    "explain",
    "freeze",
    "precompile",
    "predict",
    "predict_calls",
    "record",
]
