"""NumPy's arrays and numbers as arguments: taken in their own type, which TorchDynamo traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fusec


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32, np.uint8])
def test_an_array(kind: Any) -> None:
    def function(x: Any) -> Any:
        return x * 2, x[::-1] + x, x.astype(np.float64)

    compiled = fusec.compile(function)
    for size in (3, 3, 4):
        x = (np.arange(size) * 1.5).astype(kind)
        for ours, theirs in zip(compiled(x), function(x), strict=True):
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64])
def test_a_number(kind: Any) -> None:
    compiled = fusec.compile(lambda x, a: x * a)
    for number in (1, 2, 3):
        wanted = torch.ones(3) * float(number)
        torch.testing.assert_close(compiled(torch.ones(3), kind(number)).float(), wanted)


def test_an_array_beside_a_tensor() -> None:
    def function(x: Any, y: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x) * y

    compiled = fusec.compile(function)
    x, y = np.ones(3, dtype=np.float32), torch.randn(3, requires_grad=True)
    ours, theirs = compiled(x, y), function(x, y)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)
