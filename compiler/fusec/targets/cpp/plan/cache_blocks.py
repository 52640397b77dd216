"""Which innermost loops are cut into blocks of a few cache lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusec.ir.checks import is_check
from fusec.ir.index import Symbol
from fusec.ir.node import Node, Reduce
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import extent

# The reductions of which each lane of a block can have its own.
_KINDS = {"sum", "prod", "max", "min", "argmax", "argmin"}


def in_blocks(axis: Symbol, nodes: Iterable[Node] = (), items: Sequence[Reduce] = ()) -> bool:
    """Whether a loop can be cut into blocks, and is long enough.

    Args:
        axis: What it runs along.
        nodes: What is computed in it.
        items: What it reduces.
    """
    size = extent(axis)
    if size is not None and size < choices.MIN_BLOCKED:
        return False
    if any(is_check(node) for node in nodes):
        return False  # a check that fails is a result that the lanes would have to carry
    types = [(item.args[0] if is_position(item) else item).dtype for item in items]
    return all(t.is_floating_point for t in types) and all(i.kind in _KINDS for i in items)


def is_position(node: Reduce) -> bool:
    """Whether a reduction finds a position rather than a value."""
    return node.kind in ("argmax", "argmin")


__all__ = ["in_blocks", "is_position"]
