"""Dropouts that drop nothing: the tensor itself, as in eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusec
from support.compare import difference


def residual(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = F.dropout(x, 0.1, training=False)
    h += y
    again = torch.dropout(F.dropout(y, 0.0), 0.5, False)
    return h + x, F.dropout(x, 0.5, False), again, torch.nn.Dropout(0.0)(y * 2)


@pytest.mark.parametrize("records", [False, True])
def test_a_dropout_that_drops_nothing_is_what_it_is_given(records: bool) -> None:
    compiled = fusec.compile(residual)
    for _ in range(2):
        y = torch.randn(3, 4)
        mine, theirs = torch.ones(3, 4), torch.ones(3, 4)
        if records:
            y.requires_grad_()
        found, expected = compiled(mine, y), residual(theirs, y)
        assert not difference([*found, mine], [*expected, theirs])
        assert found[1] is mine
        assert found[2] is y
        assert [each.requires_grad for each in found] == [each.requires_grad for each in expected]


def test_a_dropout_in_training_stays() -> None:
    x = torch.ones(400)
    dropped, kept = fusec.compile(lambda x: (F.dropout(x), F.dropout(x, 0.0) * 2))(x)
    assert set(dropped.tolist()) == {0.0, 2.0}
    assert kept.tolist() == [2.0] * 400
