"""Plans of C++ loops: decided before anything is written, with reasons, and open to wishes."""

from __future__ import annotations

import pytest
import torch

import fusec


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def test_a_position_is_searched_among_what_follows_from_a_scan() -> None:
    """The search computes again what the loop had; not what lies below a finished sum."""

    def cell(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(-1).sum(-1, keepdim=True).expand(x.shape).argmax(-1)

    x = torch.randn(9, 100)
    torch.testing.assert_close(fusec.compile(cell)(x), cell(x))
