"""The result of a norm as a formula of its input and its statistics.

A norm is one operator, whose result the partitioner can only keep: as large as the input, and
written by forward for nothing else where an activation follows.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from fusec.graph.facts.insertion import caller

aten = torch.ops.aten
_NORMS = (aten.native_group_norm.default, aten.native_layer_norm.default)
_EXACT = (torch.float32, torch.float64)


def has_statistics(node: fx.Node) -> bool:
    """Whether a node is a norm of known sizes that yields exact statistics."""
    if node.target not in _NORMS:
        return False
    results = _results(node)
    if len(results) < 3:
        return False
    x = node.args[0]
    assert isinstance(x, fx.Node)
    exact = all(results[i].meta["val"].dtype in _EXACT for i in (1, 2))
    return exact and all(isinstance(size, int) and size > 0 for size in x.meta["val"].shape)


def _results(node: fx.Node) -> dict[Any, fx.Node]:
    return {n.args[1]: n for n in node.users if n.target is operator.getitem}


def normalized(graph: fx.Graph, node: fx.Node, x: fx.Node) -> fx.Node:
    """Add a norm's result as pointwise operators, as exact as the norm's own.

    Args:
        graph: Where its insertion point is.
        node: A norm that ``has_statistics``.
        x: Its input, or the same computed again.
    """
    call = caller(graph, node)
    results = _results(node)
    weight, bias = node.args[2 - _shift(node)], node.args[3 - _shift(node)]
    value = x.meta["val"]
    dtype = results[1].meta["val"].dtype

    def wide(given: fx.Node) -> fx.Node:
        same = given.meta["val"].dtype == dtype
        return given if same else call(aten._to_copy.default, given, dtype=dtype)

    def spread(given: fx.Node) -> fx.Node:
        """Lay statistics or weights out as they apply to the input."""
        if node.target is aten.native_layer_norm.default:
            return given  # of as many dimensions, or of the last ones
        batch, channels, groups = value.shape[0], value.shape[1], node.args[6]
        ones = [1] * (value.ndim - 2)
        if given.meta["val"].ndim == 1:
            return call(aten.view.default, given, [1, channels, *ones])
        given = call(aten.unsqueeze.default, given, 2)
        given = call(aten.expand.default, given, [batch, groups, channels // groups])
        given = call(aten.clone.default, given, memory_format=torch.contiguous_format)
        return call(aten.view.default, given, [batch, channels, *ones])

    centered = call(aten.sub.Tensor, wide(x), spread(results[1]))
    made = call(aten.mul.Tensor, centered, spread(results[2]))
    if isinstance(weight, fx.Node):
        made = call(aten.mul.Tensor, made, spread(wide(weight)))
    if isinstance(bias, fx.Node):
        made = call(aten.add.Tensor, made, spread(wide(bias)))
    wanted = results[0].meta["val"].dtype
    return made if wanted == dtype else call(aten._to_copy.default, made, dtype=wanted)


def _shift(node: fx.Node) -> int:
    """Return how many places before a layer norm's the weight of a norm stands."""
    return 1 if node.target is aten.native_group_norm.default else 0


__all__ = ["has_statistics", "normalized"]
