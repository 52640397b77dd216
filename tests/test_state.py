"""Compiled parts that run in another state of torch than they were compiled in."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import fusec
from fusec.graph.speeds import HalfSpeed
from support.calls import strict_calls

__all__ = ["strict_calls"]  # a fixture of every test here

pytestmark = pytest.mark.timeout(300)

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "64-32-16": lambda: nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16)),
    "8-2-1": lambda: nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 1)),
    "gelu": lambda: nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 16)),
    "weight_norm": lambda: nn.Sequential(weight_norm(nn.Linear(64, 32)), nn.Linear(32, 16)),
}
BACKENDS = {
    "fusec": fusec.compile,
    "torch": lambda function: torch.compile(function, backend="fusec"),
}


def training_step(
    module: nn.Module, x: torch.Tensor, dtype: torch.dtype, device: str = "cpu"
) -> torch.Tensor:
    """Forward and backward, both within autocast."""
    with torch.autocast(device, dtype):
        loss = module(x).sum()
        loss.backward()
    return loss


def steps(step: Callable[..., Any], module: nn.Module, *given: Any) -> list[torch.Tensor]:
    """Return what two steps yield: the loss and all gradients."""
    found = []
    for _ in range(2):
        module.zero_grad(set_to_none=True)
        loss = step(module, *given)
        found += [loss.detach(), *[p.grad for p in module.parameters() if p.grad is not None]]
    return found


def close(ours: list[torch.Tensor], theirs: list[torch.Tensor], within: float) -> None:
    for mine, true in zip(ours, theirs, strict=True):
        assert mine.dtype == true.dtype
        assert (mine.double() - true.double()).norm() <= within * (true.double().norm() + 1)


@pytest.mark.sample(5)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_within_autocast(
    backend: str, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # where halves are slow, products are taken in float32: what autocast would convert
    slow = HalfSpeed(half=0.2, single=0.02, conversion=0.4)
    monkeypatch.setattr("fusec.graph.choices.half_speed", lambda dtype: slow)
    torch.manual_seed(0)
    module = NETWORKS[name]()
    x = torch.randn(2 if name == "8-2-1" else 8, next(module.parameters()).shape[-1])
    if name == "weight_norm":
        x = torch.randn(8, 64)
    theirs = steps(training_step, copy.deepcopy(module), x, dtype)
    ours = steps(BACKENDS[backend](training_step), module, x, dtype)
    close(ours, theirs, 0.02)


@pytest.mark.parametrize("within", [True, False], ids=["forward within", "forward outside"])
def test_operators_of_a_backward_part_convert_nothing(within: bool) -> None:
    """Only backward is within autocast, or what is not to be converted stands in it."""

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.sigmoid(x @ w)

    torch.manual_seed(0)
    compiled = fusec.compile(product, matmul="extern")
    x, w = torch.randn(40, 64, requires_grad=True), torch.randn(64, 40, requires_grad=True)
    with torch.autocast("cpu", torch.float16, enabled=within):
        out = compiled(x, w)
    with torch.autocast("cpu", torch.float16):
        ours = torch.autograd.grad(out.sum(), (x, w))
        assert torch.is_autocast_enabled("cpu")
    theirs = torch.autograd.grad(torch.sigmoid(x @ w).sum(), (x, w))
    for mine, true in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_backward_within_autocast_on_a_gpu() -> None:
    torch.manual_seed(0)

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = nn.Linear(64, 32), nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.low(x)
            with torch.autocast("cuda", enabled=False):
                return self.high(x.float()).sin()

    module = Half().cuda()
    x = torch.randn(8, 64, device="cuda")
    theirs = steps(training_step, copy.deepcopy(module), x, torch.float16, "cuda")
    ours = steps(fusec.compile(training_step), module, x, torch.float16, "cuda")
    close(ours, theirs, 0.02)
