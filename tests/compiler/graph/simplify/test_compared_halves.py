"""What is compared in half precision is rounded first: what is equal in eager is equal here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec

Function = Callable[[torch.Tensor], object]


def computed(x: torch.Tensor) -> torch.Tensor:
    return (x * 1.3).sin()


def with_its_mean(x: torch.Tensor) -> torch.Tensor:
    y = (x * 0 + 1.3) * 1.7
    return y == y.mean(-1, keepdim=True)


def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = computed(x)
    return y, y[0] == computed(x[0])


# Of each, what has to be the same as in eager to the last bit.
SAME: dict[str, Function] = {
    "mean": with_its_mean,
    "twice": twice,
    "twice, one is returned": lambda x: twice(x)[1],
    "a product": lambda x: x @ x.t() * 1.5 >= 2.5,
    "floor": lambda x: (x * 7.7).floor(),
    "ceil": lambda x: (x * 7.7).ceil(),
    "round": lambda x: (x * 7.7).round(),
    "to integers": lambda x: (x * 7.7).int(),
    "a remainder": lambda x: (x * 7.7).remainder(0.5),
    "greatest": lambda x: (x * 1.01).argmax(-1),
    "least": lambda x: (x * 1.01).min(0)[1],
    "below": lambda x: (x * 7.7) < (x + 1),
    "as a view": lambda x: (x * 7.7).t().contiguous() > 3.3,
}


@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("function", SAME.values(), ids=SAME)
@pytest.mark.sample(6)
def test_as_in_eager(function: Function, dtype: torch.dtype, target: str) -> None:
    compiled = fusec.compile(function, target=target)
    for seed in range(2):
        x = torch.randn(17, 33, generator=torch.Generator().manual_seed(seed)).to(dtype)
        ours, theirs = compiled(x), function(x)
        if isinstance(theirs, tuple):
            ours, theirs = ours[-1], theirs[-1]  # the others are rounded once, in eager twice
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_gradients_of_what_is_chosen(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 7.7
        return torch.where(y > y.floor() + 0.5, y * 2, y) + torch.where(y == x * 7.7, 1, y)

    compiled = fusec.compile(function)
    x = torch.randn(17, 33).to(dtype).requires_grad_()
    for called in (compiled, function):
        called(x).sum().backward()
    ours, x.grad = x.grad, None
    function(x).sum().backward()
    torch.testing.assert_close(ours, x.grad * 2)
