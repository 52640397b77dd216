"""Attention without a block mask does not carry the lists of one.

torch gives every ``flex_attention`` a block mask, one block as large as can be where the user gave
none: its lists would be made by a dozen small kernels in every call, and saved for backward.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.utils import _pytree as pytree

_HIGHER = torch.ops.higher_order
# Where the two operators have the mask's tuple.
_MASK = {_HIGHER.flex_attention: 4, _HIGHER.flex_attention_backward: 9}
UNBLOCKED = 1 << 30  # the size of a block where there are none
_LISTS = slice(2, -3)  # of the tuple: between the lengths, and the sizes with the function


def drop_block_lists(module: fx.GraphModule) -> int:
    """Take the lists of blocks from calls that have one block; return how many there were."""
    changed = 0
    for node in module.graph.nodes:
        place = _MASK.get(node.target) if node.op == "call_function" else None
        if place is None:
            continue
        parts = list(node.args[place])
        rows, columns = parts[-3:-1]
        if not all(isinstance(size, int) and size >= UNBLOCKED for size in (rows, columns)):
            continue
        if not any(isinstance(part, fx.Node) for part in parts[_LISTS]):
            continue
        parts[_LISTS] = [None] * len(parts[_LISTS])
        node.update_arg(place, tuple(parts))
        changed += 1
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return changed


def listed_inputs(graph: fx.Graph) -> frozenset[int]:
    """Return which of a graph's inputs, counted from 0, are in the block masks that it is given."""
    masks = [node.args[_MASK[node.target]] for node in graph.nodes if node.target in _MASK]
    listed = set(pytree.tree_leaves(masks))
    inputs = graph.find_nodes(op="placeholder")
    return frozenset(place for place, node in enumerate(inputs) if node in listed)


__all__ = ["UNBLOCKED", "drop_block_lists", "listed_inputs"]
