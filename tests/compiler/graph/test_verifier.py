"""What the verifier of graphs says of one that a pass has spoiled, and of one that it has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fusec.graph.verifier import graph_problems

aten = torch.ops.aten


def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    top, places = torch.topk(x @ y, 2)
    return top.exp(), places, torch.nonzero(x), (x * 2).sum()


def traced() -> tuple[fx.GraphModule, dict[str, fx.Node]]:
    given = torch.randn(3, 4), torch.randn(4, 5)
    module = make_fx(function, tracing_mode="fake")(*given)
    return module, {node.name: node for node in module.graph.nodes}


def remade(node: fx.Node, **changes: Any) -> None:
    """Let a node say of its value what is not so."""
    old = node.meta["val"]
    given = {"dtype": old.dtype, "device": old.device} | changes
    size = given.pop("size", old.shape)
    with old.fake_mode:
        node.meta["val"] = torch.empty(size, **given)


def late_input(module: fx.GraphModule, nodes: dict[str, fx.Node], name: str) -> None:
    with module.graph.inserting_after(nodes["mm"]):
        module.graph.placeholder(name)


def method(module: fx.GraphModule, nodes: dict[str, fx.Node]) -> None:
    with module.graph.inserting_after(nodes["mm"]):
        module.graph.call_method("exp", (nodes["mm"],))


def no_value(module: fx.GraphModule, nodes: dict[str, fx.Node]) -> None:
    del nodes["mm"].meta["val"]


def other_argument(module: fx.GraphModule, nodes: dict[str, fx.Node]) -> None:
    nodes["mm"].args = (nodes["y_1"], nodes["y_1"])


def several(module: fx.GraphModule, nodes: dict[str, fx.Node], **changes: Any) -> None:
    top, places = nodes["topk"].meta["val"]
    with top.fake_mode:
        wrong = torch.empty(
            changes.get("size", places.shape), dtype=changes.get("dtype", places.dtype)
        )
    nodes["topk"].meta["val"] = (top, wrong)


Change = Callable[[fx.GraphModule, dict[str, fx.Node]], object]
SPOILED: dict[str, tuple[str, str, Change]] = {
    "a late input": ("late_input", "late", lambda m, n: late_input(m, n, "late")),
    "a method": ("node_kind", "exp_1", method),
    "no value": ("no_value", "mm", no_value),
    "another type": ("value_dtype", "exp", lambda m, n: remade(n["exp"], dtype=torch.float64)),
    "another shape": ("value_shape", "exp", lambda m, n: remade(n["exp"], size=(3, 3))),
    "another rank": ("value_shape", "exp", lambda m, n: remade(n["exp"], size=(3, 2, 1))),
    "another device": ("value_device", "exp", lambda m, n: remade(n["exp"], device="meta")),
    "a type of several": ("value_dtype", "topk", lambda m, n: several(m, n, dtype=torch.int32)),
    "a shape of several": ("value_shape", "topk", lambda m, n: several(m, n, size=(3, 1))),
    "an argument that does not fit": ("refused", "mm", other_argument),
    "no outputs": ("outputs", "graph", lambda m, n: m.graph.erase_node(n["output"])),
    "no order": ("broken_graph", "graph", lambda m, n: n["output"].append(n["mm"])),
}  # fmt: skip


def test_a_graph_as_it_was_traced_is_right() -> None:
    module, nodes = traced()
    assert graph_problems(module) == []
    late_input(module, nodes, "tangents_token")  # where AOTAutograd puts it
    assert graph_problems(module) == []


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_spoiled_is_named(name: str) -> None:
    kind, place, spoil = SPOILED[name]
    module, nodes = traced()
    spoil(module, nodes)
    (problem, *rest) = graph_problems(module)
    assert (problem.kind, problem.where) == (kind, place), problem
    assert not rest or name in ("no order", "an argument that does not fit")


def test_what_nobody_can_know_is_not_judged() -> None:
    module, nodes = traced()
    remade(nodes["nonzero"], size=(2, 2), dtype=torch.float64)  # how many depends on the data
    assert graph_problems(module) == []
    with module.graph.inserting_before(nodes["output"]):
        effect = module.graph.call_function(aten._assert_async.default, (nodes["x_1"],))
        nothing = module.graph.call_function(aten.neg.default, (nodes["x_1"],))
        other = module.graph.call_function(abs, (nodes["x_1"],))
    effect.meta["val"], nothing.meta["val"] = None, None
    other.meta["val"] = nodes["mm"].meta["val"]
    assert graph_problems(module) == []


def test_unknown_sizes_are_equal_to_any() -> None:
    module = make_fx(torch.neg, tracing_mode="fake")(torch.randn(3, 4))
    given, made, _ = module.graph.nodes
    shapes = ShapeEnv()
    with FakeTensorMode(shape_env=shapes):
        size = shapes.create_unbacked_symint()
        given.meta["val"] = torch.empty(size, 4)
        for shape, count in (((size, 4), 0), ((3, 4), 0), ((size, 5), 1), ((size, 4, 1), 1)):
            made.meta["val"] = torch.empty(shape)
            assert len(graph_problems(module)) == count


def test_without_tensors_there_is_nothing_to_ask() -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(aten.zeros.default, ([2],)))
    module = fx.GraphModule({}, graph)
    assert [each.kind for each in graph_problems(module)] == ["no_value"]
    node = next(iter(graph.nodes))
    node.meta["val"] = torch.empty(3)
    assert graph_problems(module) == []
