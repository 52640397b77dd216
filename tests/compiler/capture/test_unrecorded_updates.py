"""What wants gradients is updated where autograd records nothing: gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from support.calls import strict_calls

__all__ = ["strict_calls"]  # a fixture of every test here

MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
Function = Callable[[torch.Tensor, Any], torch.Tensor]


def view(a: torch.Tensor, unrecorded: Any) -> torch.Tensor:
    v = a[0]
    with unrecorded():
        v.mul_(2)
    return v


def made_of_a_view(a: torch.Tensor, unrecorded: Any) -> torch.Tensor:
    v = a[..., ::2]
    with unrecorded():
        v.tanh_()
    return v * 3


def input_itself(a: torch.Tensor, unrecorded: Any) -> torch.Tensor:
    with unrecorded():
        a.mul_(2)
    return a[0]


def leaf() -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
    return a, a


def view_of_a_leaf() -> tuple[torch.Tensor, torch.Tensor]:
    a, _ = leaf()
    return a, a[:3]


def made_of_a_leaf() -> tuple[torch.Tensor, torch.Tensor]:
    a, _ = leaf()
    return a, a * 1


def outcome(function: Any, make: Callable[[], tuple[torch.Tensor, torch.Tensor]], mode: Any) -> Any:
    """Return what a call computes, whether it wants a gradient, and the gradient."""
    a, given = make()
    result = function(given, mode)
    gradient = None
    if result.requires_grad:
        (gradient,) = torch.autograd.grad(result.sum(), a, allow_unused=True)
    return result.detach(), a.detach(), result.requires_grad, gradient


@pytest.mark.sample(6)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [leaf, view_of_a_leaf, made_of_a_leaf], ids=lambda e: e.__name__)
@pytest.mark.parametrize("function", [view, made_of_a_view, input_itself], ids=lambda e: e.__name__)
def test_gradients_are_those_of_eager(
    function: Function, make: Callable[[], tuple[torch.Tensor, torch.Tensor]], mode: str
) -> None:
    torch._dynamo.reset()
    compiled = fusec.compile(function)
    for _ in range(2):
        got, want = (outcome(each, make, MODES[mode]) for each in (compiled, function))
        for mine, theirs in zip(got, want, strict=True):
            if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
                torch.testing.assert_close(mine, theirs)
            else:
                assert mine == theirs


def test_an_optimizer_of_leaves_is_compiled() -> None:
    """Nothing but a view that was taken before, or what is no leaf, makes a difference."""

    def step(weight: torch.Tensor, buffer: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            buffer.mul_(0.9).add_(gradient)
            weight.sub_(buffer, alpha=0.1)
            weight[0].clamp_(min=0)
        return weight.t() * 2

    torch._dynamo.reset()
    compiled = fusec.compile(step)
    weights = [torch.linspace(-1, 1, 12).view(3, 4).requires_grad_() for _ in range(2)]
    buffers = [torch.ones(3, 4) for _ in range(2)]
    calls = zip((compiled, step), weights, buffers, strict=True)
    mine, theirs = (called(w, b, b * 0.5) for called, w, b in calls)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(*weights)
    assert not compiled.fallbacks
