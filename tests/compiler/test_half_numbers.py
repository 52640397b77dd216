"""Numbers beside half-precision tensors: as eager takes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec

Function = Callable[[torch.Tensor, float], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "eq": lambda x, s: x == s,
    "ne": lambda x, s: x != s,
    "ge": lambda x, s: x >= s,
    "le": lambda x, s: s >= x,
    "gt": lambda x, s: x > s,
    "lt": lambda x, s: x < s,
    "remainder": lambda x, s: x % s,
    "remainder of a number": lambda x, s: torch.remainder(s, x),
    "fmod": torch.fmod,
    "tensor of no dimensions": lambda x, s: x >= torch.tensor(s),
    "wide tensor of no dimensions": lambda x, s: torch.tensor(s, dtype=torch.float64) == x,
    "clamped": lambda x, s: x.clamp(min=s) == s,
    "filled": lambda x, s: x.masked_fill(x > 0, s) == s,
    "chosen": lambda x, s: torch.where(x > 0, x, s) == s,
    "full": lambda x, s: torch.full_like(x, s) == x,
    "floor": lambda x, s: x // s,
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_nearest_half_is_the_number(name: str, dtype: torch.dtype, target: str) -> None:
    numbers = [0.1, 0.3, 0.9, -0.7, 2.3]
    x = torch.tensor([*numbers, 0.7, -0.1, 1.3, float("nan"), float("inf")], dtype=dtype)

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [FUNCTIONS[name](x, number) for number in numbers]

    torch._dynamo.reset()
    compiled = fusec.compile(f, target=target)
    for found, wanted in zip(compiled(x), f(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert not compiled.fallbacks


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_gradient_of_a_bound(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    slopes = []
    for call in (fusec.compile(lambda x: x.clamp(0.9, 1.1)), lambda x: x.clamp(0.9, 1.1)):
        x = torch.tensor([0.9, 1.1, 1.0, 0.8, 1.2], dtype=dtype, requires_grad=True)
        call(x).sum().backward()
        slopes.append(x.grad)
    assert torch.equal(slopes[0], slopes[1])  # type: ignore[arg-type]
