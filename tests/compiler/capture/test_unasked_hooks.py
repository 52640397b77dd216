"""Hooks on tensors that no loss depends on are not called, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import register_multi_grad_hook

import fusec
from support.calls import strict_calls

__all__ = ["strict_calls"]  # a fixture of every test here

Function = Callable[..., Any]
WAYS: dict[str, Callable[[Function], Function]] = {
    "fusec": fusec.compile,
    "torch": lambda function: torch.compile(function, backend="fusec"),
    "sizes": lambda function: fusec.compile(function, dynamic=True),
}


def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the first result, nothing flows to ``x``."""
    return (w * 2).sin(), (x * w).exp()


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "no leaf"])
def test_a_hook_is_not_called_without_a_gradient(way: str, leaf: bool) -> None:
    compiled = WAYS[way](function)
    for _ in range(3):
        x, w = leaves()
        given, seen = x if leaf else x * 3, list[Any]()
        given.register_hook(lambda g, seen=seen: (seen.append(g), g * 0.5)[1])
        compiled(given, w)[0].sum().backward()
        assert not seen
        assert x.grad is None
        assert w.grad is not None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "no leaf"])
def test_it_is_called_with_a_gradient_from_elsewhere(way: str, leaf: bool) -> None:
    def gradients(called: Function) -> list[torch.Tensor | None]:
        x, w = leaves()
        given = x if leaf else x * 3
        handle = given.register_hook(lambda g: g * 0.5)
        (called(given, w)[0].sum() + given.cos().sum()).backward(retain_graph=True)
        found = [x.grad, w.grad]
        called(given, w)[1].sum().backward(retain_graph=True)
        handle.remove()
        x.grad = None
        called(given, w)[1].sum().backward()
        return [*found, x.grad]

    compiled = WAYS[way](function)
    for _ in range(2):
        for ours, eagers in zip(gradients(compiled), gradients(function), strict=True):
            torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("way", WAYS)
def test_a_hook_of_several_tensors_is_told(way: str) -> None:
    def told(called: Function) -> list[list[bool]]:
        x, w = leaves()
        found = list[list[bool]]()
        register_multi_grad_hook((x, w), lambda gs: found.append([g is None for g in gs]))
        called(x, w)[0].sum().backward()
        return found

    compiled = WAYS[way](function)
    assert told(compiled) == told(compiled) == told(function) == [[True, False]]


def beside_no_grad(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        used = x * w
    return w.sin(), used


def hooked_within(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.register_hook(lambda g: g * 0.5)
    return w.sin(), w.cos(), x.detach() * 2


def updated_without(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        x.mul_(0.5)
    return w.sin(), w * 2


def with_a_size(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (w.sin() * x.shape[0], x.argmax())


@pytest.mark.sample(4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "function",
    [beside_no_grad, hooked_within, updated_without, with_a_size],
    ids=lambda each: each.__name__,
)
def test_a_hook_of_what_never_has_a_gradient(way: str, function: Function) -> None:
    def gradients(called: Function) -> list[torch.Tensor | None]:
        x, w = leaves()
        x.register_hook(lambda g: g * 0.5)
        ends = [each for each in called(x, w) if each.requires_grad]
        (sum(each.sum() for each in ends) + x.cos().sum()).backward(retain_graph=True)
        found, x.grad = [x.grad, w.grad], None
        sum(each.sum() for each in ends).backward()
        return [*found, x.grad, w.grad]

    compiled = WAYS[way](function)
    for _ in range(3):
        assert gradients(compiled)[2] is None
        torch.testing.assert_close(
            [each for each in gradients(compiled) if each is not None],
            [each for each in gradients(function) if each is not None],
        )
