"""Dropout that drops nothing is its input: who updates the one updates the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import fusec
from fusec.graph.simplify.idle_dropout import pass_input_on

Function = Callable[[torch.Tensor], torch.Tensor]
IDLE: dict[str, Function] = {
    "in evaluation": lambda x: F.dropout(x, 0.5, training=False),
    "of nothing": lambda x: F.dropout(x, 0.0),
    "by position": lambda x: F.dropout(x, 0.3, False),
    "in place": lambda x: F.dropout(x, 0.3, False, True),
    "torch's": lambda x: torch.dropout(x, 0.5, False),
    "by name": lambda x: F.dropout(p=0, input=x),
}


@pytest.mark.parametrize("name", IDLE)
def test_it_is_its_input(name: str) -> None:
    torch._dynamo.reset()
    x = torch.randn(5)
    compiled = fusec.compile(IDLE[name])
    assert compiled(x).data_ptr() == x.data_ptr()
    assert not compiled.fallbacks

    def updated(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        IDLE[name](y).add_(1)
        return y

    torch.testing.assert_close(fusec.compile(updated)(x), x * 2 + 1)


@pytest.mark.parametrize(
    ("p", "training", "is_input"),
    [(0.5, True, False), (1.0, True, False), (0.0, True, True), (1.0, False, True)]
    + [(1.5, False, False), (-0.1, False, False)],
)
def test_what_drops_stays(p: float, training: bool, is_input: bool) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(F.dropout, (x, p, training)))
    module = fx.GraphModule({}, graph)
    changed = pass_input_on(module)
    assert (changed is not module) == is_input
    assert len(module.graph.nodes) == 3
    assert len(changed.graph.nodes) == (2 if is_input else 3)


def test_eager_raises_for_odd_shares_and_so_do_we() -> None:
    torch._dynamo.reset()
    with pytest.raises(ValueError, match="dropout probability"):
        F.dropout(torch.ones(2), 1.5, training=False)
    with pytest.raises(Exception, match="dropout probability"):
        fusec.compile(lambda x: F.dropout(x, 1.5, training=False))(torch.ones(2))
