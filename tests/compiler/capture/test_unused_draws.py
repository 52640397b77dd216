"""With eager's own random numbers those count, too, that nobody uses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import fusec


def alone(x: torch.Tensor) -> torch.Tensor:
    torch.rand(5)
    return x + torch.rand(5)


def computed_with(x: torch.Tensor) -> torch.Tensor:
    noise = torch.randn_like(x) * 2
    noise = noise + 1
    return F.dropout(x + 1, 0.5, training=True)


def in_place(x: torch.Tensor) -> torch.Tensor:
    torch.empty(7).uniform_()
    return torch.bernoulli(torch.full_like(x, 0.5)) + x


def of_one_of_two(x: torch.Tensor) -> torch.Tensor:
    kept, _ = torch.randn(5), F.dropout(x, 0.3, training=True)
    return kept * x + torch.randn(5)


def behind_a_generator_that_is_used(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x).normal_()
    return x + y + torch.rand(5)


UNUSED = (alone, computed_with, in_place, of_one_of_two)


@pytest.mark.parametrize("function", [*UNUSED, behind_a_generator_that_is_used])
@pytest.mark.parametrize("records", [False, True])
def test_numbers_are_eagers(
    function: Callable[[torch.Tensor], torch.Tensor],
    records: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FUSEC_STRICT", raising=False)
    x = torch.linspace(-1, 1, 5, requires_grad=records)
    compiled = fusec.compile(function, eager_random=True)
    for seed in (3, 4):
        torch.manual_seed(seed)
        expected, after = function(x), torch.rand(2)
        torch.manual_seed(seed)
        assert torch.equal(compiled(x), expected)
        assert torch.equal(torch.rand(2), after)
    (graph,) = compiled.graphs
    said = "draws random numbers that nobody uses" in (graph.fallback or "")
    assert said == (function in UNUSED)
