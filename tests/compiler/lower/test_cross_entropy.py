"""Losses with class labels: what backward keeps, and what it does not walk a row for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from support.compare import difference


def gradients(function: Any, x: torch.Tensor, *rest: Any, by: float = 1.0) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    loss = function(x, *rest)
    (gradient,) = torch.autograd.grad(loss, [x], torch.full_like(loss, by))
    return [loss.detach(), gradient]


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_cross_entropy(target: str, dtype: torch.dtype) -> None:
    x, labels = torch.randn(33, 70, dtype=dtype) * 3, torch.randint(0, 70, (33,))
    labels[3] = -100
    x[5, 7], x[6] = -math.inf, -math.inf
    for function in (F.cross_entropy, lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1)):
        torch._dynamo.reset()
        compiled = fusec.compile(function, target=target)
        assert not difference(gradients(compiled, x, labels), gradients(function, x, labels))


def test_backward_keeps_the_logits_not_their_log_softmax() -> None:
    compiled = fusec.compile(F.cross_entropy)
    x, labels = torch.randn(64, 500), torch.randint(0, 500, (64,))
    gradients(compiled, x, labels)
    (graph,) = compiled.graphs
    large = [s for s in graph.saved if math.prod(s.shape) == x.numel()]
    assert len(large) == 1, [str(s) for s in graph.saved]
    forward = graph.parts[0].state.scheduled
    written = {n for step in forward.steps for n in step.writes()}
    assert max(int(forward.buffers[n].elements.constant or 0) for n in written) <= 64


@pytest.mark.sample(2)
@pytest.mark.parametrize("scale", [1.0, -3.0, math.nan, 0.0])
def test_scaled_gradients_are_what_they_are_in_eager(scale: float) -> None:
    x, labels = torch.randn(4, 9), torch.tensor([0, 8, 3, -100])
    compiled = fusec.compile(F.cross_entropy)
    expected = gradients(F.cross_entropy, x, labels, by=scale)
    assert not difference(gradients(compiled, x, labels, by=scale), expected)


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_sum_of_one_hot_rows(target: str) -> None:
    def function(t: torch.Tensor, v: torch.Tensor) -> Any:
        place = torch.arange(40) == t[:, None]
        hot = torch.where(place, v[:, None], 0.0)
        return hot.sum(-1), hot - hot.sum(-1, keepdim=True), (hot * v.flip(0)[:, None]).sum(-1)

    # labels outside of the row mark nothing
    t = torch.tensor([0, 39, 7, -1, 40, 1 << 40])
    v = torch.tensor([1.5, -2.0, math.inf, 4.0, math.nan, 3.0])
    compiled = fusec.compile(function, target=target)
    assert not difference(compiled(t, v), function(t, v))
    w = torch.randn(6)
    assert not difference(compiled(t, w), function(t, w))


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (5, 1), ()])
def test_log_softmax_of_odd_shapes(shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(x * 2, -1)

    x = torch.randn(shape)
    assert not difference(gradients(fusec.compile(function), x), gradients(function, x))
