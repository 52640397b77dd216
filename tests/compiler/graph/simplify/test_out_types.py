"""Sums into a tensor of another type."""

from __future__ import annotations

import pytest
import torch

import fusec
from support.compare import difference


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64], ids=str)
def test_sums_are_added_up_in_the_type_of_out(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = [f(x, 0, out=torch.empty(2, dtype=dtype)) for f in (torch.sum, torch.prod)]
        running = (torch.cumsum, torch.cumprod)
        return *whole, *(f(x, 0, out=torch.empty(3, 2, dtype=dtype)) for f in running)

    x = torch.tensor([[1.6, 2.6], [3.7, -0.6], [1.1, 7.5]])
    found, plain = fusec.compile(function)(x), function(x)
    assert not difference(found, plain)
    for got, expected in zip(found, plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
