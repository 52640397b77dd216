"""Sines and cosines a block at a time, by a third of the work where no argument of it is large.

Bringing an angle of any size into the first quadrant takes three dozen operations in double; one
below 2**15 takes five in float.  A vector loop has no branches, so the choice is made before it: a
loop of its own looks whether any argument in the block is far from zero, and the block's loop,
written once, exists in two forms, for moderate arguments alone and for all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from fusec.ir.index import Symbol
from fusec.ir.node import Load, Node, Op, Reduce, Scan
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, cost

# Functions of float32 that have a quick form for moderate arguments.
MODERATE_FORMS = ("sin", "cos")


def angles(
    facts: Facts, axis: Symbol, inside: Sequence[Node], known: Collection[Node]
) -> list[Node]:
    """Return the arguments of sines and cosines in a loop along ``axis``.

    Empty where there are none, or where looking at them first would be most of the work.
    """
    found = {
        node.args[0]: None
        for node in inside
        if isinstance(node, Op) and node.name in MODERATE_FORMS and node.dtype == torch.float32
    }
    if not found or facts.checked or not all(axis in facts.free[node] for node in found):
        return []
    nodes = facts.closure(list(found), known)
    if any(isinstance(node, Reduce | Scan) for node in nodes):
        return []
    # a load under a condition may stay a branch, which is worth doing once only
    if any(isinstance(node, Load) and node.mask is not None for node in nodes):
        return []
    return list(found) if cost(nodes) <= choices.ANGLE_COST * len(found) else []


__all__ = ["MODERATE_FORMS", "angles"]
