"""Dropout that drops nothing is its input, as in eager, and not a copy of it.

Of ``F.dropout(x, training=False)``, or with ``p=0``, eager returns ``x`` itself: who updates the
result updates ``x``.  AOTAutograd's decomposition copies.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import fx

_DROPOUTS = {F.dropout: (0.5, True), torch.dropout: (None, None)}  # p, training by default


def pass_input_on(module: fx.GraphModule) -> fx.GraphModule:
    """Return a captured graph without dropout that drops nothing.

    Args:
        module: As TorchDynamo captured it; not changed.
    """
    if not any(map(_is_idle, module.graph.nodes)):
        return module
    changed = copy.copy(module)
    changed.graph = copy.deepcopy(module.graph)
    for node in list(changed.graph.nodes):
        if _is_idle(node):
            node.replace_all_uses_with(_argument(node, 0, "input"))
            changed.graph.erase_node(node)
    changed.recompile()
    return changed


def _is_idle(node: fx.Node) -> bool:
    if node.target not in _DROPOUTS or not isinstance(_argument(node, 0, "input"), fx.Node):
        return False
    usual = _DROPOUTS[node.target]
    p, training = _argument(node, 1, "p", usual[0]), _argument(node, 2, "training", usual[1])
    if training is False:
        return isinstance(p, (int, float)) and 0 <= p <= 1
    return isinstance(p, (int, float)) and p == 0


def _argument(node: fx.Node, position: int, name: str, usual: object = None) -> fx.node.Argument:
    given = node.args[position] if len(node.args) > position else node.kwargs.get(name, usual)
    return given  # type: ignore[return-value]


__all__ = ["pass_input_on"]
