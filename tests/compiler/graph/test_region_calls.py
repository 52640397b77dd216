"""Calls of regions in graphs made by hand: what takes their place."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx, nn

from fusec.graph.regions import _INVOKE, inline_regions

pytestmark = pytest.mark.skipif(_INVOKE is None, reason="this torch has no regions")
aten = torch.ops.aten


class Tables(nn.Module):
    """What a graph's attributes are of."""

    def __init__(self, **tables: Any) -> None:
        super().__init__()
        for name, table in tables.items():
            setattr(self, name, table)


def region(scale: float, *more: Any) -> fx.GraphModule:
    """Return a region that yields ``x * table``, ``x`` itself, and what else is given."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(aten.mul.Tensor, (x, graph.get_attr("table")))
    graph.output((made, x, *more))
    return fx.GraphModule(Tables(table=torch.full((3,), scale)), graph)


def calling(*regions: fx.GraphModule, parts: int = 2) -> fx.GraphModule:
    """Return a graph that calls each region with what the one before has made."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    results: list[fx.Node] = []
    for n in range(len(regions)):
        place = graph.get_attr(f"region_{n}")
        call = graph.call_function(_INVOKE, (place, f"name_{n}", results[-2] if results else x))
        results += [graph.call_function(operator.getitem, (call, k)) for k in range(parts)]
    graph.output(tuple(results))
    tables = {f"region_{n}": each for n, each in enumerate(regions)}
    module = fx.GraphModule(Tables(**tables), graph)
    module.table = torch.ones(())  # called as the regions' own
    return module


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="call_function", target=_INVOKE))


def test_results_and_constants() -> None:
    """A region's constants get names of their own, and one that is shared is one."""
    first, second = region(2.0), region(5.0)
    module = calling(first, second, first)
    x = torch.arange(3.0)
    assert inline_regions(module) == 3
    assert not calls(module)
    a, same, b, a_again, c, b_again = module(x)
    assert torch.equal(same, x)
    assert torch.equal(a, 2 * x)
    assert torch.equal(a_again, a)
    assert torch.equal(b, 10 * x)
    assert torch.equal(b_again, b)
    assert torch.equal(c, 20 * x)
    names = {n.target for n in module.graph.nodes if n.op == "get_attr"}
    assert names == {"table_1", "table_2"}
    assert module.table.numel() == 1


def test_results_that_are_no_tensors() -> None:
    module = calling(region(2.0, None, 7), parts=4)
    assert inline_regions(module) == 1
    *_, nothing, number = module(torch.ones(3))
    assert (nothing, number) == (None, 7)


def test_a_region_calls_another() -> None:
    inner = calling(region(2.0), region(3.0))
    module = calling(inner, parts=3)
    assert inline_regions(module) == 1
    assert not calls(module)
    assert torch.equal(module(torch.ones(3))[2], torch.full((3,), 6.0))


def test_what_is_not_known_stays() -> None:
    module = calling(region(2.0))
    call = calls(module)[0]
    with module.graph.inserting_after(call):
        module.graph.call_function(len, (call,))  # it wants all results at once
    assert inline_regions(module) == 0
    module = calling(region(2.0))
    module.region_0 = nn.Identity()
    assert inline_regions(module) == 0
    module = calling(region(2.0))
    call = calls(module)[0]
    call.args = ("region_0", *call.args[1:])
    assert inline_regions(module) == 0
    assert inline_regions(region(2.0)) == 0
