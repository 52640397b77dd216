"""Parameters that lie otherwise than they did, which no guard of an optimizer's step sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fusec
from fusec.capture.backend import fusec_backend
from support.calls import strict_calls

__all__ = ["strict_calls"]  # a fixture of every test here


def by_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend=fusec_backend)  # type: ignore[no-any-return]


def turn(weight: nn.Parameter) -> None:
    weight.data = weight.data.t().contiguous().t()


def trained(compiler: Callable[..., Any], moves: tuple[int, ...]) -> list[torch.Tensor]:
    """Return the weight after each of six steps; before some it is turned."""
    torch._dynamo.reset()
    weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

    def update() -> None:
        optimizer.step()

    step, found = compiler(update), []
    for number in range(6):
        if number in moves:
            turn(weight)
        optimizer.zero_grad()
        (weight.sin() * weight).sum().backward()
        step()
        found.append(weight.detach().clone())
    return found


@pytest.mark.parametrize("compiler", [fusec.compile, by_torch], ids=["fusec", "torch"])
def test_a_parameter_may_lie_otherwise_than_it_did(compiler: Callable[..., Any]) -> None:
    wanted = trained(lambda function: function, (2, 4))
    for got, want in zip(trained(compiler, (2, 4)), wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_its_step_is_compiled_again() -> None:
    made: list[Any] = []

    def compiler(function: Callable[..., Any]) -> Any:
        made.append(fusec.compile(function))
        return made[0]

    trained(compiler, (3,))
    # the first step has no momentum yet
    assert [bool(graph.kernels) for graph in made[0].graphs] == [True] * 3
    assert not made[0].fallbacks
