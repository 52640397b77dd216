"""``python -m models.frozen``: every model precompiled in one process and run frozen in another.

The second process compiles nothing: what would have to be compiled is an error. Its results are
compared there with eager's, by how far both are from float64's: a gradient that is zero by its
formula is rounding in either. The table says how long the first call takes over a later one.
``--form`` compiles what calls the model in place of the model itself.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fusec
from models import zoo
from models.case import without_dropout

_TOLERANCE = 3e-4  # of the largest value; a small model in float32


class _Server:
    """What serves a model: by a method, or by being called."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def serve(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    __call__ = serve


def _function(module: nn.Module) -> Callable[..., Any]:
    def step(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    return step


def _called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


# What is compiled: the model, or something that calls it.
_FORMS: dict[str, Callable[[nn.Module], Callable[..., Any]]] = {
    "module": lambda module: module,
    "function": _function,
    "lambda": lambda module: lambda *args, **kwargs: module(*args, **kwargs),  # noqa: PLW0108
    "partial": lambda module: functools.partial(_called, module),
    "method": lambda module: _Server(module).serve,
    "object": _Server,
}


def main() -> int:
    """Run; returns 1 if a model was wrong, or compiled something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="all by default")
    parser.add_argument("--train", action="store_true", help="with gradients")
    parser.add_argument("--form", choices=_FORMS, default="module", help="what is compiled")
    parser.add_argument("--size", choices=zoo.SIZES, default="small")
    parser.add_argument("--timeout", type=float, default=200, help="seconds a process")
    parser.add_argument("--report", type=Path, default=Path("build/frozen.json"))
    parser.add_argument("--child", choices=("precompile", "frozen"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        work = _precompile if options.child == "precompile" else _frozen
        print(json.dumps(work(options)), file=sys.__stdout__)
        return 0
    options.report.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(options.report.read_text()) if options.report.exists() else {}
    for name in options.models or zoo.names():
        if name not in found:
            with tempfile.TemporaryDirectory() as cache:
                first = _child(options, name, "precompile", cache)
                second = _child(options, name, "frozen", cache)
            found[name] = {"precompile": first, "frozen": second}
            options.report.write_text(json.dumps(found, indent=1))
        print(_row(name, found[name]), flush=True)
    return any(each["frozen"].get("verdict") != "ok" for each in found.values())


def _child(options: argparse.Namespace, name: str, work: str, cache: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "models.frozen", name, "--child", work]
    command += ["--form", options.form, "--size", options.size]
    command += ["--train"] if options.train else []
    patience: float = options.timeout
    try:
        done = subprocess.run(
            command,
            check=False,
            env=os.environ | {"FUSEC_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            timeout=patience,
        )
        return json.loads(done.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]
    except subprocess.TimeoutExpired:
        return {"verdict": f"over {patience:.0f} s"}
    except (IndexError, ValueError):
        lines = done.stderr.strip().splitlines() or ["nothing said"]
        first = next((n for n, each in enumerate(lines) if "FrozenMiss" in each), len(lines) - 1)
        return {"verdict": " ".join(lines[first:])[:400]}


def _precompile(options: argparse.Namespace) -> dict[str, Any]:
    model, module = _build(options)
    compiled = fusec.compile(_FORMS[options.form](module), dynamic=False)
    with torch.set_grad_enabled(options.train):
        started = time.perf_counter()
        compiled(*model.inputs, **model.kwargs)
        kept = compiled.keep(model.inputs, model.kwargs)
        seconds = time.perf_counter() - started
    return {
        "verdict": kept.problem or "ok",
        "seconds": seconds,
        "graphs": len(compiled.graphs),
        "kernels": len(compiled.kernels),
    }


def _build(options: argparse.Namespace) -> tuple[zoo.Model, nn.Module]:
    model = zoo.build(options.models[0], options.size)
    for part in model.module.modules():
        # The draft report names the warning that transformers logs of it as a graph break.
        if hasattr(type(part), "loss_function") and getattr(part, "loss_type", None) is None:
            part.loss_type = "ForCausalLM"  # type: ignore[assignment]  # what it then takes
    return model, without_dropout(model.module.train(options.train))


def _frozen(options: argparse.Namespace) -> dict[str, Any]:
    model, module = _build(options)
    other, exact = copy.deepcopy(module), copy.deepcopy(module).double()

    def step(
        call: Callable[..., Any], owner: nn.Module, dtype: torch.dtype = torch.float32
    ) -> list[torch.Tensor]:
        found = _tensors(call(*_as(model.inputs, dtype), **_as(model.kwargs, dtype)))
        if options.train:
            owner.zero_grad(set_to_none=True)
            found[0].float().square().mean().backward()
            found += [p.grad for p in owner.parameters() if p.grad is not None]
        return [each.detach().clone() for each in found]

    with torch.set_grad_enabled(options.train):
        expected = step(other, other)
        try:
            reference = step(exact, exact, torch.float64)
        except RuntimeError:  # it makes tensors of float32 itself
            reference = expected
        compiled = fusec.compile(_FORMS[options.form](module), dynamic=False)
        times = []
        with fusec.frozen():
            for _ in range(4):
                begun, used = time.perf_counter(), time.process_time()
                result = step(compiled, module)
                times.append((time.perf_counter() - begun, time.process_time() - used))
                if len(times) == 1:
                    first = result
    rows = zip(first, expected, reference, strict=True)
    worst = max((_error(*row) for row in rows if row[0].is_floating_point()), default=0.0)
    return {
        "verdict": "ok" if worst <= _TOLERANCE else f"wrong by {worst:.1e}",
        "seconds": times[0][0] - min(t[0] for t in times[1:]),
        "processor": times[0][1] - min(t[1] for t in times[1:]),
        "error": worst,
        "compiled": len(compiled.graphs),
    }


def _error(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> float:
    """Return how much further than eager's a result is from the right one, beside its largest."""
    if not exact.numel():
        return 0.0
    own, others = (float((each - exact).abs().max()) for each in (found, eager))
    return max(0.0, own - 4 * others) / max(float(exact.abs().max()), 1e-6)


def _as(value: Any, dtype: torch.dtype) -> Any:
    """Return arguments with floating-point tensors of a type."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _as(each, dtype) for name, each in value.items()}
    return (
        type(value)(_as(each, dtype) for each in value) if type(value) in (tuple, list) else value
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [t for each in value for t in _tensors(each)] if isinstance(value, (tuple, list)) else []


def _row(name: str, found: dict[str, Any]) -> str:
    first, second = found["precompile"], found["frozen"]
    cells = [
        name,
        f"{first['seconds']:.1f}" if "seconds" in first else "",
        str(first.get("kernels", "")),
        f"{second['seconds']:.2f} ({second['processor']:.2f})" if "seconds" in second else "",
        second["verdict"] if first["verdict"] == "ok" else first["verdict"],
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
