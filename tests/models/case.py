"""One case of the suite: a model, forward or a training step, at one precision, all backends."""

from __future__ import annotations

import contextlib
import copy
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from fusec.call import native
from models import zoo

Tensors = dict[str, torch.Tensor]
Contender = tuple[Callable[..., Any], nn.Module]
MODES = ("forward", "train")
PRECISIONS = ("float32", "bfloat16", "float16")
# With CUDA graphs: fusec's option of that name, TorchInductor's mode "reduce-overhead".
BACKENDS = ("fusec", "inductor", "fusec-graphs", "inductor-graphs")
# Beside three times eager's own error: half a unit in the last place of a few roundings.
FLOOR = {"float32": 2e-5, "bfloat16": 8e-3, "float16": 1e-3}


@dataclass
class Outcome:
    """What a backend did with a case.

    Attributes:
        verdict: ``ok``, ``wrong``, ``error``, or ``eager`` if it never compiled anything.
        detail: The worst tensor, or the error.
        error: Largest error of any result against float64, relative to that result's largest value.
        eager_error: Eager's own, for the same result.
        first: Seconds of the first call.
        warm: Of the first call of a second process, over the caches of the one before it.
        milliseconds: Median time of a call.
        eager: Eager's, measured in turns with it.
        busy: Milliseconds of a call in which the GPU's kernels run (CUDA only), else 0.
        eager_busy: Eager's.
        memory: Peak bytes over eager's (CUDA only), else None.
        counts: Graphs, breaks, kernels, extern calls, graphs in eager.
    """

    verdict: str
    detail: str = ""
    error: float = 0.0
    eager_error: float = 0.0
    first: float = 0.0
    warm: float | None = None
    milliseconds: float = 0.0
    eager: float = 0.0
    busy: float = 0.0
    eager_busy: float = 0.0
    memory: float | None = None
    counts: dict[str, int] = field(default_factory=dict)


