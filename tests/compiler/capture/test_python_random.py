"""Numbers drawn from Python's ``random`` within a compiled function: new ones in each call."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import fusec


def draws(x: torch.Tensor) -> tuple[torch.Tensor, float, torch.Tensor]:
    """Use three numbers, one of them also as a number."""
    scale = random.uniform(0.5, 1.5)
    return x * scale + random.randint(1, 9), scale, x.sum() * random.uniform(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_drawn_numbers_are_as_in_eager(dtype: torch.dtype) -> None:
    compiled: Callable[..., tuple[torch.Tensor, float, torch.Tensor]] = fusec.compile(draws)
    x = torch.linspace(-1, 1, 6, dtype=dtype)
    found = []
    for seed in (1, 2):
        random.seed(seed)
        result, scale, total = compiled(x)
        state = random.getstate()
        random.seed(seed)
        wanted, wanted_scale, wanted_total = draws(x)
        assert scale == wanted_scale
        assert random.getstate() == state
        torch.testing.assert_close(result, wanted)
        if dtype is not torch.bfloat16:  # with none but single numbers TorchDynamo's are float32
            torch.testing.assert_close(total, wanted_total)
        if dtype is torch.float64:
            assert (result - wanted).abs().max() < 1e-14
        found.append(scale)
    assert found[0] != found[1]
