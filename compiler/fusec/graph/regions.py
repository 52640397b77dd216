"""Regions that torch captured once and calls several times, put in place of their calls.

``torch.compiler.nested_compile_region`` marks what occurs again and again, a model's layers: torch
captures it and traces it once, and calls it by ``invoke_subgraph``. Fusion is to see the whole
model, so each call becomes the region's operators; equal kernels are built once in any case.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

_INVOKE = getattr(torch.ops.higher_order, "invoke_subgraph", None)


def inline_regions(module: fx.GraphModule) -> int:
    """Put every region in place of its calls; return how many calls there were.

    Args:
        module: A graph of ATen's operators; it is changed.
    """
    calls = [
        node
        for node in module.graph.find_nodes(op="call_function", target=_INVOKE)
        if _region_of(module, node) is not None
    ]
    for call in calls:
        region = _region_of(module, call)
        assert region is not None
        inline_regions(region)
        inline(module, call, region, call.args[2:])
    if calls:
        module.graph.eliminate_dead_code()
        module.recompile()
    return len(calls)


def _region_of(module: fx.GraphModule, call: fx.Node) -> fx.GraphModule | None:
    place = call.args[0]
    if not isinstance(place, fx.Node) or place.op != "get_attr":
        return None
    found = getattr(module, str(place.target), None)
    users_take_items = all(user.target is operator.getitem for user in call.users)
    return found if isinstance(found, fx.GraphModule) and users_take_items else None


def inline(
    module: fx.GraphModule, call: fx.Node, region: fx.GraphModule, operands: Sequence[Any]
) -> None:
    """Put a region's nodes in the place of its call, all of whose users take one result each.

    Args:
        module: The graph that has the call; changed in place.
        call: Goes.
        region: What it calls; its output is a list.
        operands: What the region is called with, in order.
    """
    found: dict[fx.Node, Any] = dict(
        zip(region.graph.find_nodes(op="placeholder"), operands, strict=True)
    )
    with module.graph.inserting_before(call):
        for node in region.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            copied = module.graph.node_copy(node, lambda each: found[each])
            if node.op == "get_attr":
                copied.target = _adopt(module, region, str(node.target))
            found[node] = copied
    (output,) = region.graph.find_nodes(op="output")
    results = output.args[0]
    assert isinstance(results, (list, tuple))
    for user in list(call.users):
        position = user.args[1]
        assert isinstance(position, int)
        result = results[position]
        value = found[result] if isinstance(result, fx.Node) else result
        user.replace_all_uses_with(value)
        module.graph.erase_node(user)
    module.graph.erase_node(call)


def _adopt(module: fx.GraphModule, region: fx.GraphModule, name: str) -> str:
    """Give the module something that belongs to a region; return its name there."""
    value = getattr(region, name)
    chosen, number = name, 0
    while hasattr(module, chosen) and getattr(module, chosen) is not value:
        number += 1
        chosen = f"{name}_{number}"
    setattr(module, chosen, value)
    return chosen


__all__ = ["inline", "inline_regions"]
