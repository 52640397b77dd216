"""Parameters that change while the dictionaries that hold them do not: frozen, unfrozen, moved."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from fusec.capture.backend import fusec_backend
from support.calls import strict_calls

__all__ = ["strict_calls"]  # a fixture of every test here


def by_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend=fusec_backend)  # type: ignore[no-any-return]


def unfreeze(layer: nn.Linear) -> None:
    layer.requires_grad_(True)


def freeze(layer: nn.Linear) -> None:
    layer.requires_grad_(False)


def freeze_one(layer: nn.Linear) -> None:
    layer.bias.requires_grad_(False)


def turn(layer: nn.Linear) -> None:
    layer.weight.data = layer.weight.data.t().contiguous().t()


def widen(layer: nn.Linear) -> None:
    layer.double()


def whole(model: nn.Sequential) -> Callable[[torch.Tensor], torch.Tensor]:
    """A model that is compiled itself."""
    return model


def within(model: nn.Sequential) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that calls a model."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return model(x)  # type: ignore[no-any-return]

    return forward


def by_name(model: nn.Sequential) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of parameters that lie in a dictionary."""
    held = dict(model.named_parameters())

    def forward(x: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, held["0.weight"], held["0.bias"])
        return F.linear(inner.to(held["1.weight"].dtype), held["1.weight"], held["1.bias"])

    return forward


class Cast(nn.Linear):
    """A layer that takes whatever its own type is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.weight.dtype))


def trained(
    compiler: Callable[..., Any],
    form: Callable[[nn.Sequential], Callable[[torch.Tensor], torch.Tensor]],
    change: Callable[[nn.Linear], None],
) -> list[torch.Tensor | None]:
    """Return losses and gradients of five steps; before the third a layer is changed."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Cast(4, 4))
    if change is unfreeze:
        model[1].requires_grad_(False)
    forward, x = compiler(form(model)), torch.randn(3, 4)
    found: list[torch.Tensor | None] = []
    for number in range(5):
        if number == 2:
            change(model[1])
        model.zero_grad()
        loss = forward(x).square().mean()
        loss.backward()
        found += [loss.detach(), *(each.grad for each in model.parameters())]
    return found


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("compiler", "form", "change"),
    [
        *itertools.product([fusec.compile], [whole, within, by_name], [unfreeze, turn, widen]),
        (fusec.compile, whole, freeze),
        (by_torch, whole, unfreeze),
        (by_torch, within, freeze_one),
    ],
)
def test_a_layer_changes(compiler: Any, form: Any, change: Any) -> None:
    wanted, got = trained(lambda f: f, form, change), trained(compiler, form, change)
    assert [each is None for each in got] == [each is None for each in wanted]
    for mine, want in zip(got, wanted, strict=True):
        if want is not None:
            torch.testing.assert_close(mine, want)


def test_an_unfrozen_layer_is_trained_by_a_compiled_step() -> None:
    """Forward, backward and the optimizer's step are one function, and the layer a new group."""

    def steps(compiler: Callable[..., Any]) -> list[torch.Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(3, 4)
        model[1].requires_grad_(False)
        optimizer = torch.optim.Adam(model[0].parameters(), lr=0.01)

        def step() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        compiled = compiler(step)
        for number in range(6):
            if number == 3:
                model[1].requires_grad_(True)
                optimizer.add_param_group({"params": list(model[1].parameters())})
            compiled()
        state = [optimizer.state[each] for each in model.parameters()]
        assert [float(each["step"]) for each in state] == [6, 6, 3, 3]
        return [each.detach() for each in model.parameters()]

    for got, want in zip(steps(fusec.compile), steps(lambda f: f), strict=True):
        torch.testing.assert_close(got, want)
