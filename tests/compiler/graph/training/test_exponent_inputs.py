"""Gradients that are exponentials of a difference which rounding alone would make positive."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import fusec

Function = Callable[[torch.Tensor], torch.Tensor]


def large(x: torch.Tensor) -> torch.Tensor:
    """Up to thousands, where a last place of half precision is more than one."""
    return x.exp() * x.exp().sum(-2, keepdim=True)


def logsumexp(x: torch.Tensor) -> torch.Tensor:
    return large(x).logsumexp(-1)


def of_one_operation(x: torch.Tensor) -> torch.Tensor:
    return (x * x * 100).logsumexp(-1)


def logcumsumexp(x: torch.Tensor) -> torch.Tensor:
    return large(x).logcumsumexp(-1)


def cross_entropy(x: torch.Tensor) -> torch.Tensor:
    wanted = torch.arange(x.shape[0] * x.shape[1]) % x.shape[2]
    return F.cross_entropy(large(x).flatten(0, 1), wanted, reduction="none")


def in_float32(x: torch.Tensor) -> torch.Tensor:
    """What it follows from is in half precision."""
    return (large(x).float() * 1.5).log_softmax(-1)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    """The logarithm apart: its gradient is by the sum, each part's by its exponential."""
    y = large(x)
    top = y.amax(-1, keepdim=True)
    return (y - top).exp().sum(-1, keepdim=True).log() + top.detach()


FUNCTIONS = (logsumexp, of_one_operation, logcumsumexp, cross_entropy, in_float32, by_hand)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_gradients_of_large_numbers(function: Function, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    compiled = fusec.compile(function)
    for shape in ((6, 16, 32), (6, 16, 32), (3, 7, 37)):
        x = torch.randn(shape).to(dtype)

        def gradient(called: Function, dtype: torch.dtype, x: torch.Tensor = x) -> torch.Tensor:
            leaf = x.to(dtype).clone().requires_grad_()
            called(leaf).sum().backward()
            assert leaf.grad is not None
            return leaf.grad.double()

        exact = gradient(function, torch.float64)
        eager = (gradient(function, dtype) - exact).abs().max()
        off = (gradient(compiled, dtype) - exact).abs().max()
        assert off <= 2 * eager + 0.05 * exact.abs().max()


def test_what_a_library_has_computed_is_not_written_once_more() -> None:
    """Its result is in memory, as all read it."""

    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ((x @ weight).float() * 2).logsumexp(-1).sum()

    torch._dynamo.reset()
    compiled = fusec.compile(loss)
    x = torch.randn(8, 16).bfloat16().requires_grad_()
    weight = torch.randn(16, 64).bfloat16().requires_grad_()
    compiled(x, weight).backward()
    kept = {each.dtype for each in compiled.graphs[0].saved if each.shape == (8, 64)}
    assert kept == {"bfloat16"}
