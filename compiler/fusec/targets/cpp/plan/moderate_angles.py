"""Sines, tangents and remainders a block at a time, quickly where no argument of it is large.

Bringing an angle of any size into the first quadrant takes three dozen operations in double; one
below 2**15 takes five in float.  In double the C library has it, one angle after the other, and
below 2**20 a few vectors do.  So with remainders: a quotient of up to 2**22 is one division, one
of 2**277, which floats have as well, takes six steps in double.  A vector loop has no branches, so
the choice is made before it: a loop of its own looks whether any argument in the block is far from
zero, and the block's loop, written once, exists in two forms, for moderate arguments alone and for
all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from fusec.ir.index import Symbol
from fusec.ir.node import Load, Node, Op, Reduce, Scan
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, cost

# Functions that have a quick form for moderate arguments: of one, and of two, whose quotient it is.
_ANGLES = ("sin", "cos", "tan")
_QUOTIENTS = ("fmod", "remainder")


def has_moderate_form(node: Op) -> bool:
    """Whether a function has a quick form for moderate arguments."""
    if node.name not in (*_ANGLES, *_QUOTIENTS):
        return False
    if node.dtype == torch.float64:
        return choices.has_fma()  # a double's product has no wider type to be exact in
    return node.dtype == torch.float32


def angles(
    facts: Facts, axis: Symbol, inside: Sequence[Node], known: Collection[Node]
) -> list[tuple[Node, ...]]:
    """Return the arguments of functions with quick forms in a loop along ``axis``.

    Empty where there are none, or where looking at them first would be most of the work.
    """
    found = {node.args: None for node in inside if isinstance(node, Op) and has_moderate_form(node)}
    if not found or facts.checked:
        return []
    if not all(any(axis in facts.free[node] for node in args) for args in found):
        return []
    nodes = facts.closure([node for args in found for node in args], known)
    if any(isinstance(node, Reduce | Scan) for node in nodes):
        return []
    # a load under a condition may stay a branch, which is worth doing once only
    if any(isinstance(node, Load) and node.mask is not None for node in nodes):
        return []
    return list(found) if cost(nodes) <= choices.ANGLE_COST * len(found) else []


__all__ = ["angles", "has_moderate_form"]
