"""Tuning a kernel within its compiled graph: the pieces of ``tuner`` put together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from fusec.cache import CacheStore, default_store
from fusec.call.runnable import build_runnable
from fusec.devices import CPU, is_gpu
from fusec.kernel import Kernel, KernelHost
from fusec.kernel_source import Runnable
from fusec.report import Verdict
from fusec.target_api.base import LibraryTarget, PythonTarget
from fusec.target_api.registry import find_target
from fusec.timing.measure import Call, interleave_series
from fusec.tune.prospects import DeviceForesight, Gpu, Prospect
from fusec.tune.records import machine, tuning_key
from fusec.tune.tuner import tune_kernel
from fusec.tuning_report import TuningRun
from fusec.verify.isolation.sandbox import run_candidate
from fusec.verify.timing import fresh_tensors, restore


def tune_in_graph(
    host: KernelHost,
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    sizes: Sequence[int],
    *,
    budget: float,
    progress: Callable[[TuningRun], None] | None = None,
    stop: threading.Event | None = None,
    build: Callable[[Kernel, str], Runnable] | None = None,
    store: CacheStore | None = None,
    eager: Call | None = None,
    eager_is_whole: bool = False,
    thorough: bool = False,
) -> TuningRun:
    """Search a kernel's plans and tunables on the given inputs and put the best in use.

    Args:
        host: The graph, for checking.
        kernel: The kernel.
        tensors: Its arguments, none of which is changed.
        sizes: Its symbolic sizes.
        budget: Seconds.
        progress: Called after each trial.
        stop: Set it to end the search.
        build: Builds a text without putting it in use; called from several threads.
        store: Where the record goes; the process's default store if None.
        eager: The same work in eager, or the whole graph's.
        eager_is_whole: Whether it is the whole graph's.
        thorough: Try every configuration, whatever is known of it, while there is time.
    """
    given = fresh_tensors(kernel.signature, tensors)
    put_back = restore(kernel.signature, given, tensors)
    device = given[0].device if given else torch.device(CPU)
    target, on_gpu = find_target(kernel.target), is_gpu(device)
    measure = partial(
        interleave_series,
        min_samples=5,
        before=put_back,
        device=device.type,
        flush_l2=on_gpu,
    )

    build_one = build or build_runnable
    # Processes of their own compile for a GPU, which has nothing to do with that.
    helpers = target if isinstance(target, PythonTarget) and on_gpu and not sizes else None
    workers = helpers.workers() if helpers is not None else 0

    def build_text(text: str) -> Call:
        if helpers is not None and workers:
            helpers.precompile(text, kernel.signature, kernel.generated.entry)
        runnable = build_one(kernel, text)
        if on_gpu and not workers:
            # Triton compiles at the first launch: here, beside others, rather than timed.
            runnable(given, sizes)
        return _Bound(runnable, given, sizes)

    guard = partial(_run_alone, kernel, tensors=tensors, sizes=sizes)
    foresight = None
    if on_gpu and target.gpu_model:
        foresight = _OfCalls(DeviceForesight(kernel, given, sizes, Gpu.of(device)))
    # The generated kernel is right for all the choices that it declares; whether an edited one
    # is, nobody knows, and it is about to run in this process.
    edited = kernel.state == "edited"
    return tune_kernel(
        kernel,
        build_text=build_text,
        measure=measure,
        check=lambda text: host.check(kernel, text, timed=False),
        check_each=guard if edited else None,
        check_plan=guard,
        budget=budget,
        progress=progress,
        stop=stop,
        store=store or default_store(),
        key=tuning_key(kernel, sizes, device),
        description=machine(device),
        eager=eager,
        eager_is_whole=eager_is_whole,
        foresight=foresight,
        thorough=thorough,
        builds=2 * workers,
        overlap=workers > 0,
    )


def _run_alone(
    kernel: Kernel, text: str, *, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
) -> Verdict:
    """Run a text for a kernel in a worker process, where it cannot hurt."""
    target, library = find_target(kernel.target), None
    if isinstance(target, LibraryTarget):
        library = target.compile(text, flags=kernel.generated.flags, edited=True)
    result = run_candidate(
        target=kernel.target,
        text=text,
        entry=kernel.generated.entry,
        signature=kernel.signature,
        library=library,
        tensors=tensors,
        sizes=sizes,
    )
    return Verdict(result.ok, result.stage, result.reason, result.line)


@dataclass(frozen=True)
class _Bound:
    """A kernel with what it is tuned for."""

    runnable: Runnable
    tensors: Sequence[torch.Tensor]
    sizes: Sequence[int]

    def __call__(self) -> None:
        self.runnable(self.tensors, self.sizes)


class _OfCalls:
    """``DeviceForesight`` for what ``build_text`` returns."""

    def __init__(self, foresight: DeviceForesight) -> None:
        self.before: Callable[[str], Prospect] = foresight.before
        self._after = foresight.after

    def after(self, call: Call) -> Prospect:
        assert isinstance(call, _Bound)
        return self._after(call.runnable)
