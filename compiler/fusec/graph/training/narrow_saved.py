"""What backward reads in a wider type is kept in the narrow one, and widened once more.

Under autocast a norm or a loss computes in float32 what arrives in half precision.  The
partitioner, which sees that an operator of its own reads the wide tensor, may keep that for
backward: twice the bytes, written by forward and read again.  With a conversion of its own in
backward it keeps what was there before.
"""

from __future__ import annotations

import torch
from torch import fx

from fusec.graph.facts.insertion import caller
from fusec.graph.facts.joint_graph import first_of, forward_nodes, is_view

aten = torch.ops.aten


def widen_again(module: fx.GraphModule, outputs: int) -> int:
    """Give backward conversions to wider types of its own, in place; return how many.

    Args:
        module: A joint graph.
        outputs: How many of its results are the forward part's.
    """
    forward = forward_nodes(module, outputs)
    (output,) = module.graph.find_nodes(op="output")
    changed = 0
    for node in list(module.graph.nodes):
        if node not in forward or node in output.all_input_nodes or _widened(node) is None:
            continue
        later = [user for user in node.users if user not in forward]
        if not later:
            continue
        with module.graph.inserting_before(first_of(module.graph, later)):
            again = _again(module.graph, node)
        for user in later:
            user.replace_input_with(node, again)
        changed += 1
    return changed


def _widened(node: fx.Node) -> fx.Node | None:
    """Return what a node is a wider form of, or a view of one; None where it is none."""
    if node.target is aten._to_copy.default:
        (source,) = node.all_input_nodes
        wide, narrow = node.meta.get("val"), source.meta.get("val")
        if not isinstance(wide, torch.Tensor) or not isinstance(narrow, torch.Tensor):
            return None
        grows = wide.dtype.itemsize > narrow.dtype.itemsize and wide.device == narrow.device
        return source if grows else None
    if is_view(node) and len(node.all_input_nodes) == 1:
        return _widened(node.all_input_nodes[0])
    return None


def _again(graph: fx.Graph, node: fx.Node) -> fx.Node:
    (source,) = node.all_input_nodes
    if node.target is not aten._to_copy.default:
        copied = _again(graph, source)
        args = tuple(copied if argument is source else argument for argument in node.args)
        return caller(graph, node)(node.target, *args, **node.kwargs)
    return caller(graph, node)(node.target, *node.args, **node.kwargs)


__all__ = ["widen_again"]
