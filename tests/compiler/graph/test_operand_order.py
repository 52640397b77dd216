"""Results of operands that lie otherwise than one another lie as eager's do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import fusec

Binary = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def sum_of_a_part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.add(x, y, alpha=0.5)


def difference_of_a_part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sub(x, y, alpha=0.5)


def reversed_difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.rsub(x, y, alpha=0.5)


def part_of_a_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(x, y, x, value=0.3)


OPERATORS: tuple[Binary, ...] = (
    sum_of_a_part,
    difference_of_a_part,
    reversed_difference,
    part_of_a_product,
    torch.heaviside,
    torch.logaddexp,
    torch.logaddexp2,
    torch.logical_xor,
)


def _operands(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    if kind == "repeated":
        return torch.randn(8, 2).t().unsqueeze(1), torch.randn(2, 8)
    if kind == "turned":
        return torch.randn(8, 1, 2).permute(2, 1, 0), torch.randn(2, 4, 8)
    return torch.randn(8, 2).t(), torch.randn(3, 1, 8)


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", ["repeated", "turned", "longer"])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.__name__)
def test_operands_of_several_shapes(operator: Binary, kind: str) -> None:
    torch._dynamo.reset()
    compiled = fusec.compile(lambda x, y: (operator(x, y), operator(y, x)))
    x, y = _operands(kind)
    for got, expected in zip(compiled(x, y), (operator(x, y), operator(y, x)), strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


def test_a_loss_of_each_element_lies_as_its_input() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(x, y, reduction="none")

    x, y = torch.rand(8, 2).t(), torch.rand(2, 8)
    compiled = fusec.compile(function)
    for given in ((x, y), (y, x)):
        got, expected = compiled(*given), function(*given)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()
