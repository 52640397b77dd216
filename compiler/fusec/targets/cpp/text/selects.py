"""Selects that are written without a branch.

``c ? a : b`` is a branch to g++ until it makes vectors of a loop. Where the value of one decides
the next, as in a clamp, it goes from branch to branch beforehand: on the way where the value is a
constant, the next condition is known. What lies between the two is then there twice, under more
conditions, which as vector code is all computed: two clamps take twice the time, a sine after one
a tenth more. The flag that forbids it, ``-fno-thread-jumps``, brings out wrong code (see
``toolchain/families.py``). A select of bits has no branch; as it is an operation more, it is
written where it helps alone. An extreme is two selects, of which the second asks for NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch

from fusec.codegen.common.c_language import ATOM, Expression, Use
from fusec.ir.node import Cast, Const, Node, Op
from fusec.targets.cpp.dtypes import SHORT
from fusec.targets.cpp.mathlib import available, helper_sources
from fusec.targets.cpp.text.support import CHOOSE

_KINDS = (torch.float32, torch.float64)
_EXTREMES = ("maximum", "minimum")
# How many operations lie between a clamp and what it decides, at most.
_STEPS = 8


def decides_another(node: Op, users: Mapping[Node, Sequence[Node]]) -> bool:
    """Whether the value of a select or extreme decides another, or a condition in a function.

    Args:
        node: An operation.
        users: Node to the nodes that have it as an argument.
    """
    if node.dtype not in _KINDS or node.name not in ("where", *_EXTREMES):
        return False
    if node.name == "where" and not any(isinstance(arm, Const) for arm in node.args[1:]):
        return False  # what it gives is known on neither way
    seen: set[Node] = {node}
    front: list[Node] = [node]
    for _ in range(_STEPS):
        found: list[Node] = []
        for value in front:
            for user in users.get(value, ()):
                if isinstance(user, Op) and _decides(value, user):
                    return True
                if isinstance(user, Op | Cast) and user not in seen:
                    seen.add(user)
                    found.append(user)
        front = found
    return False


def without_branch(
    node: Op, args: Sequence[Expression], users: Mapping[Node, Sequence[Node]], use: Use
) -> Expression | None:
    """Return a select or an extreme as bits, where that is quicker and its values are there.

    Args:
        node: An operation.
        args: Its arguments' texts.
        users: Node to the nodes that have it as an argument.
        use: Called with the name of every helper that the text calls.
    """
    if not decides_another(node, users):
        return None
    kind, reads = SHORT[node.dtype], any(arg.reads for arg in args)
    inner = ", ".join(arg.text for arg in args)
    if node.name in _EXTREMES:
        use(f"{node.name}.{kind}")
        return Expression(f"fx_{node.name}({inner})", ATOM, reads)
    for arm, text in zip(node.args[1:], args[1:], strict=True):
        if not isinstance(arm, Const) and not text.text.isidentifier():
            return None  # what computes it may be for the one way alone
    use(f"{CHOOSE}.{kind}")
    return Expression(f"fx_choose({inner})", ATOM, reads)


def _decides(value: Node, user: Op) -> bool:
    if user.name == "where":
        return user.args[0] is value
    kind = user.args[0].dtype
    return kind in _KINDS and _has_condition(user.name, SHORT[kind])


@functools.cache
def _has_condition(name: str, kind: str) -> bool:
    """Whether the text of a function has a select."""
    helper = f"{name}.{kind}"
    return helper in available() and " ? " in helper_sources([helper])


__all__ = ["decides_another", "without_branch"]
