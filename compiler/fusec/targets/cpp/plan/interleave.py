"""Costly loops, several vectors at a time, so that one works while the others wait.

An exponential takes twenty instructions, each waiting for the one before, and the processor's
scheduler holds hardly more than two of them: half of the time it finds nothing to do.  Where four
vectors go through every step before the next step, it does.  g++ writes a loop so by itself if some
element of it is narrower: as many as fill a vector with bytes are four vectors of float.  So a
costly loop marks each of its elements in an array of bytes, which is one store for 64 of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fusec.ir.node import Cast, Node, Op
from fusec.ir.scalars import RANDOM_BITS, RANDOM_WORD, cost_of
from fusec.targets.cpp.plan import choices

_RANDOM = (RANDOM_BITS, RANDOM_WORD)


def mark_type(nodes: Iterable[Node]) -> str:
    """Return the type of the marks of a loop that computes ``nodes``; empty if it needs none."""
    operations = [node for node in nodes if isinstance(node, Op | Cast)]
    names = [node.name for node in operations if isinstance(node, Op)]
    worst = max((cost_of(name) for name in names if name not in _RANDOM), default=0)
    if worst < choices.INTERLEAVE_COST or RANDOM_BITS in names:
        return ""
    wide = any(node.dtype.itemsize == 8 or node.dtype == torch.complex64 for node in operations)
    return "uint16_t" if wide else "uint8_t"


__all__ = ["mark_type"]
