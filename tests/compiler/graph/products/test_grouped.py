"""Loops over experts in a graph become products of groups of rows, where that may be."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from fusec.graph.products import grouped

ROWS, INNER, COLUMNS, GROUPS = 12, 8, 6, 3


# What ``transformers`` defines, which takes seconds to import.
_LIBRARY = torch.library.Library("fusec_test_groups", "DEF")
_LIBRARY.define("loop(Tensor x, Tensor weight, Tensor ends) -> Tensor")
_LIBRARY.define(
    "backward(Tensor x, Tensor weight, Tensor ends, Tensor gradient) -> (Tensor, Tensor)"
)


@pytest.fixture(autouse=True)
def _loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "LOOP", "fusec_test_groups::loop")
    monkeypatch.setattr(grouped, "BACKWARD", "fusec_test_groups::backward")


def graph_of(
    device: str = "cuda",
    dtype: torch.dtype = torch.float32,
    ends: torch.dtype = torch.int32,
    weights: torch.dtype | None = None,
    columns: int = COLUMNS,
) -> fx.GraphModule:
    """Return a graph of a loop and of its gradients."""
    graph = fx.Graph()
    with FakeTensorMode():
        given = {
            "x": torch.empty(ROWS, INNER, dtype=dtype, device=device),
            "weight": torch.empty(GROUPS, INNER, columns, dtype=weights or dtype, device=device),
            "ends": torch.empty(GROUPS, dtype=ends, device=device),
            "gradient": torch.empty(ROWS, columns, dtype=dtype, device=device),
        }
    nodes = []
    for name, value in given.items():
        nodes.append(graph.placeholder(name))
        nodes[-1].meta["val"] = value
    ops = torch.ops.fusec_test_groups
    forward = graph.call_function(ops.loop.default, tuple(nodes[:3]))
    backward = graph.call_function(ops.backward.default, tuple(nodes))
    graph.output((forward, backward))
    return fx.GraphModule({}, graph)


def targets(module: fx.GraphModule) -> list[str]:
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    return [node.target._schema.name for node in calls]  # type: ignore[union-attr]


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("ends", [torch.int32, torch.int64], ids=str)
def test_loops_on_a_gpu_become_products(dtype: torch.dtype, ends: torch.dtype) -> None:
    module = graph_of(dtype=dtype, ends=ends)
    assert grouped.multiply_groups(module) == 2
    assert targets(module) == ["fusec::grouped_product", "fusec::grouped_product_backward"]


@pytest.mark.parametrize(
    "module",
    [
        lambda: graph_of(device="cpu"),
        lambda: graph_of(dtype=torch.float64),
        lambda: graph_of(ends=torch.int16),
        lambda: graph_of(weights=torch.float16),
        lambda: graph_of(columns=2**29),
    ],
    ids=["on a CPU", "float64", "ends of 16 bits", "two types", "matrices of 64 bits"],
)
def test_other_loops_stay(module: object) -> None:
    made = module()  # type: ignore[operator]
    assert grouped.multiply_groups(made) == 0
    assert all(name.startswith("fusec_test_groups::") for name in targets(made))


@pytest.mark.parametrize("turned", [False, True])
def test_shapes_and_layouts_are_as_the_loop_has_them(turned: bool) -> None:
    shape = (GROUPS, COLUMNS, INNER) if turned else (GROUPS, INNER, COLUMNS)
    weight = torch.empty(shape, device="meta")
    weight = weight.transpose(1, 2) if turned else weight
    x, ends = torch.empty(ROWS, INNER, device="meta"), torch.empty(GROUPS, device="meta").int()
    made = torch.ops.fusec.grouped_product(x, weight, ends)
    assert made.shape == (ROWS, COLUMNS)
    of_x, of_weight = torch.ops.fusec.grouped_product_backward(x, weight, ends, made)
    assert (of_x.shape, of_x.stride()) == (x.shape, x.stride())
    assert (of_weight.shape, of_weight.stride()) == (weight.shape, weight.stride())
