"""What is compared with its own extremes is the same number for both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec

Function = Callable[[torch.Tensor], torch.Tensor]

GRADIENTS: dict[str, Function] = {
    "amax": lambda x: F.gelu(x).amax(-1),
    "amin of columns": lambda x: F.gelu(x).amin(0),
    "the greatest of all": lambda x: F.silu(x).max(),
    "the least of all": lambda x: torch.tanh(x).min(),
    "largest distance": lambda x: torch.linalg.vector_norm(F.gelu(x), float("inf"), dim=-1),
    "of a norm": lambda x: F.layer_norm(x, x.shape[-1:]).amax(-2),
    "of what is not negative": lambda x: F.relu(F.gelu(x)).amax(-1),
    "of a view": lambda x: F.gelu(x).reshape(-1, 4).amax(-1),
    "of wider numbers": lambda x: F.gelu(x).float().amax(-1),
    "scattered": lambda x: torch.full((4,), -9.0, dtype=x.dtype).scatter_reduce(
        0, torch.arange(x.numel()) % 4, F.gelu(x).reshape(-1), "amax"
    ),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_goes_where_the_maximum_is(name: str, dtype: torch.dtype, target: str) -> None:
    torch._dynamo.reset()
    function = GRADIENTS[name]
    x = torch.randn(33, 24).to(dtype)
    compiled = fusec.compile(function, target=target)
    slopes = []
    for call in (compiled, function):
        leaf = x.clone().requires_grad_()
        call(leaf).float().square().sum().backward()
        assert leaf.grad is not None
        slopes.append(leaf.grad)
    assert not compiled.fallbacks
    assert not slopes[0].isnan().any()
    close = 1e-4 if dtype == torch.float32 else 0.1
    if dtype == torch.float32:  # rounded, several may be the greatest for one and not the other
        torch.testing.assert_close(slopes[0], slopes[1], rtol=close, atol=close)
    total = slopes[1].float().sum()
    torch.testing.assert_close(slopes[0].float().sum(), total, rtol=0.05, atol=close)


@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("size", [24, 5000])
def test_some_element_is_the_greatest(size: int, target: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.gelu(x)
        top = y.topk(3).values[:, -1:]
        return y == y.amax(-1, keepdim=True), (y >= top).sum(-1), 1 + torch.erf(x * 0.5**0.5)

    torch._dynamo.reset()
    x = torch.randn(7, size)
    for found, wanted in zip(fusec.compile(f, target=target)(x), f(x), strict=True):
        torch.testing.assert_close(found, wanted)


def test_the_reason_is_told() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(x)
        return y * (y == y.amax())

    torch._dynamo.reset()
    compiled = fusec.compile(f)
    compiled(torch.randn(300, 300))
    (stage,) = [s for s in compiled.graphs[0].stages if s.name == "schedule"]
    assert "compared with its own extremes" in stage.text
