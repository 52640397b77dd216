"""The result of a norm is computed again in backward, from its input and its statistics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from support.compare import difference


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)


def saved(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> int:
    """Compare result and gradients with eager's; return the bytes that forward keeps anew."""
    compiled = fusec.compile(function)
    ours = [x.detach().clone().requires_grad_() for x in inputs]
    theirs = [x.detach().clone().requires_grad_() for x in inputs]
    gradient = torch.randn_like(function(*inputs))
    results = []
    for run, given in ((compiled, ours), (function, theirs)):
        result = run(*given)
        result.backward(gradient)
        results.append((result.detach(), *(x.grad for x in given)))
    assert not difference(*results)
    (graph,) = compiled.graphs
    assert not graph.fallback
    return sum(tensor.bytes for tensor in graph.saved if not tensor.given)


def group_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(F.group_norm(x, 2, w, b))


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.layer_norm(x, (x.shape[-1],), w, b))


@pytest.mark.sample(3)
@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (1, 2, 33), (3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_group_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype) + 3
    w, b = torch.randn(2, shape[1], dtype=dtype)
    assert saved(group_norm, x, w, b) < x.nbytes or x.numel() < 16


def test_group_norm_without_weights_and_channels_last() -> None:
    x = torch.randn(2, 8, 5, 6).to(memory_format=torch.channels_last)
    assert saved(lambda x: F.silu(F.group_norm(x, 4)), x) < x.nbytes


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(8, 100), (2, 3, 17)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    w, b = torch.randn(2, shape[-1], dtype=dtype)
    found = saved(layer_norm, x, w, b)
    if dtype == torch.float32:
        assert found < x.nbytes


def test_a_matrix_product_takes_the_result_itself() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (x.shape[-1],)) @ w

    x = torch.randn(16, 32)
    assert saved(function, x, torch.randn(32, 8)) >= x.nbytes


def test_empty() -> None:
    assert saved(lambda x: F.silu(F.layer_norm(x, (4,))), torch.randn(0, 4)) == 0
