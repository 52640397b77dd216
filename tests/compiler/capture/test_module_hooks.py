"""Hooks of a compiled module: put on before or after its first call, and taken away again."""

from __future__ import annotations

import copy
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


def _backward_after(f: Module) -> Any:
    return f.register_full_backward_hook(lambda module, got, given: (got[0] * 7,))


def _call(f: Module) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    x = torch.randn(3, 4, requires_grad=True)
    result = f(x)
    result.sum().backward()
    assert x.grad is not None
    return result.detach(), x.grad


PUTS = [_after, _before, _with_names, _backward_before, _backward_after]


def _assert_same(compiled: Module, eager: Module) -> None:
    torch.testing.assert_close(_call(compiled), _call(eager))


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("calls", [0, 1, 4])
@pytest.mark.sample(4)
def test_a_hook_runs_until_it_is_removed(put: Callable[[Module], Any], calls: int) -> None:
    eager, compiled = _module(), fusec.compile(_module())
    for _ in range(calls):
        _assert_same(compiled, eager)
    hooks = put(eager), put(compiled)
    for _ in range(2):
        _assert_same(compiled, eager)
    for hook in hooks:
        hook.remove()
    _assert_same(compiled, eager)


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("first", ["none", "inner", "outer", "both"])
@pytest.mark.sample(2)
def test_a_hook_runs_within_another_compiled_function(
    put: Callable[[Module], Any], first: str
) -> None:
    """TorchDynamo leaves out the hooks of its own module that another function calls."""
    torch._dynamo.reset()
    eager, compiled = _module(), fusec.compile(_module())
    outer = fusec.compile(lambda x: compiled(x) * 2)
    if first in ("inner", "both"):
        _call(compiled)
    if first in ("outer", "both"):
        _call(outer)
    for _ in range(2):  # the second time is another hook, of which there are as many
        hooks = put(eager), put(compiled)
        _assert_same(outer, lambda x: eager(x) * 2)
        _assert_same(compiled, eager)
        for hook in hooks:
            hook.remove()
    _assert_same(outer, lambda x: eager(x) * 2)


@pytest.mark.parametrize("backend", ["fusec", "aot_eager", "eager"])
def test_a_hook_runs_within_what_another_backend_compiles(backend: str) -> None:
    torch._dynamo.reset()
    eager, compiled = _module(), fusec.compile(_module())
    _call(compiled)
    outer = torch.compile(lambda x: compiled(x) * 2, backend=backend)
    _call(outer)
    hooks = _after(eager), _after(compiled)
    _assert_same(outer, lambda x: eager(x) * 2)
    for hook in hooks:
        hook.remove()
    _assert_same(outer, lambda x: eager(x) * 2)


def test_hooks_of_the_original_are_asked_for_within_another_function() -> None:
    eager, inner = _module(), _module()
    compiled = fusec.compile(inner)
    outer = fusec.compile(lambda x: compiled(x) * 2)
    _call(outer)
    hooks = _after(eager), _after(inner)
    _assert_same(outer, lambda x: eager(x) * 2)
    for hook in hooks:
        hook.remove()
    _assert_same(outer, lambda x: eager(x) * 2)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_has_the_hooks(copied: Callable[[Module], Module]) -> None:
    eager, compiled = _module(), fusec.compile(_module())
    _after(eager)
    hook = _after(compiled)
    other = copied(compiled)
    hook.remove()
    _assert_same(other, eager)
