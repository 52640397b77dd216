"""Random operators of symbolic sizes as functions of a seed."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fusec.graph.simplify.random_seeds import replace_random


def test_sizes_are_nodes() -> None:
    """So that a graph that is split hands them over; a bare symbol has no name there."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, columns = x.size(0), y.size(1)
        return torch.rand_like(x), torch.rand(columns, rows), torch.randn_like(y)

    module = make_fx(function, tracing_mode="symbolic")(torch.ones(3, 4), torch.ones(5, 6))
    assert replace_random(module) == 3
    module.graph.lint()
    bare: list[torch.SymInt] = []
    for node in module.graph.nodes:
        torch.fx.node.map_aggregate(
            (node.args, node.kwargs),
            lambda value: bare.append(value) if isinstance(value, torch.SymInt) else None,
        )
    assert not bare
