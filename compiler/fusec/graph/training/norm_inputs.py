"""What a norm's statistics are of is rounded for all who read it, as in eager.

Backward reads a norm's input beside the mean and the scale that forward kept.  Of a group of one
element, or of equal ones, the difference of input and mean is nothing, and the scale is large:
three hundred with the usual ``eps``, and its cube is in the gradient.  In half precision an input
that forward rounded, and backward computes again without rounding, differs from the mean by its
rounding, and the gradient is made of that.  So is one that is computed again from something that
forward keeps in half precision, and goes on with unrounded.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.utils.checkpoint import CheckpointPolicy

from fusec.graph.facts.rounded import ROUNDED, is_half, makers

aten = torch.ops.aten

_STATISTICS = frozenset((aten.native_layer_norm, aten.native_group_norm, aten.var_mean))


def round_norm_inputs(module: fx.GraphModule) -> int:
    """Mark what is rounded although nothing stores it; return how many nodes.

    Args:
        module: A joint graph before it is divided.
    """
    marked = 0
    for node in module.graph.nodes:
        source = node.args[0] if node.args else None
        if _packet(node) in _STATISTICS and isinstance(source, fx.Node):
            alone = _is_alone(node)
            for each in makers(source):
                if alone and each.op == "call_function":
                    each.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
                if each.op == "call_function" and is_half(each) and ROUNDED not in each.meta:
                    each.meta[ROUNDED] = True
                    marked += 1
    return marked


def round_what_they_follow_from(forward: fx.GraphModule) -> int:
    """Mark what forward keeps, and backward computes norms' inputs from; return how many nodes.

    Args:
        forward: As the partitioner made it, with marks of ``round_norm_inputs``.
    """
    (output,) = forward.graph.find_nodes(op="output")
    kept = set(output.all_input_nodes)
    waiting = [n for n in forward.graph.nodes if ROUNDED in n.meta and n not in kept]
    seen, marked = set(waiting), 0
    while waiting:
        for each in waiting.pop().all_input_nodes:
            if each in seen or each.op != "call_function":
                continue
            seen.add(each)
            if each not in kept:
                waiting.append(each)
            for maker in makers(each) if each in kept else ():
                if maker.op == "call_function" and is_half(maker) and ROUNDED not in maker.meta:
                    maker.meta[ROUNDED] = True
                    marked += 1
    return marked


def _is_alone(node: fx.Node) -> bool:
    """Whether each element is a group by itself: a last place is all that a gradient is made of."""
    source, results = node.args[0], node.meta.get("val")
    given = source.meta.get("val") if isinstance(source, fx.Node) else None
    mean = results[1] if isinstance(results, (tuple, list)) and len(results) > 1 else None
    if not isinstance(given, torch.Tensor) or not isinstance(mean, torch.Tensor):
        return False
    return guard_or_false(given.numel() == mean.numel())


def _packet(node: fx.Node) -> object:
    return getattr(node.target, "overloadpacket", node.target)


__all__ = ["round_norm_inputs", "round_what_they_follow_from"]
