"""What is compared in half precision is rounded first, as in eager.

A kernel goes on with what it has computed in float32, and rounds what it stores.  To a sum that is
no matter; where one number is compared with another, it is: the same computation, once read from
memory and once at hand, is not equal to itself, no element equals the mean of equal ones, and
of equal maxima one is the greatest.  The same is true of what is rounded to an integer.
"""

from __future__ import annotations

import torch
from torch import fx

from fusec.graph.facts.rounded import ROUNDED, is_half, makers

aten, prims = torch.ops.aten, torch.ops.prims

_COMPARISONS = frozenset((aten.eq, aten.ne, aten.ge, aten.gt, aten.le, aten.lt))
# What they give jumps where what they are given changes by its last place.
_JUMPS = _COMPARISONS | frozenset(
    (
        aten.argmax,
        aten.argmin,
        aten.bucketize,
        aten.ceil,
        aten.cummax,
        aten.cummin,
        aten.floor,
        aten.floor_divide,
        aten.fmod,
        aten.kthvalue,
        aten.max,
        aten.median,
        aten.min,
        aten.mode,
        aten.remainder,
        aten.round,
        aten.searchsorted,
        aten.sort,
        aten.topk,
        aten.trunc,
        prims.convert_element_type,  # to integers
        aten._to_copy,
    )
)
_CASTS = frozenset((prims.convert_element_type, aten._to_copy))


def round_compared(module: fx.GraphModule) -> int:
    """Mark what is rounded although nothing stores it; return how many nodes.

    Args:
        module: An inference graph, or a joint one before it is divided.
    """
    marked = 0
    for node in module.graph.nodes:
        if not _jumps(node):
            continue
        for each in node.all_input_nodes:
            for maker in makers(each):
                if maker.op == "call_function" and is_half(maker) and ROUNDED not in maker.meta:
                    maker.meta[ROUNDED] = True
                    marked += 1
    return marked


def _jumps(node: fx.Node) -> bool:
    packet = getattr(node.target, "overloadpacket", node.target)
    if packet not in _JUMPS:
        return False
    if packet in _CASTS:
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and not (
            value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool
        )
    # what is on which side of zero no rounding changes
    return not (packet in _COMPARISONS and node.args[1:] in ((0,), (0.0,)))


__all__ = ["round_compared"]
