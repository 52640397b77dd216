"""What backward needs of a norm's result is the norm's input and two numbers a row.

A norm is one operator, whose result the partitioner can only keep: as large as the input, and
written by forward for nothing else where an activation follows.  Here what backward reads is
computed from the input and the statistics, which backward has at hand anyway; it is then up to
the partitioner to do that again in backward, where it costs a few operations an element.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from fusec.graph.calls import caller
from fusec.graph.joint import first_of, forward_nodes

aten = torch.ops.aten
_NORMS = (aten.native_group_norm.default, aten.native_layer_norm.default)
_EXACT = (torch.float32, torch.float64)


def reopen_norms(module: fx.GraphModule, outputs: int) -> int:
    """Compute the results of norms from their statistics where backward reads them, in place.

    Only where nothing but pointwise operators reads a result: a matrix product needs it in memory
    in any case.

    Args:
        module: A joint graph.
        outputs: How many of its results are the forward part's.

    Returns:
        How many norms there were.
    """
    found = [node for node in module.graph.nodes if node.target in _NORMS]
    if not found:
        return 0
    forward = forward_nodes(module, outputs)
    changed = 0
    for node in found:
        results = {n.args[1]: n for n in node.users if n.target is operator.getitem}
        result = results.get(0)
        if result is None or len(results) < 3 or not _fits(node, results):
            continue
        later = [user for user in result.users if user not in forward]
        if not later or not all(_is_pointwise(user) for user in result.users):
            continue
        with module.graph.inserting_before(first_of(module.graph, later)):
            again = _normalized(module.graph, node, results)
        for user in later:
            user.replace_input_with(result, again)
        changed += 1
    return changed


def _is_pointwise(node: fx.Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _fits(node: fx.Node, results: dict[Any, fx.Node]) -> bool:
    x = node.args[0]
    assert isinstance(x, fx.Node)
    value = x.meta["val"]
    exact = all(results[i].meta["val"].dtype in _EXACT for i in (1, 2))
    return exact and all(isinstance(size, int) and size > 0 for size in value.shape)


def _normalized(graph: fx.Graph, node: fx.Node, results: dict[Any, fx.Node]) -> fx.Node:
    """Add the norm's result as pointwise operators, as exact as the norm's own."""
    call = caller(graph, node)
    x, weight, bias = node.args[0], node.args[2 - _shift(node)], node.args[3 - _shift(node)]
    assert isinstance(x, fx.Node)
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


__all__ = ["reopen_norms"]
