"""Which values may be computed in a quick form without anyone noticing.

On a GPU an exact float32 division costs a dozen instructions, the quick one three, with an error of
two units in the last of float32's 24 bits.  Where a value ends up in memory as float16 or bfloat16
alone, with 11 or 8 bits, that error is a thousandth of the rounding that follows.  It is *not*
harmless before anything that jumps (a comparison, floor, an index, a cast to an integer) or that
blows small differences up without bound (sine of a large number, a power).

Some instructions are right only within a range, which two patterns guarantee: the weights of a
softmax, ``exp(x - max(x))``, where what is too small for a normal number may be zero beside the
row's 1; and their sum, which is at least 1 and thus has a reciprocal.
"""

from __future__ import annotations

import torch

from fusec.codegen.common.row_quantization import Quantized, find_quantized
from fusec.ir.body import Body
from fusec.ir.node import Cast, Const, Node, Op, Reduce
from fusec.ir.scalars import SCALARS, root_of

_SMOOTH = frozenset(name for name, scalar in SCALARS.items() if scalar.smooth)
_SCALING = frozenset(name for name, scalar in SCALARS.items() if scalar.scaling)
_SMOOTH_REDUCTIONS = frozenset({"sum", "max", "min", "prod", "online_sum", "squares"})
_HALF = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
_EIGHT_BITS = (torch.bfloat16, torch.float8_e4m3fn)


def relaxed_nodes(body: Body, *, quick: bool = False) -> frozenset[Node]:
    """Return the float32 values that reach memory only as half-precision numbers.

    Args:
        body: What is computed.
        quick: Whether only instructions are meant that err by units in float32's last place; then
            rows that are quantized by their own extremes count as well, the scales being float32.
    """
    nodes = body.nodes()
    rows = find_quantized(body) if quick else Quantized()
    passing = rows.scales | rows.rounded
    strict: set[Node] = {s.value for s in body.stores if s.value.dtype not in _HALF} - passing
    strict |= {s.value for s in body.stores if s.mode != "set"}
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for arg in node.args:
            users.setdefault(arg, []).append(node)
    for node in reversed(nodes):  # users before their arguments
        if node in passing and node not in strict:
            continue  # exact by itself, and what it is computed from need not be
        used = users.get(node, [])
        if used and node not in strict and all(is_bound(u) and u.args[0] is node for u in used):
            continue  # a comparison that clamps: either side of the jump is the same value
        if isinstance(node, Cast) and node.dtype in _HALF and not node.bitcast:
            continue  # the rounding that hides it all, whoever uses the result
        if node in strict or not _is_smooth(node):
            strict.update(node.args)
    strict |= passing
    return frozenset(n for n in nodes if n not in strict and n.dtype == torch.float32)


def coarse_nodes(body: Body) -> frozenset[Node]:
    """Return the float32 values of which only multiples reach memory, as numbers of 8 bits or less.

    Nothing is added to them or taken away, so that a relative error stays as small as it was.
    """
    nodes = body.nodes()
    fine: set[Node] = {s.value for s in body.stores if s.value.dtype not in _EIGHT_BITS}
    for node in reversed(nodes):  # users before their arguments
        if isinstance(node, Cast) and node.dtype in _EIGHT_BITS and not node.bitcast:
            continue
        scales = isinstance(node, Op) and node.name in _SCALING and node not in fine
        if not scales:
            fine.update(node.args)
    return frozenset(n for n in nodes if n not in fine and n.dtype == torch.float32)


def follows_maximum(shift: Node, value: Node) -> bool:
    """Whether ``shift`` is the maximum of ``value``, or that with infinities replaced by 0."""
    if isinstance(shift, Reduce):
        return shift.kind == "max" and shift.args[0] is value
    if isinstance(shift, Op) and shift.name == "where":
        _, then, other = shift.args
        parts = [p for p in (then, other) if not (isinstance(p, Const) and p.value == 0)]
        return len(parts) == 1 and follows_maximum(parts[0], value)
    return False


def is_softmax_weight(node: Node) -> bool:
    """Whether this is ``exp(x - max(x))``: at most 1, and exactly 1 somewhere in the row."""
    if not (isinstance(node, Op) and root_of(node.name) == "exp"):
        return False
    difference = node.args[0]
    return (
        isinstance(difference, Op)
        and difference.name == "sub"
        and follows_maximum(difference.args[1], difference.args[0])
    )


def never_positive(node: Node) -> bool:
    """Whether this is at most 0, or NaN: ``-abs(x)``, ``-0.5 * x * x`` and the like."""
    if not isinstance(node, Op) or not node.dtype.is_floating_point:
        return False
    if node.name == "neg":
        return _never_negative(node.args[0])
    return node.name == "mul" and any(
        isinstance(factor, Const) and factor.value <= 0 and _never_negative(other)
        for factor, other in (node.args, node.args[::-1])
    )


def _never_negative(node: Node) -> bool:
    squared = isinstance(node, Op) and node.name == "mul" and node.args[0] == node.args[1]
    return squared or (isinstance(node, Op) and node.name == "abs")


def is_softmax_total(node: Node) -> bool:
    """Whether this is the sum of a row's weights: not below 1."""
    if not isinstance(node, Reduce):
        return False
    return node.kind == "online_sum" or (node.kind == "sum" and is_softmax_weight(node.args[0]))


def is_bound(node: Node) -> bool:
    """Whether this is ``where(x < bound, bound, x)``, or that with ``>``: x itself, clamped."""
    if not (isinstance(node, Op) and node.name == "where"):
        return False
    condition, then, other = node.args
    return (
        isinstance(condition, Op)
        and condition.name in ("lt", "gt", "le", "ge")
        and condition.args == (other, then)
        and isinstance(then, Const)
    )


def _is_smooth(node: Node) -> bool:
    if isinstance(node, Op):
        return node.name in _SMOOTH or node.name == "where"
    if isinstance(node, Reduce):
        return node.kind in _SMOOTH_REDUCTIONS
    return isinstance(node, Cast) and node.dtype == torch.float32
