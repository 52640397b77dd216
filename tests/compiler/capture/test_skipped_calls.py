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

Function = Callable[[Tensor], Tensor]


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
