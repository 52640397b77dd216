"""Half-precision results that are rounded as eager rounds them, though nobody stores them."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx

from fusec.graph.facts.joint_graph import is_view

aten, prims = torch.ops.aten, torch.ops.prims

# The key in a node's meta.
ROUNDED = "fusec_rounded"

_WIDENINGS = frozenset((aten._to_copy, aten.clone, prims.convert_element_type))


def makers(node: fx.Node) -> Iterator[fx.Node]:
    """Yield what computes a tensor that others widen, or see in another shape."""
    while node.all_input_nodes and (
        node.target is operator.getitem
        or is_view(node)
        or (_packet(node) in _WIDENINGS and is_half(node.all_input_nodes[0]))
    ):
        if node.target is operator.getitem:
            yield node  # one of several results
        node = node.all_input_nodes[0]
    yield node


def is_half(node: fx.Node) -> bool:
    """Whether a node's first result is in half precision."""
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _packet(node: fx.Node) -> object:
    return getattr(node.target, "overloadpacket", node.target)


__all__ = ["ROUNDED", "is_half", "makers"]
