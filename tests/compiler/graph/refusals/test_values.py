"""Formulas of what eager refuses for its values, called as AOTAutograd calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import ValueRefused
from fusec.graph.decompositions import decomposition_table

aten = torch.ops.aten
T = torch.tensor
X, ROWS, POINT = torch.rand(3, 4), torch.arange(8.0).reshape(2, 4), T(2.0)
POOLED, PLACES = F.max_pool2d(torch.rand(1, 2, 4, 4), 2, return_indices=True)
DEEP, DEEP_PLACES = F.max_pool3d(torch.rand(1, 2, 4, 4, 4), 2, return_indices=True)

RULES: list[tuple[Any, Callable[[Any], tuple[Any, ...]], Any, list[Any]]] = [
    (aten.binary_cross_entropy, lambda x: (x, X), X, [X + 1, X - 1, X * torch.nan]),
    (aten.binary_cross_entropy, lambda y: (X, y), X, [X + 1, X - 1, X * torch.nan]),
    (aten.index_add, lambda i: (X, 0, i, ROWS), T([2, 0]), [T([2, 3]), T([-1, 0])]),
    (aten.index_copy, lambda i: (X, 0, i, ROWS), T([2, 0]), [T([2, 3]), T([-1, 0])]),
    (aten.index_add, lambda i: (POINT, 0, i, T(1.0)), T([0]), [T([1]), T([-1])]),
    (aten.index_copy, lambda i: (POINT, 0, i, T([1.0])), T([0]), [T([1]), T([-1])]),
    (aten.max_unpool2d, lambda i: (POOLED, i, (4, 4)), PLACES, [PLACES * 0 + 16, PLACES - 16]),
    (
        aten.max_unpool3d,
        lambda i: (DEEP, i, (4, 4, 4), (2, 2, 2), (0, 0, 0)),
        DEEP_PLACES,
        [DEEP_PLACES * 0 + 64, DEEP_PLACES - 64],
    ),
]


@pytest.mark.parametrize("number", range(len(RULES)), ids=[str(rule[0]) for rule in RULES])
def test_values_that_are_refused(number: int) -> None:
    packet, arguments, good, bad = RULES[number]
    rule = decomposition_table()[packet.default]  # as a graph is traced with it
    torch.testing.assert_close(rule(*arguments(good)), packet.default(*arguments(good)))
    for values in bad:
        with pytest.raises(ValueRefused):
            rule(*arguments(values))
        with pytest.raises((RuntimeError, IndexError)):
            packet.default(*arguments(values))


@pytest.mark.parametrize("dynamic", [None, True])
def test_classes_that_are_not_there(dynamic: bool | None) -> None:
    def coded(x: torch.Tensor) -> torch.Tensor:
        return F.one_hot(x, num_classes=3).float() @ torch.ones(3, 2) + F.one_hot(x, 3)[:, :2]

    compiled = fusec.compile(coded, dynamic=dynamic)
    torch.testing.assert_close(compiled(torch.tensor([0, 2])), coded(torch.tensor([0, 2])))
    for classes in ([0, 3], [-1, 2]):
        with pytest.raises(RuntimeError):
            compiled(torch.tensor(classes))
