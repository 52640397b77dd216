"""Memory with gaps that is written into: how what is returned of it lies, and shares memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from support.compare import difference


def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = torch.empty_strided(x.size(), x.stride())
    made.copy_(x).mul_(2)
    return made, made[1:]


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "filled": lambda x: (torch.empty_strided((5,), (2,)).fill_(1),),
    "added to": lambda x: (torch.empty_strided((4, 2), (5, 2)).zero_().add_(x[:, :2]),),
    "of another type": lambda x: (
        x.new_empty_strided(x.size(), x.stride(), dtype=torch.half).copy_(x).sqrt_(),
    ),
    "two that share memory": parts,
    "of nothing": lambda x: (torch.empty_strided((3, 0), (4, 2)).fill_(1),),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_lie_as_in_eager(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = fusec.compile(function, dynamic=True)
    for columns in (6, 7):
        x = torch.rand(4, 9)[:, :columns]
        found, plain = compiled(x), function(x)
        assert not difference(found, plain)
        for got, expected in zip(found, plain, strict=True):
            assert got.stride() == expected.stride()
            assert got.storage_offset() == expected.storage_offset()
            assert got.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
            assert got.untyped_storage().data_ptr() == found[0].untyped_storage().data_ptr()
    assert not any(graph.fallback for graph in compiled.graphs)
