"""Overrides about fusion, the drawn program, and what would be if."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.compiled.graph import NoInputs
from fusec.inspect.whatif import part_view, what_if
from fusec.report import FusionDecision
from fusec.schedule.overrides import FORBIDDEN, Overrides, pair
from fusec.schedule.step_graph import FusionView, why

x = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
weight = torch.randn(48, 48, generator=torch.Generator().manual_seed(1))


def norm_and_sum(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.gelu(x)
    z = F.layer_norm(y, (48,))
    return z, (y * z).sum(0)


def compiled(function: Any, *args: torch.Tensor) -> tuple[Any, Any, FusionView]:
    torch._dynamo.reset()
    module = fusec.compile(function, keep_inputs=True)
    module(*args)
    graph = module.graphs[0]
    return graph, graph.parts[0], part_view(graph.parts[0])


def named(view: FusionView, label: str) -> str:
    return next(node.name for node in view.before.nodes if node.label == label)


def test_a_pair_stays_apart_where_somebody_asks() -> None:
    graph, part, view = compiled(norm_and_sum, x)
    gelu, norm = named(view, "gelu"), named(view, "layer_norm")
    assert view.before.node(gelu).kernels == view.before.node(norm).kernels
    kernels = tuple(part.kernels)
    found = what_if(graph, part, Overrides(apart=frozenset([pair(gelu, norm)])), seconds=0.02)
    assert len(found.kernels) == len(kernels) + 1
    assert found.same
    assert found.errors
    apart = found.view.before
    assert not set(apart.node(gelu).kernels) & set(apart.node(norm).kernels)
    assert FORBIDDEN in {d.reason for d in found.view.decisions if not d.fused}
    assert tuple(part.kernels) == kernels, "what is in use stays"


def test_a_wish_goes_over_the_heuristics() -> None:
    # Two readers of a dear expression: each would compute it, so it is kept in memory.
    def dear(x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.tanh(torch.exp(x))
        return [y.sum(0), y.sum(1)]

    graph, part, view = compiled(dear, x)
    first, second = [n.name for n in view.before.nodes if n.kind == "kernel"][:2]
    sums = [n.name for n in view.before.nodes if n.label == "sum" and n.kind == "kernel"]
    assert len(sums) == 2
    producer = view.before.node(first if first not in sums else second)
    wanted = frozenset(pair(producer.name, name) for name in sums)
    found = what_if(graph, part, Overrides(together=wanted), seconds=0.02)
    assert found.same
    for name in sums:
        kernels = found.view.before.node(name).kernels
        assert set(kernels) & set(found.view.before.node(producer.name).kernels)


def test_a_wish_never_makes_a_fusion_legal() -> None:
    graph, part, view = compiled(norm_and_sum, x)
    norm, total = named(view, "layer_norm"), named(view, "sum")
    found = what_if(graph, part, Overrides(together=frozenset([pair(norm, total)])), seconds=0.02)
    assert found.same
    assert len(found.refused) == 1
    assert "are apart" in found.refused[0]


def test_training_graphs_have_parts_of_their_own() -> None:
    torch._dynamo.reset()
    parameter = weight.clone().requires_grad_()
    module = fusec.compile(lambda x: F.gelu(x @ parameter).sum(), keep_inputs=True)
    module(x).backward()
    (graph,) = module.graphs
    assert [part.kind for part in graph.parts] == ["forward", "backward"]
    for part in graph.parts:
        view = part_view(part)
        pairs = [d for d in view.decisions if d.fused]
        overrides = Overrides(apart=frozenset(pair(d.producer, d.consumer) for d in pairs))
        found = what_if(graph, part, overrides, seconds=0.02)
        assert found.same
        assert len(found.kernels) >= len(part.kernels)


def test_without_inputs_there_is_nothing_to_try() -> None:
    torch._dynamo.reset()
    module = fusec.compile(norm_and_sum)
    module(x)
    graph = module.graphs[0]
    with pytest.raises(NoInputs, match="keep_inputs"):
        what_if(graph, graph.parts[0], Overrides())


def test_edges_carry_their_bytes() -> None:
    _, _, view = compiled(lambda x: F.gelu(x) @ weight, x)
    edges = {(e.source, e.target): e.bytes for e in view.before.edges}
    gelu, product = named(view, "gelu"), named(view, "aten.mm")
    assert edges[gelu, product] == 64 * 48 * 4
    assert view.after.traffic == view.before.traffic
    # gelu reads one and writes one, the product reads that and the weight and writes its result
    rows, columns = weight.shape
    assert view.after.traffic == 4 * (3 * 64 * 48 + rows * columns + 64 * columns)
    assert view.before.node(product).kind == "extern"
    assert "ATen's own kernel" in why(view, gelu, product)


def test_fusion_lowers_the_traffic() -> None:
    _, _, view = compiled(norm_and_sum, x)
    one = 64 * 48 * 4
    small = 48 * 4
    # gelu: 2; norm: 2; mul: 3; sum: 1 and its small result
    assert view.before.traffic == 8 * one + small
    # z and the sum are written, x read; y and z are read by the second kernel
    assert view.after.traffic < view.before.traffic


def test_symbolic_sizes_have_no_bytes() -> None:
    torch._dynamo.reset()
    module = fusec.compile(norm_and_sum, dynamic=True, keep_inputs=True)
    module(x)
    view = part_view(module.graphs[0].parts[0])
    assert view.before.traffic == -1


def test_every_pair_has_a_reason() -> None:
    _, _, view = compiled(
        lambda x: (F.gelu(x) @ weight, x.sum(0), (x + 1).softmax(-1), x.t().contiguous() * 2), x
    )
    names = [node.name for node in view.before.nodes]
    for first in names:
        for second in names:
            if first != second:
                text = why(view, first, second)
                assert text.endswith(".")
                assert len(text) > 20


def test_a_direct_reason_comes_first() -> None:
    _, _, view = compiled(norm_and_sum, x)
    gelu, norm = named(view, "gelu"), named(view, "layer_norm")
    own = FusionDecision(gelu, norm, True, "because of this")
    changed = FusionView(view.before, view.after, (own, *view.decisions))
    assert "because of this" in why(changed, norm, gelu)
