"""On a GPU: cross-entropy of a linear layer within a budget of memory. Skipped elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
ROWS, WIDTH, COLUMNS = 1000, 256, 5003
Tensor = torch.Tensor


def loss_of(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight).float(), target)


def make() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(COLUMNS, WIDTH, device="cuda", dtype=torch.bfloat16) / 16
    target = torch.randint(0, COLUMNS, (ROWS,), device="cuda")
    target[::17] = -100
    return x.requires_grad_(), weight.requires_grad_(), target


def gradients(function: Any, x: Tensor, weight: Tensor, target: Tensor) -> list[Tensor]:
    loss = 2 * function(x, weight, target)
    return [loss.detach(), *torch.autograd.grad(loss, (x, weight))]


def test_it_is_as_near_as_eager_and_takes_less_memory() -> None:
    torch._dynamo.reset()
    x, weight, target = make()
    logits = ROWS * COLUMNS * 2
    compiled = fusec.compile(loss_of, memory_budget=logits // 4)
    own, their = (gradients(f, x, weight, target) for f in (compiled, loss_of))
    exact = gradients(
        loss_of,
        x.detach().double().requires_grad_(),
        weight.detach().double().requires_grad_(),
        target,
    )
    for a, b, c in zip(own, their, exact, strict=True):
        assert a.dtype == b.dtype
        assert (a.double() - c).norm() <= 2 * (b.double() - c).norm() + 1e-5 * c.norm()
    del own, their, exact, a, b, c
    peaks = []
    for function in (compiled, fusec.compile(loss_of)):
        gradients(function, x, weight, target)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        gradients(function, x, weight, target)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[0] <= peaks[1] - logits // 2, "the weight's gradient is there once"
