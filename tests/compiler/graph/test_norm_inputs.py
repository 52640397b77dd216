"""Norms in half precision: backward reads the input and the statistics that forward computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from fusec.graph.facts.half_speed import HalfSpeed

HALVES = [torch.float16, torch.bfloat16]
Function = Callable[[torch.Tensor], torch.Tensor]


def groups_of_one(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(torch.addcmul(x, x, x, value=0.1), x.shape[1])


def rows_of_one(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(torch.erf(x).unsqueeze(-1), (1,))


def groups_of_products(x: torch.Tensor) -> torch.Tensor:
    w = torch.linspace(-1, 1, x.shape[1], dtype=x.dtype)[None]
    return F.group_norm(torch.sin(F.linear(x, w)), 1)


def equal_rows(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(torch.sin(x[:, :1] * 1.37).expand(-1, 6), (6,))


def equal_images(x: torch.Tensor) -> torch.Tensor:
    same = torch.sin(x[:1] * 1.37).expand(8, -1)
    return F.batch_norm(same, None, None, training=True)


@pytest.mark.sample(2)
@pytest.mark.parametrize("slow", [False, True], ids=["halves", "widened"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(
    "function", [groups_of_one, rows_of_one, groups_of_products, equal_rows, equal_images]
)
def test_of_equal_elements_nothing_is_left(
    function: Function, dtype: torch.dtype, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where backward rounded otherwise than forward, gradients were up to a hundred."""
    speed = HalfSpeed(half=0.2 if slow else 0.01, single=0.02, conversion=0.4)
    monkeypatch.setattr("fusec.graph.choices.half_speed", lambda dtype: speed)
    torch.manual_seed(0)
    x = torch.randn(5, 8).to(dtype).requires_grad_()
    out = fusec.compile(function)(x)
    assert out.abs().max() < 0.02
    out.backward(torch.randn(out.shape).to(dtype))
    assert x.grad is not None
    exact = x.detach().double().requires_grad_()
    torch.manual_seed(0)
    torch.randn(5, 8)
    function(exact).backward(torch.randn(out.shape).to(dtype).double())
    assert exact.grad is not None
    assert exact.grad.abs().max() < 1e-6
    plain = x.detach().requires_grad_()
    torch.manual_seed(0)
    torch.randn(5, 8)
    function(plain).backward(torch.randn(out.shape).to(dtype))
    assert plain.grad is not None
    assert x.grad.abs().max() <= 2 * plain.grad.abs().max() + 0.02


class Shifted(nn.Module):
    """A batch norm of what lies far from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        nn.init.constant_(self.low.bias, 20.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.low(x)))


def gradients(
    call: Callable[..., torch.Tensor], module: nn.Module, x: torch.Tensor
) -> list[torch.Tensor]:
    module.zero_grad()
    call(x).double().pow(3).sum().backward()
    return [p.grad.double().clone() for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_statistics_of_a_batch_norm_under_autocast_are_kept_in_float32(dtype: torch.dtype) -> None:
    """Torch's decomposition rounds them, where eager does not."""
    torch.manual_seed(0)
    module, x = Shifted(), torch.randn(256, 8)
    compiled = fusec.compile(module, emulate_rounding=True)
    with torch.autocast("cpu", dtype):
        eager = gradients(module, module, x)
        found = gradients(compiled, module, x)
    # that of the bias in front of the norm is nothing but rounding
    for ours, theirs in zip(found[:1] + found[2:], eager[:1] + eager[2:], strict=True):
        assert (ours - theirs).norm() <= 2e-3 * theirs.norm() + 1e-4
