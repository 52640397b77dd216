"""A tensor that is compared with its own greatest or least elements is computed once.

The gradient of a maximum goes where an element equals it, divided by how many there are.  Where a
kernel computes the elements again, a last place that comes out otherwise (another form of the error
function, a product and a sum rounded as one) leaves none that is equal, and the gradient is 0 / 0.
What is computed once and read from memory, or within one kernel, is the same number for both.
"""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from fusec.graph.facts.joint_graph import is_view

aten, prims = torch.ops.aten, torch.ops.prims

# The key in a node's meta.
COMPARED = "fusec_compared"

_COMPARISONS = frozenset((aten.eq, aten.ne, aten.ge, aten.gt, aten.le, aten.lt))
# Their results are elements of what they are given.
_SELECTIONS = frozenset(
    (
        aten.amax,
        aten.amin,
        aten.aminmax,
        aten.max,
        aten.min,
        aten.cummax,
        aten.cummin,
        aten.topk,
        aten.sort,
        aten.kthvalue,
        aten.median,
        aten.nanmedian,
        aten.mode,
        aten.scatter_reduce,
        aten.index_reduce,
        aten.linalg_vector_norm,  # of the orders inf and -inf
    )
)
# The same numbers, elsewhere or in a wider type.
_MOVES = frozenset(
    (
        aten._to_copy,
        aten.clone,
        aten.gather,
        aten.index,
        aten.index_select,
        prims.convert_element_type,
    )
)
# They round nothing: computed again they are what they were, if what they are given is.
_EXACT = frozenset(
    (aten.abs, aten.neg, aten.relu, aten.clamp, aten.clamp_min, aten.clamp_max, aten.hardtanh)
)


def compute_compared_once(module: fx.GraphModule) -> int:
    """Mark what has to be the same number for all who read it; return how many nodes.

    Torch's partitioner keeps them for backward, or what follows from them, and no kernel computes
    them again.

    Args:
        module: An inference graph, or a joint one before it is divided.
    """
    marked = 0
    for node in module.graph.nodes:
        if _packet(node) not in _COMPARISONS:
            continue
        sides = [each for each in node.args if isinstance(each, fx.Node)]
        if len(sides) != 2:
            continue
        for one, other in (sides, sides[::-1]):
            root, chosen = _root(one), origin_of(other)
            if _packet(chosen) in _SELECTIONS and root in map(_root, chosen.all_input_nodes):
                marked += mark_once(root)
    return marked


def mark_once(node: fx.Node) -> bool:
    """Mark a node as the same number for all who read it; return whether it was not yet."""
    if node.op != "call_function" or node.meta.get(COMPARED):
        return False
    node.meta[COMPARED] = True
    node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
    return True


def _root(node: fx.Node) -> fx.Node:
    """Return what a node's numbers follow from without any rounding."""
    node = origin_of(node)
    while _packet(node) in _EXACT:
        node = origin_of(node.all_input_nodes[0])
    return node


def origin_of(node: fx.Node) -> fx.Node:
    """Return what has a node's numbers first."""
    while node.all_input_nodes and (
        node.target is operator.getitem or is_view(node) or _packet(node) in _MOVES
    ):
        node = node.all_input_nodes[0]
    return node


def _packet(node: fx.Node) -> object:
    return getattr(node.target, "overloadpacket", node.target)


__all__ = ["COMPARED", "compute_compared_once", "mark_once", "origin_of"]
