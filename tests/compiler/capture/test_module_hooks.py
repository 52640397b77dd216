"""Hooks of a compiled module: put on after its first call, and taken away again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusec

Module = Any


def _module() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


def _after(f: Module) -> Any:
    return f.register_forward_hook(lambda module, args, result: result + 1)


def _before(f: Module) -> Any:
    return f.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def _with_names(f: Module) -> Any:
    return f.register_forward_hook(
        lambda module, args, named, result: result * 3, with_kwargs=True, prepend=True
    )


def _backward_before(f: Module) -> Any:
    return f.register_full_backward_pre_hook(lambda module, got: (got[0] * 5,))


def _call(f: Module) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    x = torch.randn(3, 4, requires_grad=True)
    result = f(x)
    result.sum().backward()
    assert x.grad is not None
    return result.detach(), x.grad


@pytest.mark.parametrize("put", [_after, _before, _with_names, _backward_before])
@pytest.mark.parametrize("calls", [1, 4])
def test_a_hook_after_the_first_call_runs(put: Callable[[Module], Any], calls: int) -> None:
    eager, compiled = _module(), fusec.compile(_module())
    for _ in range(calls):
        torch.testing.assert_close(_call(compiled), _call(eager))
    hooks = put(eager), put(compiled)
    for _ in range(2):
        torch.testing.assert_close(_call(compiled), _call(eager))
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(_call(compiled), _call(eager))
