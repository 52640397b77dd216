"""Which values may be computed with the GPU's quick instructions without anyone noticing.

An exact float32 division costs a dozen instructions, the quick one three, with an error of two
units in the last of float32's 24 bits.  Where a value ends up in memory as float16 or bfloat16
alone, with 11 or 8 bits, that error is a thousandth of the rounding that follows.  It is *not*
harmless before anything that jumps (a comparison, floor, an index, a cast to an integer) or that
blows small differences up without bound (sine of a large number, a power).
"""

from __future__ import annotations

import torch

from fusec.ir.body import Body
from fusec.ir.node import Cast, Node, Op, Reduce

_SMOOTH = frozenset(
    "add sub mul truediv neg abs maximum minimum sqrt rsqrt exp tanh sigmoid erf log log1p".split()
)
_SMOOTH_REDUCTIONS = frozenset({"sum", "max", "min", "prod", "online_sum"})
_HALF = (torch.float16, torch.bfloat16)


def relaxed_nodes(body: Body) -> frozenset[Node]:
    """Return the float32 values that reach memory only as half-precision numbers."""
    nodes = body.nodes()
    strict: set[Node] = {s.value for s in body.stores if s.value.dtype not in _HALF}
    strict |= {s.value for s in body.stores if s.mode != "set"}
    for node in reversed(nodes):  # users before their arguments
        if isinstance(node, Cast) and node.dtype in _HALF and not node.bitcast:
            continue  # the rounding that hides it all, whoever uses the result
        harmless = node not in strict and _is_smooth(node)
        if isinstance(node, Op) and node.name == "where" and harmless:
            strict.add(node.args[0])
        elif not harmless:
            strict.update(node.args)
    return frozenset(n for n in nodes if n not in strict and n.dtype == torch.float32)


def _is_smooth(node: Node) -> bool:
    if isinstance(node, Op):
        return node.name in _SMOOTH or node.name == "where"
    if isinstance(node, Reduce):
        return node.kind in _SMOOTH_REDUCTIONS
    return isinstance(node, Cast) and node.dtype == torch.float32