class Case:
    """A model with its reference results.

    Args:
        name: The model's.
        mode: ``forward`` or ``train``.
        precision: ``float32``, or ``bfloat16`` or ``float16`` for autocast.
        size: ``small`` or ``real``.
        device: Where to run.
    """

    def __init__(self, name: str, mode: str, precision: str, size: str, device: str) -> None:
        self.mode, self.precision, self.device = mode, precision, device
        model = zoo.build(name, size)
        self.module = without_dropout(model.module.train(mode == "train")).to(device)
        self.inputs = _to(model.inputs, device)
        self.kwargs = _to(model.kwargs, device)
        # Float64 is the truth that both eager and the compilers are measured against.
        exact = _in_float64(self.module)
        self.truth = self._run(exact, exact, double=True)
        self.eager = self._run(*self._fresh(None))
        self.initial = copy.deepcopy(self.module.state_dict())

    def _fresh(
        self, wrap: Callable[[nn.Module], Callable[..., Any]] | None
    ) -> tuple[Callable[..., Any], nn.Module]:
        module = copy.deepcopy(self.module)
        return (wrap(module) if wrap is not None else module), module

    def _run(self, call: Callable[..., Any], module: nn.Module, *, double: bool = False) -> Tensors:
        """Run once; return outputs, gradients and buffers by name."""
        inputs, kwargs = self.inputs, self.kwargs
        if double:
            inputs, kwargs = _to(inputs, torch.float64), _to(kwargs, torch.float64)
        with self._context(double):
            outputs = self._step(call, module, inputs, kwargs)
        found = {f"output {index}": value for index, value in enumerate(outputs)}
        if self.mode == "train":
            grads = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
            found |= {f"grad of {name}": grad for name, grad in grads.items()}
            found |= {f"buffer {name}": value for name, value in module.named_buffers()}
        return {name: value.detach().clone() for name, value in found.items()}

    def _step(
        self, call: Callable[..., Any], module: nn.Module, inputs: Any, kwargs: Any
    ) -> tuple[torch.Tensor, ...]:
        result = call(*inputs, **kwargs)
        outputs = result if isinstance(result, tuple) else (result,)
        if self.mode == "train":
            module.zero_grad(set_to_none=True)
            loss = outputs[0] if not outputs[0].dim() else outputs[0].float().square().mean()
            loss.backward()
        return outputs

    @contextlib.contextmanager
    def _context(self, double: bool = False) -> Iterator[None]:
        enabled = self.precision != "float32" and not double
        dtype = getattr(torch, self.precision) if enabled else torch.bfloat16
        with (
            torch.autocast(self.device, dtype, enabled=enabled),
            torch.set_grad_enabled(self.mode == "train"),
        ):
            yield

    # -- the backends -----------------------------------------------------------------------

    def outcomes(
        self, backends: Sequence[str], *, timed: bool, rounds: int = 15
    ) -> dict[str, Outcome]:
        """Compile with each backend, compare each, and time them all in turns with eager."""
        torch._dynamo.reset()
        native.types(wait=True)  # built once a machine
        found: dict[str, Outcome] = {}
        contenders: dict[str, Contender] = {}
        for backend in backends:
            found[backend], contender = self._compiled(backend)
            if contender is not None and found[backend].verdict != "wrong":
                contenders[backend] = contender
        if timed:
            with _alone(self.device):
                self._time(found, contenders, rounds)
        return found

    def _compiled(self, backend: str) -> tuple[Outcome, Contender | None]:
        """Make the first call and compare its results."""
        torch._dynamo.utils.counters.clear()
        compiled: list[Any] = []

        def wrap(module: nn.Module) -> Callable[..., Any]:
            compiled.append(_compile(backend, module))
            return compiled[0]

        call, module = self._fresh(wrap)
        try:
            start = time.perf_counter()
            found = self._run(call, module)
            self._synchronize()
            first = time.perf_counter() - start
        except Exception as error:  # what a compiler may raise is anything
            error = getattr(error, "inner_exception", error)
            lines = str(error).strip().splitlines() or [""]
            return Outcome("error", f"{type(error).__name__}: {lines[0]}"), None
        outcome = self._judge(found)
        outcome.first = first
        outcome.counts = _counts(backend, compiled[0])
        if outcome.verdict == "ok" and not outcome.counts["graphs"]:
            outcome.verdict = "eager"
        return outcome, (call, module)

    def _judge(self, found: Tensors) -> Outcome:
        """Compare with float64, beside eager's own error."""
        worst = Outcome("ok")
        floor = FLOOR[self.precision]
        if found.keys() != self.eager.keys():
            return Outcome("wrong", f"other results: {sorted(found.keys() ^ self.eager.keys())}")
        for name, truth in self.truth.items():
            got, plain = found[name], self.eager[name]
            if got.dtype != plain.dtype or got.shape != plain.shape:
                text = f"{name}: {got.dtype} {tuple(got.shape)}"
                return Outcome("wrong", f"{text}, eager {plain.dtype} {tuple(plain.shape)}")
            if not truth.is_floating_point():
                if not torch.equal(got, plain):
                    return Outcome("wrong", f"{name} differs from eager")
                continue
            scale = max(truth.abs().max().item(), 1e-3) if truth.numel() else 1.0
            errors = [_distance(value, truth) / scale for value in (got, plain)]
            if not errors[0] <= 3 * errors[1] + floor:
                return Outcome("wrong", name, *errors)
            if errors[0] >= worst.error:
                worst = Outcome("ok", name, *errors)
        return worst

    def _time(
        self, found: dict[str, Outcome], contenders: dict[str, Contender], rounds: int
    ) -> None:
        """Fill in times, in turns with eager's, peak memory and how long the GPU is at work."""
        entered = {"eager": self._fresh(None)} | contenders
        seconds: dict[str, list[float]] = {name: [] for name in entered}
        with self._context():
            for turn in range(rounds + 3):  # the first three settle: graphs, clocks
                for name, contender in entered.items():
                    self._synchronize()
                    start = time.perf_counter()
                    self._step(*contender, self.inputs, self.kwargs)
                    self._synchronize()
                    if turn >= 3:
                        seconds[name].append(time.perf_counter() - start)
        times = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
        busy = {name: self._busy(contender) for name, contender in entered.items()}
        peaks = {name: self._peak(contender) for name, contender in entered.items()}
        for name in contenders:
            found[name].milliseconds, found[name].eager = times[name], times["eager"]
            found[name].busy, found[name].eager_busy = busy[name], busy["eager"]
            if self.device == "cuda":
                found[name].memory = peaks[name] / max(peaks["eager"], 1)

    def _busy(self, contender: Contender) -> float:
        """Return for how many milliseconds of a step the GPU's kernels run; 0 off a GPU."""
        if self.device != "cuda":
            return 0.0
        with self._context(), profile(activities=[ProfilerActivity.CUDA]) as recorded:
            self._step(*contender, self.inputs, self.kwargs)
            self._synchronize()
        spans = [e.time_range for e in recorded.events() if e.device_type == DeviceType.CUDA]
        return sum(span.elapsed_us() for span in spans) / 1e3

    def _peak(self, contender: Contender) -> int:
        """Return the bytes that a step takes beyond what was there; 0 off a GPU."""
        if self.device != "cuda":
            return 0
        call, module = contender
        module.zero_grad(set_to_none=True)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with self._context():
            self._step(call, module, self.inputs, self.kwargs)
        peak = torch.cuda.max_memory_allocated() - before
        module.zero_grad(set_to_none=True)
        return peak

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def run_case(
    name: str,
    mode: str,
    precision: str,
    *,
    backends: tuple[str, ...],
    size: str = "small",
    device: str = "cpu",
    timed: bool = True,
) -> dict[str, dict[str, Any]]:
    """Run a case with each backend; returns the fields of an ``Outcome`` by backend."""
    case = Case(name, mode, precision, size, device)
    found = case.outcomes(backends, timed=timed)
    return {backend: asdict(outcome) for backend, outcome in found.items()}


