"""A backward graph for gradients that were not asked for holds nothing that only those needed."""

from __future__ import annotations

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
