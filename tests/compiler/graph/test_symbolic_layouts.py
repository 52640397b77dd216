"""Passes over layouts leave convolutions and results of symbolic sizes as they are."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fusec.graph.convolutions import channels_last
from fusec.graph.convolutions.relayout import Relayout

aten = torch.ops.aten


def fakes(dynamic: bool, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Return fake tensors with the channels innermost, whose first dimension may be symbolic."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    found = []
    for shape in shapes:
        sizes = [DimDynamic.STATIC] * len(shape)
        if dynamic:
            sizes[0] = DimDynamic.DYNAMIC
        real = torch.empty(shape).to(memory_format=torch.channels_last)
        context = StatelessSymbolicContext(dynamic_sizes=sizes)
        found.append(mode.from_tensor(real, symbolic_context=context))
    return found


def graph_of(target: object, given: list[torch.Tensor], *more: object) -> fx.Node:
    """Return the node of an operator on fake tensors."""
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{n}") for n in range(len(given))]
    for node, value in zip(nodes, given, strict=True):
        node.meta["val"] = value
    made = graph.call_function(target, (*nodes, *more))  # type: ignore[arg-type]
    made.meta["val"] = target(*given, *more)  # type: ignore[operator]
    graph.output((made,))
    return made


@pytest.mark.parametrize("dynamic", [False, True])
def test_convolutions(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels_last, "innermost_channels_pay", lambda *given: True)
    (images,) = fakes(dynamic, (6, 8, 12, 12))
    with images.fake_mode:  # type: ignore[attr-defined]
        weight = torch.empty(16, 8, 3, 3)
        rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        node = graph_of(aten.convolution.default, [images, weight], *rest)
    assert channels_last._is_wanted(node) != dynamic


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_lie_as_their_elements(dynamic: bool) -> None:
    """A result whose sizes are symbolic, wholly or in part, or that is empty, lies as traced."""
    (given,) = fakes(dynamic, (6, 8, 12, 12))
    with given.fake_mode:  # type: ignore[attr-defined]
        node = graph_of(aten.relu.default, [given])
        node.meta["val"] = node.meta["val"].contiguous()
    relayout = Relayout(node.graph)
    copy = next(n for n in relayout.graph.nodes if n.op == "call_function")
    before = copy.meta["val"]
    assert relayout.follow_elements(copy, copy.args[0]) != dynamic
    assert (copy.meta["val"] is before) == dynamic
    copy.meta["val"] = before[:0]
    assert not relayout.follow_elements(copy, copy.args[0])
    copy.meta["val"] = before
    source = copy.all_input_nodes[0]
    source.meta["val"] = before  # as a result lies anyway
    assert not relayout.follow_elements(copy, source)
