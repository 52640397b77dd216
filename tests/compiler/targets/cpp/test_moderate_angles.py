"""Sines and cosines in C++ kernels, whose blocks have a quick form for moderate angles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def agree(function: Function, x: torch.Tensor, *, quick: bool = True) -> None:
    """Compile, compare with float64 and eager, and see whether there are two forms."""
    compiled = fusec.compile(function)
    got = compiled(x)
    (graph,) = compiled.graphs
    assert any("fx_moderate_" in kernel.source for kernel in graph.kernels) is quick
    eager, exact = function(x), function(x.double())
    assert got.dtype == eager.dtype
    assert torch.equal(got.isnan(), eager.isnan())
    # a rounding before the sine moves a large angle by more than one after it
    allowed = (eager.double() - exact).abs() + torch.finfo(got.dtype).eps * 4
    worse = (got.double() - exact).abs() > allowed
    assert not (worse & ~exact.isnan()).any()


def waves(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * torch.cos(2 * x)


@pytest.mark.parametrize("shape", [(100_003,), (40, 300), (3, 4096), (2, 5, 1024)])
def test_near_and_far_blocks(shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape) * 100
    agree(waves, x)
    # one far element takes its block with it, the rest is as before
    flat = x.reshape(-1)
    flat[:: max(1, len(flat) // 3)] = torch.tensor(1e9)
    agree(waves, x)
    flat[5], flat[6], flat[7] = float("inf"), float("nan"), -0.0
    agree(waves, x)
    agree(waves, torch.full(shape, -3e38))


def test_the_limit_and_just_below_it() -> None:
    limit = torch.tensor(2.0**15)
    below = torch.nextafter(limit, torch.tensor(0.0))
    agree(waves, torch.stack([below, limit, -below, -limit]).repeat(5000))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    agree(lambda x: torch.cos(x.float()), (torch.randn(500, 300) * 50).to(dtype))


def test_not_contiguous() -> None:
    agree(torch.sin, (torch.randn(512, 600) * 9)[:, ::2])
    agree(torch.cos, (torch.randn(512, 600) * 9).t())


def test_where_it_does_not_pay_there_is_one_form() -> None:
    agree(torch.sin, torch.randn(300), quick=False)  # over before a block would pay
    agree(lambda x: torch.sin(torch.exp(torch.tanh(x))), torch.randn(30_000), quick=False)
    agree(torch.sin, torch.randn(30_000).double(), quick=False)
