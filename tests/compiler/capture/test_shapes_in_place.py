"""Tensors that get another shape in place: what is read of it afterwards, and made of that."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusec
from support.compare import difference


def reshaped(x: torch.Tensor, given: torch.Tensor) -> tuple[Any, ...]:
    given.t_()
    turned, same, cut, grown = (x.clone() for _ in range(4))
    same = turned
    chained = turned.t_().unsqueeze_(0)
    turned.swapdims_(0, 1).squeeze_(1)
    cut.as_strided_((3,), (2,))
    grown.resize_(2, 3)
    return (
        *(y.shape for y in (given, turned, same, cut, grown)),
        turned.stride(),
        chained.is_contiguous(),
        len(cut),
        grown.numel(),
        torch.zeros(given.shape) + given,
        turned.reshape(-1, turned.shape[-1]),
        cut * 2,
    )


@pytest.mark.parametrize("dynamic", [False, True], ids=["sizes", "any size"])
def test_shapes_after_they_changed_in_place(dynamic: bool) -> None:
    compiled = fusec.compile(reshaped, dynamic=dynamic)
    for _ in range(2):
        x, given = torch.randn(1, 7), torch.randn(2, 5)
        mine = given.clone()
        assert not difference(compiled(x, mine), reshaped(x, given))
        assert mine.shape == given.shape
