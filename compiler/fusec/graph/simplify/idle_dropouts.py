"""Dropouts that drop nothing are what they are given, and no copy of it.

In eager ``F.dropout(x, training=False)`` is ``x``: who writes into the one has written into the
other.  AOTAutograd's decomposition makes a copy.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import fx

_NAMES = ("input", "p", "train")


def drop_idle_dropouts(module: fx.GraphModule) -> fx.GraphModule:
    """Return a captured graph without dropouts that drop nothing.

    Args:
        module: As TorchDynamo captured it; not changed.
    """
    if not any(map(is_idle_dropout, module.graph.nodes)):
        return module
    changed = copy.copy(module)
    changed.graph = copy.deepcopy(module.graph)
    for node in list(changed.graph.nodes):
        if is_idle_dropout(node):
            node.replace_all_uses_with(node.all_input_nodes[0])
            changed.graph.erase_node(node)
    changed.recompile()
    return changed


def is_idle_dropout(node: fx.Node) -> bool:
    """Whether a node is a dropout that drops nothing: of chance 0, or out of training."""
    if node.target not in (F.dropout, torch.dropout):
        return False
    given = {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
    training, p = given.get("training", given.get("train", True)), given.get("p", 0.5)
    return training is False or (isinstance(p, (int, float)) and p == 0)


__all__ = ["drop_idle_dropouts", "is_idle_dropout"]
