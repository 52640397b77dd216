"""Random numbers that a captured graph draws and nobody uses.

Eager draws them all the same, and what is drawn afterwards follows from them.  AOTAutograd leaves
out what nobody uses, so that with eager's own stream every later number would be another one.
"""

from __future__ import annotations

import torch
from torch import fx

_DRAWS = frozenset(
    """
    rand randn randint rand_like randn_like randint_like randperm bernoulli multinomial normal
    poisson binomial dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout
    feature_alpha_dropout native_dropout rrelu gumbel_softmax bernoulli_ cauchy_ dropout_
    alpha_dropout_ feature_dropout_ feature_alpha_dropout_ exponential_ geometric_ log_normal_
    normal_ random_ rrelu_ uniform_ fractional_max_pool2d fractional_max_pool3d
    fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices
    """.split()
)


def unused_draw(module: fx.GraphModule) -> str:
    """Return which call draws numbers that reach no result of a graph, in words, or "".

    A tensor that is drawn in place counts as used where the tensor is.

    Args:
        module: A graph as TorchDynamo captured it.
    """
    used: set[fx.Node] = set()
    for node in reversed(module.graph.nodes):
        if node.op == "output" or node in used:
            used.update(node.all_input_nodes)
    for node in module.graph.nodes:
        name = _name(node)
        if name not in _DRAWS or node in used:
            continue
        if name.endswith("_") and node.all_input_nodes and node.all_input_nodes[0] in used:
            continue
        return f"`{name}` draws random numbers that nobody uses, and which AOTAutograd leaves out"
    return ""


def _name(node: fx.Node) -> str:
    """Return what a call's operator is named."""
    if node.op == "call_method":
        return str(node.target)
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        target = target.overloadpacket
    return getattr(target, "__name__", "") if node.op == "call_function" else ""


__all__ = ["unused_draw"]
