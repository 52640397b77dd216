"""Random operators of symbolic sizes as functions of a seed."""

from __future__ import annotations

import pytest
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


def test_a_size_that_is_a_node_already_is_that_node() -> None:
    """Whatever tensors of it there are: the nearest before it, an input for example."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.rand(x.size(0) * 2)

    module = make_fx(function, tracing_mode="symbolic")(torch.ones(3))
    before = {node for node in module.graph.nodes if isinstance(node.meta.get("val"), torch.SymInt)}
    assert replace_random(module) == 1
    after = [node for node in module.graph.nodes if isinstance(node.meta.get("val"), torch.SymInt)]
    assert {*after} == before, "none is asked for again"
    module.graph.lint()


def test_a_size_of_nothing_before_it_is_a_mistake() -> None:
    module = make_fx(lambda x: torch.rand(x.size(0)), tracing_mode="symbolic")(torch.ones(3))
    for node in module.graph.nodes:
        if node.op == "placeholder" or isinstance(node.meta.get("val"), torch.SymInt):
            node.meta.pop("val", None)
    with pytest.raises(AssertionError, match="not a size of anything before"):
        replace_random(module)
