"""Updates of single float64 numbers, which TorchDynamo forgets when it captures a second time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, nop
from torch import fx
from torch._dynamo import symbolic_convert
from torch._functorch._aot_autograd import graph_compile

import fusec
from fusec.capture.number_restarts import looking_for_numbers
from support.calls import strict_calls

__all__ = ["strict_calls"]  # a fixture of every test here

BACKENDS: dict[str, Callable[..., Any]] = {
    "fusec": fusec.compile,
    "torch": lambda function: torch.compile(function, backend="fusec"),
}


def scaled(x: torch.Tensor, y: torch.Tensor) -> None:
    x.mul_(0.9)


def averaged(x: torch.Tensor, y: torch.Tensor) -> None:
    x.mul_(0.9).add_(y)


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x * 2


def added_to_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[None].add_(y)
    return x.exp()


def copied(x: torch.Tensor, y: torch.Tensor) -> None:
    x.copy_(y.sin())


def converted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(0.9)
    return x.float() * y.float()


def gradient_of_converted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda x: x.float().sin() * 3)(x * y)


@pytest.mark.parametrize("function", [converted, gradient_of_converted], ids=lambda f: f.__name__)
def test_a_tensor_made_float32_is_no_python_number(function: Callable[..., Any]) -> None:
    ours = [torch.tensor(2.0, dtype=torch.float64), torch.tensor(3.0, dtype=torch.float64)]
    theirs = [each.clone() for each in ours]
    compiled = fusec.compile(function)
    for _ in range(3):
        torch.testing.assert_close(compiled(*ours), function(*theirs))
        torch.testing.assert_close(ours, theirs)
    assert [graph.fallback for graph in compiled.graphs] == [""]  # it does not run in eager


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "function", [scaled, averaged, added, added_to_a_view, copied], ids=lambda f: f.__name__
)
def test_updates(function: Callable[..., Any], backend: str) -> None:
    ours = [torch.tensor(2.0, dtype=torch.float64), torch.tensor(3.0, dtype=torch.float64)]
    theirs = [each.clone() for each in ours]
    compiled = BACKENDS[backend](function)
    for _ in range(3):
        torch.testing.assert_close(compiled(*ours), function(*theirs))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_python_numbers_beside_them(backend: str) -> None:
    """A number that no tensor is made of has torch ask for another capture."""

    def function(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
        x.mul_(factor)
        return torch.full((int(factor * 2),), 1.0, dtype=torch.float64) * y * factor

    compiled = BACKENDS[backend](function)
    ours, theirs = (torch.tensor(2.0, dtype=torch.float64) for _ in range(2))
    for factor in (1.5, 2.5, 3.5):
        y = torch.tensor(factor, dtype=torch.float64)
        torch.testing.assert_close(compiled(ours, y, factor), function(theirs, y, factor))
        torch.testing.assert_close(ours, theirs)


def test_numbers_of_another_function_are_forgotten() -> None:
    def of_python(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=factor)

    x = torch.randn(1, 1, 8)
    first = fusec.compile(of_python)
    for factor in (1.5, 2.5):
        torch.testing.assert_close(first(x, factor), of_python(x, factor))
    assert symbolic_convert.TensorifyState.empty()
    number = torch.tensor(2.0, dtype=torch.float64)
    fusec.compile(scaled)(number, number.clone())
    assert number == 2.0 * 0.9


@pytest.mark.parametrize("name", ["SGD", "Adam", "Rprop"])
def test_optimizers_of_a_single_number(name: str) -> None:
    options = {"momentum": 0.9} if name == "SGD" else {}
    found = []
    for wrap in (lambda step: step, fusec.compile):
        parameter = torch.nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        optimizer = getattr(torch.optim, name)([parameter], lr=1e-2, foreach=False, **options)
        step = wrap(lambda optimizer=optimizer: optimizer.step())
        for gradient in (0.3, -0.2, 0.7):
            parameter.grad = torch.tensor(gradient, dtype=torch.float64)
            step()
        found.append([parameter.detach(), *optimizer.state[parameter].values()])
    # where it is compiled, whatever the backend, Adam corrects its means in float32
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


def test_python_numbers_are_still_made_tensors_of() -> None:
    """Also once a graph without any was compiled."""
    compiled = fusec.compile(lambda x, n: x * n)
    x = torch.randn(40)
    for number in (2.5, 4.5, 10.0, 10.5):
        torch.testing.assert_close(compiled(x, number), x * number)
    assert not compiled.fallbacks
    assert len(compiled.graphs) == 2


def test_another_compiler_keeps_its_pass_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in another thread looks for numbers as ever, while ours leaves that out."""
    seen: list[int] = []
    original = graph_compile.tensorify_python_scalars

    def watched(*given: Any) -> Any:
        seen.append(threading.get_ident())
        return original(*given)

    monkeypatch.setattr(graph_compile, "tensorify_python_scalars", watched)

    def compile_another() -> int:
        aot_function(torch.sin, fw_compiler=nop, dynamic=True)(torch.randn(4))
        return threading.get_ident()

    with looking_for_numbers(fx.symbolic_trace(lambda x: x.sin())):
        compile_another()
        assert not seen
        thread = threading.Thread(target=compile_another)
        thread.start()
        thread.join()
        assert set(seen) == {thread.ident}
        with looking_for_numbers(fx.symbolic_trace(lambda x: x.cos())):
            pass
        compile_another()
    assert set(seen) == {thread.ident}
    assert compile_another() in seen
