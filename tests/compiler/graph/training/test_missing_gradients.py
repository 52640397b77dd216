"""A backward graph for gradients that were not asked for holds nothing that only those needed."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from fusec.graph.training.unasked import without_gradients

aten = torch.ops.aten


def test_what_only_missing_gradients_need_is_gone() -> None:
    graph = fx.Graph()
    saved, first, second = (graph.placeholder(n) for n in ("saved", "tangents_1", "tangents_2"))
    kept = graph.call_function(aten.mul.Tensor, (first, saved))
    only = graph.call_function(aten.exp.default, (saved,))
    lost = graph.call_function(aten.mul.Tensor, (second, only))
    graph.output((kept, lost))
    for node in graph.nodes:
        node.meta["val"] = torch.ones(3)
    module = fx.GraphModule({}, graph)
    changed = without_gradients(module, {1}, 0)
    assert changed is not None
    calls = [node.target for node in changed.graph.nodes if node.op == "call_function"]
    assert calls == [aten.mul.Tensor]
    one, two = torch.full((3,), 2.0), torch.full((3,), 5.0)
    result, nothing = changed(one, two, two)
    assert torch.equal(result, one * two)
    assert nothing is None
    assert len(module.graph.nodes) == 7, "it is not changed itself"


@pytest.mark.parametrize("reached", range(8))
def test_what_a_function_of_the_users_gets_for_nothing_is_zeros(reached: int) -> None:
    """Each of the results has a bit of its own; of those that are there it says nothing."""
    graph = fx.Graph()
    first, second = (graph.placeholder(name) for name in ("tangents_1", "tangents_2"))
    results = [graph.call_function(aten.neg.default, (each,)) for each in (second, first, second)]
    graph.output(tuple(results))
    for node in graph.nodes:
        node.meta["val"] = torch.ones(3)
    changed = without_gradients(fx.GraphModule({}, graph), {1}, reached)
    assert changed is not None
    found = changed(torch.full((3,), 2.0), torch.full((3,), 5.0))
    assert torch.equal(found[1], torch.full((3,), -2.0))
    for n in (0, 2):
        if reached >> n & 1:
            assert torch.equal(found[n], torch.zeros(3))
        else:
            assert found[n] is None
