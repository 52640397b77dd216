"""Hooks on what has several names, or is returned as a view: no backend of torch keeps them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec
from support.calls import strict_calls

__all__ = ["strict_calls"]  # a fixture of every test here

Results = tuple[torch.Tensor, ...]


def halved(value: torch.Tensor) -> torch.Tensor:
    """Put a hook on a value."""
    value.register_hook(lambda g: g * 0.5)
    return value


def float_of_a_float(a: torch.Tensor) -> Results:
    """It is the input, whose gradient is all that flows to it."""
    halved(a.float())
    return (a * 2,)


def contiguous_under_no_grad(a: torch.Tensor) -> Results:
    with torch.no_grad():
        v = halved(a.contiguous())
    return (v,)


def type_of_a_float(a: torch.Tensor) -> Results:
    return (halved(a.to(torch.float32)).sin(), a.cos())


def view_of_an_input(a: torch.Tensor) -> Results:
    return (halved(a.view(-1)),)


def view_of_a_hooked_view(a: torch.Tensor) -> Results:
    return (halved(a.t())[0],)


def view_that_was_taken_before(a: torch.Tensor) -> Results:
    v = a.t()
    w = v[0]
    halved(v)
    return (w,)


def view_beside_its_base(a: torch.Tensor) -> Results:
    h = a.exp()
    return halved(h.view(-1)), h


def base_beside_its_view(a: torch.Tensor) -> Results:
    h = a.exp()
    v = h.view(-1)
    halved(h)
    return v, h


def base_and_later_view(a: torch.Tensor) -> Results:
    h = halved(a.exp())
    return h.view(-1), h


FUNCTIONS = (
    float_of_a_float,
    contiguous_under_no_grad,
    type_of_a_float,
    view_of_an_input,
    view_of_a_hooked_view,
    view_that_was_taken_before,
    view_beside_its_base,
    base_beside_its_view,
    base_and_later_view,
)


@pytest.mark.sample(4)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_a_hook_is_not_lost(function: Callable[[torch.Tensor], Results]) -> None:
    def gradient(called: Callable[[torch.Tensor], Results]) -> torch.Tensor | None:
        a = torch.linspace(0, 1, 4).reshape(2, 2).requires_grad_()
        ends = sum((k + 1) * (each * each).sum() for k, each in enumerate(called(a)))
        (ends + a.sum() * 10).backward()
        return a.grad

    torch._dynamo.reset()
    compiled = fusec.compile(function)
    for _ in range(2):
        torch.testing.assert_close(gradient(compiled), gradient(function))
