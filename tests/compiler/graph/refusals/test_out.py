"""Results written where ``out=`` says, of what is asked whether eager refuses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec

Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]
ROWS, PLACES = torch.tensor([0, 2]), torch.tensor([[0], [1]])
aten = torch.ops.aten
WRITES: dict[str, Write] = {
    "index_select": lambda o, x, y: torch.index_select(x, 0, torch.tensor([3, 1, 1, 0]), out=o),
    "index_select by name": lambda o, x, y: torch.index_select(
        input=x, dim=0, index=torch.tensor([3, 1, 1, 0]), out=o
    ),
    "index_copy": lambda o, x, y: torch.index_copy(x, 0, ROWS, y[:2], out=o),
    "index_add": lambda o, x, y: torch.index_add(x, 0, ROWS, y[:2], alpha=2, out=o),
    "index_reduce": lambda o, x, y: torch.index_reduce(x, 0, ROWS, y[:2], "amax", out=o),
    "index_fill": lambda o, x, y: aten.index_fill.int_Scalar_out(x, 0, ROWS, 2.0, out=o),
    "slice_scatter": lambda o, x, y: aten.slice_scatter.out(x, y[:2], 0, 1, 3, out=o),
    "select_scatter": lambda o, x, y: aten.select_scatter.out(x, y[0], 0, 1, out=o),
    "diagonal_scatter": lambda o, x, y: aten.diagonal_scatter.out(x, y[0], out=o),
    "index_put": lambda o, x, y: aten.index_put.out(x, [ROWS], y[:2], out=o),
    "put": lambda o, x, y: aten.put.out(x, ROWS, y[0, :2], out=o),
    "masked_scatter": lambda o, x, y: aten.masked_scatter.out(x, x > 0, y, out=o),
    "scatter": lambda o, x, y: torch.scatter(x, 0, PLACES, y, out=o),
    "gather": lambda o, x, y: torch.gather(x, 0, PLACES.expand(2, 4)[[0, 1, 0, 1]], out=o),
    "addr": lambda o, x, y: torch.addr(x, y[0], y[1], beta=2, alpha=3, out=o),
    "pow": lambda o, x, y: torch.pow(x, 2, out=o),
    "where": lambda o, x, y: torch.where(x > 0, x, y, out=o),
}


@pytest.mark.parametrize("name", WRITES)
def test_where_out_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")  # an error of what asks would run it in eager

    def function(o: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        WRITES[name](o, x, y)
        return o * 2

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    places = [torch.zeros(4, 4) for _ in range(2)]
    expected = function(places[0], x, y)
    torch._dynamo.reset()
    actual = fusec.compile(function)(places[1], x, y)
    torch.testing.assert_close((actual, places[1]), (expected, places[0]))
