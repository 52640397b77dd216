"""Gradients of a value that a graph returns and goes on with, asked for behind a graph break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

import fusec

Function = Callable[[torch.Tensor], Any]


def breaks() -> None:
    """End the graph."""
    torch._dynamo.graph_break()


def hook(a: torch.Tensor) -> Any:
    h = a.exp()
    y = h * 2
    breaks()
    h.register_hook(lambda g: g * 0.5)
    (y.sum() + h.sum()).backward()
    return a.grad


def hook_that_nothing_calls_but_y(a: torch.Tensor) -> Any:
    """The gradient of ``h`` itself is none, which the hook was called with."""
    h = a.exp()
    y = h * 2
    breaks()
    h.register_hook(lambda g: g * 0.5)
    return torch.autograd.grad(y.sum(), a)[0]


def hook_that_breaks(a: torch.Tensor) -> Any:
    h = a.exp()
    y = h * 2

    def halves(g: torch.Tensor) -> torch.Tensor:
        breaks()
        return g * 0.5

    h.register_hook(halves)
    (y.sum() + h.sum()).backward()
    return a.grad


def kept(a: torch.Tensor) -> Any:
    h = a.exp()
    y = h * 2
    h.retain_grad()
    (y.sum() + h.sum()).backward()
    return h.grad


def derived(a: torch.Tensor) -> Any:
    h = a.exp()
    y = (h * h).sum()
    (slope,) = torch.autograd.grad(y, h, create_graph=True)
    return y + slope.pow(2).sum()


def of_several(a: torch.Tensor) -> Any:
    h = a.exp()
    y = h * 2
    seen: list[Any] = []
    register_multi_grad_hook((h,), lambda gs: seen.append(gs[0]))
    (y.sum() + h.sum()).backward()
    return seen[0]


def given_back(a: torch.Tensor) -> Any:
    h = a.exp()
    y = h * 2
    breaks()
    (y.sum() + h.sum()).backward(inputs=[h])
    return h.grad


def in_a_function_within(a: torch.Tensor) -> Any:
    h = a.exp()
    y = h * 2

    def slope() -> torch.Tensor:
        return torch.autograd.grad(y.sum() + h.sum(), h)[0]

    breaks()
    return slope()


def puts_a_hook(h: torch.Tensor) -> None:
    breaks()
    h.register_hook(lambda g: g * 0.5)


def in_another_function(a: torch.Tensor) -> Any:
    h = a.exp()
    y = h * 2
    puts_a_hook(h)
    (y.sum() + h.sum()).backward()
    return a.grad


class Watched(nn.Module):
    def watch(self, h: torch.Tensor) -> None:
        h.register_hook(lambda g: g * 0.5)

    def forward(self, a: torch.Tensor) -> Any:
        h = a.exp()
        y = h * 2
        breaks()
        self.watch(h)
        (y.sum() + h.sum()).backward()
        return a.grad


def in_a_method(a: torch.Tensor) -> Any:
    return Watched()(a)


ASKING = (
    hook,
    hook_that_nothing_calls_but_y,
    hook_that_breaks,
    kept,
    derived,
    of_several,
    given_back,
    in_a_function_within,
    in_another_function,
    in_a_method,
)


@pytest.mark.sample(4)
@pytest.mark.parametrize("function", ASKING, ids=lambda each: each.__name__)
def test_what_flows_from_one_result_to_another_is_seen(function: Function) -> None:
    def result(called: Function) -> Any:
        return called(torch.linspace(0, 1, 4).requires_grad_())

    torch._dynamo.reset()
    compiled = fusec.compile(function)
    for _ in range(2):
        torch.testing.assert_close(result(compiled), result(function))
    assert any("would miss what flows" in each for each in compiled.fallbacks)


def trains(a: torch.Tensor) -> Any:
    h = a.exp()
    loss = (h * 2).sum()
    breaks()
    loss.backward()
    return h.detach(), a.grad


def hooks_one_of_two(a: torch.Tensor) -> Any:
    """Neither is made of the other."""
    h, y = a.exp(), a.sin()
    breaks()
    h.register_hook(lambda g: g * 0.5)
    (y.sum() + h.sum()).backward()
    return a.grad


def hooks_within(a: torch.Tensor) -> Any:
    """In front of the break; it is captured."""
    h = a.exp()
    h.register_hook(lambda g: g * 0.5)
    y = h * 2
    breaks()
    (y.sum() + h.sum()).backward()
    return a.grad


@pytest.mark.parametrize(
    "function", [trains, hooks_one_of_two, hooks_within], ids=lambda each: each.__name__
)
def test_what_asks_for_no_such_gradient_is_compiled(function: Function) -> None:
    torch._dynamo.reset()
    compiled = fusec.compile(function)
    for _ in range(2):
        given = [torch.linspace(0, 1, 4).requires_grad_() for _ in range(2)]
        torch.testing.assert_close(compiled(given[0]), function(given[1]))
    assert not compiled.fallbacks


Results = tuple[torch.Tensor, torch.Tensor]


def kept_and_stored(a: torch.Tensor, c: torch.Tensor) -> Results:
    first = a * 3
    second = c - c
    second.retain_grad()
    second[..., :1] = 0.5
    return first, second


def kept_and_multiplied(a: torch.Tensor, c: torch.Tensor) -> Results:
    first = a * 3
    second = c * 2
    second.retain_grad()
    second.mul_(2)
    return first, second


def kept_and_added(a: torch.Tensor, c: torch.Tensor) -> Results:
    first = a * 3
    second = c * 2
    second.retain_grad()
    second += 1
    return first, second


def kept_elsewhere(a: torch.Tensor, c: torch.Tensor) -> Results:
    def keep(value: torch.Tensor) -> None:
        value.retain_grad()
        value.mul_(2)

    first = a * 3
    second = c * 2
    keep(second)
    return first, second


@pytest.mark.parametrize(
    "function", [kept_and_stored, kept_and_multiplied, kept_and_added, kept_elsewhere]
)
def test_what_keeps_its_gradient_may_be_updated(function: Callable[..., Results]) -> None:
    """The second result of a graph: an internal error of torch's, or the end of the process."""

    def found(called: Callable[..., Results]) -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        a, c = torch.randn(4, 8, requires_grad=True), torch.randn(8, 4, requires_grad=True)
        results = called(a, c)
        torch.autograd.backward(results, [torch.cos(r.detach()) for r in results])
        return [*results, a.grad, c.grad, results[1].grad]

    torch._dynamo.reset()
    wanted = found(function)
    compiled = fusec.compile(function)
    for _ in range(2):
        for result, expected in zip(found(compiled), wanted, strict=True):
            assert result is not None
            torch.testing.assert_close(result, expected)


def test_what_keeps_its_gradient_stays_compiled_if_nothing_updates_it() -> None:
    def function(a: torch.Tensor, c: torch.Tensor) -> Results:
        first = a * 3
        second = c * 2
        second.retain_grad()
        return first, second

    torch._dynamo.reset()
    compiled = fusec.compile(function)
    compiled(torch.randn(3, requires_grad=True), torch.randn(4, requires_grad=True))
    assert not compiled.graphs[0].fallback
