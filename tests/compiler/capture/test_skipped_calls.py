"""Calls that TorchDynamo skips for what is around them: the next ones are compiled again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import fusec
from fusec.capture.backend import fusec_backend

Function = Callable[..., Tensor]


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _with_mode(f: Function, x: Tensor) -> None:
    with _Operators():
        f(x)


def _counted(f: Function, x: Tensor) -> None:
    with FlopCounterMode(display=False):
        f(x)


def _switched_off(f: Function, x: Tensor) -> None:
    with torch._dynamo.config.patch(disable=True):
        f(x)


def _mapped(f: Function, x: Tensor) -> None:
    torch.testing.assert_close(torch.func.vmap(f)(x), x.tanh() * 2)


def _derived(f: Function, x: Tensor) -> None:
    torch.func.grad(lambda t: f(t).sum())(x)


def _pushed(f: Function, x: Tensor) -> None:
    torch.func.jvp(f, (x,), (x,))


@pytest.mark.parametrize("call", [_with_mode, _counted, _switched_off, _mapped, _derived, _pushed])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.sample(6)
def test_the_next_call_is_compiled(call: Callable[[Function, Tensor], None], first: bool) -> None:
    torch._dynamo.reset()  # what is compiled for one `f` counts for the next
    eager = []

    def f(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            eager.append(1)
        return x.tanh() * 2

    x, compiled = torch.randn(4, 4), fusec.compile(f)
    if not first:
        compiled(x)
    call(compiled, x)
    eager.clear()
    torch.testing.assert_close(compiled(x), x.tanh() * 2)
    torch.testing.assert_close(compiled(x.double()), x.double().tanh() * 2)
    assert not eager


_TRANSFORMED: dict[str, Function] = {
    "grad": lambda f, x: torch.func.grad(lambda t: (f(t) * t).sum())(x),
    "vmap": lambda f, x: torch.func.vmap(lambda t: f(t) * t)(x),
    "jvp": lambda f, x: torch.func.jvp(lambda t: f(t) * t, (x,), (x,))[1],
    "functionalize": lambda f, x: torch.func.functionalize(lambda t: f(t) * t)(x),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", ["fusec", "torch"])
@pytest.mark.parametrize("name", _TRANSFORMED)
def test_what_is_compiled_already_runs_within_a_transform(name: str, way: str) -> None:
    """The graph takes none of the transform's inputs, so that nothing of it has changed."""
    torch._dynamo.reset()
    layer = torch.nn.Linear(4, 4)

    def f(x: Tensor) -> Tensor:
        return (layer.weight * 0.5).sin()

    x, call = torch.randn(4, 4), _TRANSFORMED[name]
    compiled = fusec.compile(f) if way == "fusec" else torch.compile(f, backend=fusec_backend)
    compiled(x)
    compiled(x)
    torch.testing.assert_close(call(compiled, x), call(f, x))
    compiled(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, (layer.weight * 0.5).cos() * 0.5)
