"""One case of the suite: a model, forward or a training step, at one precision, all backends."""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from models import zoo

Tensors = dict[str, torch.Tensor]
MODES = ("forward", "train")
PRECISIONS = ("float32", "bfloat16")
BACKENDS = ("fusec", "inductor")
# Beside three times eager's own error: half a unit in the last place of a few roundings.
FLOOR = {"float32": 2e-5, "bfloat16": 8e-3}


@dataclass
class Outcome:
    """What a backend did with a case.

    Attributes:
        verdict: ``ok``, ``wrong``, ``error``, or ``eager`` if it never compiled anything.
        detail: The worst tensor, or the error.
        error: Largest error of any result against float64, relative to that result's largest value.
        eager_error: Eager's own, for the same result.
        first: Seconds of the first call.
        milliseconds: Median time of a call.
        eager: Eager's, measured in turns with it.
        memory: Peak bytes over eager's (CUDA only), else None.
        counts: Graphs, breaks, kernels, extern calls, graphs in eager.
    """

    verdict: str
    detail: str = ""
    error: float = 0.0
    eager_error: float = 0.0
    first: float = 0.0
    milliseconds: float = 0.0
    eager: float = 0.0
    memory: float | None = None
    counts: dict[str, int] = field(default_factory=dict)


class Case:
    """A model with its reference results.

    Args:
        name: The model's.
        mode: ``forward`` or ``train``.
        precision: ``float32``, or ``bfloat16`` for autocast.
        size: ``small`` or ``real``.
        device: Where to run.
    """

    def __init__(self, name: str, mode: str, precision: str, size: str, device: str) -> None:
        self.mode, self.precision, self.device = mode, precision, device
        model = zoo.build(name, size)
        self.module = _without_dropout(model.module.train(mode == "train")).to(device)
        self.inputs = _to(model.inputs, device)
        self.kwargs = _to(model.kwargs, device)
        # Float64 is the truth that both eager and the compilers are measured against.
        exact = copy.deepcopy(self.module).double()
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
        enabled = self.precision == "bfloat16" and not double
        with (
            torch.autocast(self.device, torch.bfloat16, enabled=enabled),
            torch.set_grad_enabled(self.mode == "train"),
        ):
            yield

    # -- a backend --------------------------------------------------------------------------

    def outcome(self, backend: str, *, timed: bool, rounds: int = 15) -> Outcome:
        """Compile with a backend, compare, and time it in turns with eager."""
        torch._dynamo.reset()
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
            return Outcome("error", f"{type(error).__name__}: {lines[0]}")
        outcome = self._judge(found)
        outcome.first = first
        outcome.counts = _counts(backend, compiled[0])
        if outcome.verdict == "ok" and not outcome.counts["graphs"]:
            outcome.verdict = "eager"
        if timed and outcome.verdict != "wrong":
            outcome.milliseconds, outcome.eager = self._times(call, module, rounds)
            outcome.memory = self._memory(call, module)
        return outcome

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

    def _times(
        self, call: Callable[..., Any], module: nn.Module, rounds: int
    ) -> tuple[float, float]:
        plain, plain_module = self._fresh(None)
        contenders = [(call, module), (plain, plain_module)]
        seconds: list[list[float]] = [[], []]
        with self._context():
            for turn in range(rounds + 2):
                for index, (function, owner) in enumerate(contenders):
                    self._synchronize()
                    start = time.perf_counter()
                    self._step(function, owner, self.inputs, self.kwargs)
                    self._synchronize()
                    if turn >= 2:
                        seconds[index].append(time.perf_counter() - start)
        fused, eager = (1e3 * statistics.median(values) for values in seconds)
        return fused, eager

    def _memory(self, call: Callable[..., Any], module: nn.Module) -> float | None:
        """Return the peak of a step over that of eager's; None off a GPU."""
        if self.device != "cuda":
            return None
        peaks = []
        plain, plain_module = self._fresh(None)
        for function, owner in ((call, module), (plain, plain_module)):
            owner.zero_grad(set_to_none=True)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            with self._context():
                self._step(function, owner, self.inputs, self.kwargs)
            peaks.append(torch.cuda.max_memory_allocated() - before)
            owner.zero_grad(set_to_none=True)
        return peaks[0] / max(peaks[1], 1)

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
    return {backend: asdict(case.outcome(backend, timed=timed)) for backend in backends}


def _compile(backend: str, module: nn.Module) -> Callable[..., Any]:
    if backend == "fusec":
        import fusec

        return fusec.compile(module)
    return torch.compile(module, backend=backend)  # type: ignore[no-any-return]


def _counts(backend: str, compiled: Any) -> dict[str, int]:
    counters = torch._dynamo.utils.counters
    if backend != "fusec":
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


def _without_dropout(module: nn.Module) -> nn.Module:
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
