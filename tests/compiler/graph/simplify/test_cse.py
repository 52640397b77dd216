"""Which nodes are one, in graphs made by hand."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch
from torch import fx

from fusec.graph.simplify.cse import merge_common

aten, prims = torch.ops.aten, torch.ops.prims
DEVICE = torch.device("cpu")


def merged(*calls: tuple[Any, ...], between: Any = None, **kwargs: Any) -> int:
    """Return how many of two calls (or of one, twice) are gone, something between them or not."""
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    given = calls if len(calls) == 2 else calls * 2
    made = []
    for target, *args in given:
        args = [x if each == "x" else y if each == "y" else each for each in args]
        made.append(graph.call_function(target, tuple(args), dict(kwargs)))
        if between is not None and len(made) == 1:
            between(graph, x, made[0])
    graph.output(graph.call_function(aten.add.Tensor, tuple(made)))
    nodes = len(graph.nodes)
    removed = merge_common(graph)
    assert len(graph.nodes) == nodes - removed
    graph.lint()
    return removed


@pytest.mark.parametrize(
    ("first", "second", "removed"),
    [
        ((aten.sin.default, "x"), (aten.sin.default, "x"), 1),
        ((aten.sin.default, "x"), (aten.sin.default, "y"), 0),
        ((aten.sin.default, "x"), (aten.cos.default, "x"), 0),
        ((prims.neg.default, "x"), (prims.neg.default, "x"), 1),
        ((aten.mul.Tensor, "x", 1), (aten.mul.Tensor, "x", 1.0), 0),
        ((aten.mul.Tensor, "x", 1), (aten.mul.Tensor, "x", True), 0),
        ((aten.mul.Tensor, "x", 0.0), (aten.mul.Tensor, "x", -0.0), 0),
        ((aten.mul.Tensor, "x", math.nan), (aten.mul.Tensor, "x", math.nan), 1),
        ((aten.mul.Tensor, "x", 2j), (aten.mul.Tensor, "x", 2j), 1),
        ((aten.sum.dim_IntList, "x", [0, 1]), (aten.sum.dim_IntList, "x", [0, 1]), 1),
        ((aten.sum.dim_IntList, "x", [0, 1]), (aten.sum.dim_IntList, "x", [1, 0]), 0),
        ((aten.to.dtype, "x", torch.int8), (aten.to.dtype, "x", torch.int8), 1),
        ((aten.to.dtype, "x", torch.int8), (aten.to.dtype, "x", torch.uint8), 0),
        ((operator.getitem, "x", 0), (operator.getitem, "x", 0), 1),
        ((operator.getitem, "x", slice(0, 2)), (operator.getitem, "x", slice(0, 2)), 1),
        ((operator.getitem, "x", slice(0, 2)), (operator.getitem, "x", slice(0, 2, 2)), 0),
        ((operator.add, "x", 1), (operator.add, "x", 1), 0),  # of sizes: costs nothing
        ((aten.rand_like.default, "x"), (aten.rand_like.default, "x"), 0),
        ((aten.bernoulli.default, "x"), (aten.bernoulli.default, "x"), 0),
        ((aten.empty_like.default, "x"), (aten.empty_like.default, "x"), 0),
        ((aten.empty.memory_format, [2]), (aten.empty.memory_format, [2]), 0),
        ((aten.zeros.default, [2]), (aten.zeros.default, [2]), 1),
        ((aten.add_.Tensor, "x", 1), (aten.add_.Tensor, "x", 1), 0),
        ((abs, "x"), (abs, "x"), 0),
        ((aten.index.Tensor, "x", [None, "y"]), (aten.index.Tensor, "x", [None, "y"]), 1),
        ((aten.sin.default, DEVICE), (aten.sin.default, DEVICE), 1),
        ((aten.sin.default, object), (aten.sin.default, object), 0),  # nobody knows it
    ],
    ids=str,
)
def test_which_are_equal(first: Any, second: Any, removed: int) -> None:
    assert merged(first, second) == removed


def test_names_of_arguments_count() -> None:
    assert merged((aten.sum.default, "x"), dtype=torch.float64) == 1
    assert merged((aten.sum.default, "x"), dtype=object()) == 0


@pytest.mark.parametrize(
    ("between", "removed"),
    [
        (lambda g, x, _: g.call_function(aten.neg.default, (x,)), 1),
        (lambda g, x, _: g.get_attr("weight"), 1),  # a constant changes nothing
        (lambda g, x, _: g.placeholder("late"), 1),
        (lambda g, x, _: g.call_function(operator.add, (x, 1)), 1),
        (lambda g, x, _: g.call_function(math.floor, (x,)), 1),
        (lambda g, x, _: g.call_function(aten.add_.Tensor, (x, 1)), 0),
        (lambda g, x, _: g.call_function(print, (x,)), 0),
        (lambda g, x, _: g.call_function(torch.sin, (x,)), 0),
    ],
)
def test_what_may_stand_between(between: Any, removed: int) -> None:
    assert merged((aten.sin.default, "x"), between=between) == removed


def test_sizes_that_only_the_data_knows_are_counted_anew() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = [graph.call_function(aten.nonzero.default, (x,)) for _ in range(2)]
    graph.output(graph.call_function(aten.cat.default, (made,)))
    made[1].meta["unbacked_bindings"] = {}
    assert merge_common(graph) == 0
    del made[1].meta["unbacked_bindings"]
    assert merge_common(graph) == 1
