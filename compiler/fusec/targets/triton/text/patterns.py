"""Shapes of maths with a cheaper form on a GPU.

``1 + erf`` and ``1 + tanh`` have one where half precision hides the difference.  A number between
two bounds is rounded to an integer by an addition, where the instructions for rounding and for
converting each take as long as four.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fusec.codegen.common.patterns import ONE_PLUS, replace_values, use_one_plus
from fusec.codegen.common.relaxed_maths import is_bound, relaxed_nodes
from fusec.ir.body import Body
from fusec.ir.node import Cast, Const, Node, Op, cast, op

# The conversion of a float32 between bounds to the nearest int32, ties to even.
NEAREST = "nearest_int"

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
# Up to where a type has all integers, and the addition rounds.
_EXACT = {torch.float16: 2**11, torch.bfloat16: 2**8, torch.float32: 2**22}


def use_patterns(body: Body) -> Body:
    """Return ``body`` with the cheaper forms that it may have."""
    relaxed = relaxed_nodes(body)
    # positions and indices are never relaxed, so that no expression changes
    body = use_one_plus(body, ONE_PLUS, lambda node: node in relaxed)
    if not any(isinstance(node, Op) and node.name == "round" for node in body.nodes()):
        return body
    return replace_values(body, nearest_integer)


def nearest_integer(node: Node, done: Mapping[Node, Node]) -> Node | None:
    """Return the direct conversion for a rounded and clamped float32 made an integer.

    Clamping to integers before the rounding is the same as after it.
    """
    if not isinstance(node, Cast) or node.bitcast or node.dtype not in _INTEGERS:
        return None
    value, exact = node.args[0], _EXACT[torch.float32]
    if isinstance(value, Cast) and value.dtype in _EXACT and not value.bitcast:
        value, exact = value.args[0], _EXACT[value.dtype]
    clamps: list[tuple[str, Const]] = []
    while is_bound(value):
        condition, bound, value = value.args
        assert isinstance(condition, Op)
        assert isinstance(bound, Const)
        clamps.append((condition.name, bound))
    if not (isinstance(value, Op) and value.name == "round" and value.dtype == torch.float32):
        return None
    if any(bound.value != round(bound.value) or abs(bound.value) > exact for _, bound in clamps):
        return None
    if {name[:1] for name, _ in clamps} != {"l", "g"}:
        return None  # a bound is missing
    found = done[value.args[0]]
    for name, bound in reversed(clamps):
        outside = op(name, (found, bound), torch.bool)
        found = op("where", (outside, bound, found), torch.float32)
    return cast(op(NEAREST, (found,), torch.int32), node.dtype)