def _compile(backend: str, module: nn.Module) -> Callable[..., Any]:
    name, _, graphs = backend.partition("-")
    if name == "fusec":
        import fusec

        return fusec.compile(module, cuda_graphs=bool(graphs))
    if not graphs:
        return torch.compile(module, backend=name)  # type: ignore[no-any-return]
    replayed = torch.compile(module, mode="reduce-overhead")

    def call(*args: Any, **kwargs: Any) -> Any:
        # Its outputs are overwritten by the next step, which it has to be told of.
        torch.compiler.cudagraph_mark_step_begin()
        return replayed(*args, **kwargs)

    return call


@contextlib.contextmanager
def _alone(device: str) -> Iterator[None]:
    """Keep other cases of this suite from timing on the same GPU meanwhile."""
    if device != "cuda":
        yield
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    with FileLock(Path(tempfile.gettempdir(), f"fuselab-models-{visible}.lock")):
        yield


def _counts(backend: str, compiled: Any) -> dict[str, int]:
    counters = torch._dynamo.utils.counters
    if not backend.startswith("fusec"):
        return {
            "graphs": counters["stats"]["unique_graphs"],
            "breaks": sum(counters["graph_break"].values()),
        }
    graphs = compiled.graphs
    return {
        "graphs": sum(not g.fallback for g in graphs),
        "breaks": len(compiled.breaks),
        "kernels": sum(len(g.kernels) for g in graphs),
        "externs": sum(len(g.externs) for g in graphs),
        "in eager": sum(bool(g.fallback) for g in graphs),
    }


def _distance(value: torch.Tensor, truth: torch.Tensor) -> float:
    """Largest absolute difference; NaN and infinities must agree."""
    if not truth.numel():
        return 0.0
    value = value.double()
    same = (value == truth) | (value.isnan() & truth.isnan())
    return torch.where(same, 0.0, (value - truth).abs()).max().item()


def without_dropout(module: nn.Module) -> nn.Module:
    """Turn dropout off: with it, no two runs of a training step are comparable."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name in ("dropout", "attention_dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return module


def _to(values: Any, where: str | torch.dtype) -> Any:
    if isinstance(values, dict):
        return {name: _to(value, where) for name, value in values.items()}
    if isinstance(values, (tuple, list)):
        return tuple(_to(value, where) for value in values)
    if isinstance(values, torch.Tensor) and (isinstance(where, str) or values.is_floating_point()):
        return values.to(where)
    return values


__all__ = ["BACKENDS", "MODES", "PRECISIONS", "Case", "Outcome", "run_case"]


def _in_float64(module: nn.Module) -> nn.Module:
    """Return a copy in float64, mixtures of experts in a loop: grouped products take no float64."""
    exact = copy.deepcopy(module).double()
    for each in exact.modules():
        choose: Any = getattr(each, "set_experts_implementation", None)
        if choose is not None:
            choose("eager")
    return exact
