"""Slices of one element that keep their dimension: the same done to several, in one kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec

Each = Callable[[torch.Tensor], torch.Tensor]
EACH: dict[str, Each] = {
    "softmax": lambda p: torch.softmax(p, -1),
    "running sums": lambda p: p.cumsum(0),
    "sums": lambda p: p.sum(-1),
    "norm": lambda p: F.layer_norm(p, p.shape[-1:]),
    "less its mean": lambda p: p - p.mean(-1, keepdim=True),
    "each element": torch.exp,
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", EACH)
def test_several_slices(name: str, dynamic: bool) -> None:
    """Of an input, and of what is computed first."""

    def slices(x: torch.Tensor) -> list[torch.Tensor]:
        wave = torch.sin(x) * torch.sigmoid(x)
        parts = (x[:, 1:2], x[:, :1], x[:, -1:], *wave.split(1, 1)[1:3])
        return [EACH[name](part) for part in parts]

    compiled = fusec.compile(slices, target="plain" if dynamic else "cpp", dynamic=dynamic)
    for rows in (3, 5):
        x = torch.randn(rows, 4, 6)
        for mine, eager, exact in zip(compiled(x), slices(x), slices(x.double()), strict=True):
            assert mine.stride() == eager.stride()
            assert float((mine.double() - exact).abs().max()) < 1e-5
