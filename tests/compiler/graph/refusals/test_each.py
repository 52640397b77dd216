"""Lists of tensors that are updated one after the other, where that can be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import fusec
from fusec.graph.refusals.each import updates_what_it_updated
from support.captured import call_of

Tensor = torch.Tensor
add_, mul_, lerp_ = torch._foreach_add_, torch._foreach_mul_, torch._foreach_lerp_
copy_, addcdiv_ = torch._foreach_copy_, torch._foreach_addcdiv_

X, Y = torch.rand(4, 4), torch.rand(4, 4)
# Whether eager's order can be seen: the operator, its lists.
CASES: list[tuple[bool, Any, tuple[Any, ...]]] = [
    (False, mul_, ([X, Y], 2.0)),
    (True, mul_, ([X, X], 2.0)),
    (True, mul_, ([X[0], X[:, 1]], 2.0)),
    (False, mul_, ([X[0], X[1]], 2.0)),
    (False, mul_, ([X[:2], X[2:]], [1.0, 2.0])),
    (False, mul_, ([X[:0], X], 2.0)),
    (True, lerp_, ([X, Y], [Y, X], 0.5)),
    (False, lerp_, ([X, Y], [X, Y], 0.5)),
    (False, lerp_, ([X[0], Y[0]], [X[0], Y[0]], 0.5)),
    (False, add_, ([X[0], X[1]], [Y[0], X[0] * 1])),
    (True, add_, ([X[0], X[1]], [Y[0], X[0]])),
    (False, add_, ([X[0], X[1]], [X[1], Y[0]])),  # read before it is updated
    (True, add_, ([X[0]], [X[:, 0]])),  # eager refuses it
    (True, copy_, ([X[0], X[1]], [X[1], X[0]])),
    (True, addcdiv_, ([X, Y], [Y, Y], [X, X], 0.5)),
    (True, mul_, ([X, Y], X[0, 0])),
    (False, mul_, ([X, Y], torch.tensor(2.0))),
    (False, torch._foreach_add, ([X, X], 2.0)),
    (True, torch.ops.aten._foreach_mul_.Scalar, ([X, X], 2.0)),
    (False, mul_, ()),
    (False, mul_, (X, 2.0)),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_reasons(number: int) -> None:
    seen, target, args = CASES[number]
    node: fx.Node = call_of(target, *args)
    assert updates_what_it_updated(node) == seen


def same_twice(x: Tensor, y: Tensor) -> None:
    add_([x, x], [y, y])


def rows_and_columns(x: Tensor, y: Tensor) -> None:
    mul_([x[0], x[:, 1], x[1:]], 3.0)


def each_by_the_other(x: Tensor, y: Tensor) -> None:
    addcdiv_([x, y], [y, x], [y + 1, x + 1], 0.25)


def rows_around(x: Tensor, y: Tensor) -> None:
    copy_([x[0], x[1], x[2]], [x[1], x[2], x[0]])


def between_one_another(x: Tensor, y: Tensor) -> None:
    lerp_([x, y], [y, x], 0.5)


@pytest.mark.parametrize(
    "update",
    [same_twice, rows_and_columns, each_by_the_other, rows_around, between_one_another],
)
@pytest.mark.parametrize("within", [False, True])
def test_as_eager(update: Callable[[Tensor, Tensor], None], within: bool) -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if within:
            x, y = x * 2, y + 1
        update(x, y)
        return x + 1, y + 1

    compiled = fusec.compile(fn)
    for size in (4, 5):
        x, y = torch.rand(size, size), torch.rand(size, size)
        u, v = x.clone(), y.clone()
        torch.testing.assert_close(compiled(x, y), fn(u, v))
        torch.testing.assert_close((x, y), (u, v))
