"""Holds what ``fusec.predict`` says against what is then built and launched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusec
from fusec.inspect.predict import Prediction, prediction

BUILDERS = ("fusec.build.queue.BuildQueue.begin", "fusec.compiled.part.CompiledPart.build")


@contextlib.contextmanager
def nothing_built() -> Iterator[None]:
    """Fail where something is built or launched."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a prediction builds nothing")

    with pytest.MonkeyPatch.context() as patch:
        for name in BUILDERS:
            patch.setattr(name, refuse)
        yield


def predict(function: Callable[..., Any], *calls: Any) -> Prediction:
    """Predict calls, with nothing built.

    Args:
        function: What is called, or what ``fusec.compile`` returned.
        *calls: The arguments of each.
    """
    with nothing_built():
        return fusec.predict_calls(function, calls)


def launched(compiled: Any) -> list[str]:
    """Return the names of kernels that the host programs launch, as they stand in their text."""
    names = []
    for graph in compiled.graphs:
        for part in graph.parts:
            text = part._traced.text
            names += [name for name in part.kernels if f'"{name}"' in text or f"'{name}'" in text]
    return names


def _torch_refuses(
    function: Callable[..., Any],
    inputs: Callable[[], list[Any]],
    call: Callable[[Callable[..., Any], list[Any]], object],
) -> bool:
    """Whether TorchDynamo and AOTAutograd cannot capture a call with any backend."""
    torch._dynamo.reset()
    try:
        call(torch.compile(function, backend="aot_eager"), inputs())
    except Exception:
        return True
    return False


def differences(
    function: Callable[..., Any],
    inputs: Callable[[], list[Any]],
    call: Callable[[Callable[..., Any], list[Any]], object] | None = None,
    **options: Any,
) -> list[str]:
    """Return what a prediction is wrong in; nothing if it is right, or eager refuses the call.

    Args:
        function: What is predicted, then built.
        inputs: Makes its arguments, the same each time.
        call: Calls it, and asks for gradients where there are some.
        **options: For ``fusec.compile``.
    """
    call = call or (lambda f, args: f(*args))
    try:
        call(function, inputs())
    except Exception:
        return []
    torch._dynamo.reset()
    torch.manual_seed(0)
    given = inputs()
    before = [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in given]
    try:
        said = predict(fusec.compile(function, **options), tuple(given))
    except Exception:
        if _torch_refuses(function, inputs, call):
            return []
        raise
    found = []
    for n, (now, then) in enumerate(zip(given, before, strict=True)):
        strided = isinstance(now, torch.Tensor) and now.layout == torch.strided
        if strided and not torch.equal(now.detach().nan_to_num(), then.nan_to_num()):
            found.append(f"input {n} was changed by the prediction")
    torch._dynamo.reset()
    torch.manual_seed(0)
    compiled = fusec.compile(function, **options)
    call(compiled, inputs())
    is_there = prediction(said.name, compiled)
    backward = {part.graph for part in is_there.parts if part.kind == "backward"}
    parts = [p for p in said.parts if p.kind != "backward" or p.graph in backward]
    if sorted(map(str, parts)) != sorted(map(str, is_there.parts)):
        found.append(f"it said {parts}\nit became {is_there.parts}")
    if said.breaks != is_there.breaks or said.fallbacks != is_there.fallbacks:
        found.append(f"it said {said.breaks} {said.fallbacks}\n{is_there.breaks}")
    if sorted(g.text for g in said.guards) != sorted(g.text for g in is_there.guards):
        found.append(f"it said {said.guards}\nit became {is_there.guards}")
    built = [kernel.name for kernel in compiled.kernels.values()]
    if sorted(launched(compiled)) != sorted(built):
        found.append(f"it launches {launched(compiled)}, it has {built}")
    return found
