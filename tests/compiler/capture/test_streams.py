"""A function that computes on several streams of a GPU runs in eager: nothing crosses them."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.variables.streams
from torch import fx

import fusec
from fusec.capture.inputs.graph_inputs import needs_eager


def on_two_streams(x: torch.Tensor) -> torch.Tensor:
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        y = (x @ x) * 2 + 1
    torch.cuda.current_stream().wait_stream(other)
    return (y + x).relu()


def test_a_graph_that_changes_streams_is_not_compiled() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.add.Tensor, (x, 1))
    graph.output((y,))
    module = fx.GraphModule({}, graph)
    assert not needs_eager(module, [torch.ones(2)])
    with graph.inserting_before(y):
        graph.call_function(torch.ops.streams.fork.default, (0, 1))
    module.recompile()
    assert "stream" in needs_eager(module, [torch.ones(2)])


@pytest.mark.gpu
@pytest.mark.parametrize("train", [False, True])
def test_streams_within_a_function(train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    compiled = fusec.compile(on_two_streams)
    for seed in range(4):
        torch.manual_seed(seed)
        given = [torch.randn(512, 512, device="cuda").requires_grad_(train) for _ in range(2)]
        given[1].data.copy_(given[0].data)
        expected, actual = on_two_streams(given[0]), compiled(given[1])
        torch.testing.assert_close(actual, expected)
        if train:
            expected.sum().backward()
            actual.sum().backward()
            torch.testing.assert_close(given[1].grad, given[0].grad)
    # either TorchDynamo broke the graph off at them, or it captured them
    captured = any(
        getattr(node.target, "namespace", "") == "streams"
        for graph in compiled.graphs
        for node in graph.eager.graph.nodes
    )
    assert not captured or any("stream" in each for each in compiled.fallbacks)
