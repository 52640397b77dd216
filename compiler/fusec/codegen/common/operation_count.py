"""How much a kernel computes, whatever it is written in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fusec.ir.body import Body
from fusec.ir.checks import is_check
from fusec.ir.index import Symbol
from fusec.ir.node import Dot, Node, Op, Reduce, Scan
from fusec.ir.scalars import cost_of
from fusec.ir.shapes import counted
from fusec.ir.walk import free_axes


def count_operations(body: Body) -> int:
    """Return the arithmetic operations of an execution; -1 if symbolic.

    An expensive function counts as several, as in ``ir.scalars``.
    """
    counts = [count for _, count in operations_of(body)]
    return -1 if None in counts else sum(count or 0 for count in counts)


def operations_of(
    body: Body, sizes: Mapping[Symbol, int] | None = None
) -> Iterator[tuple[Node, int | None]]:
    """Yield what computes something, with its operations an execution; None if symbolic.

    Args:
        body: Of the kernel.
        sizes: The values of symbolic sizes, where they are known.
    """
    free = free_axes(body.computed)
    for node in body.nodes():
        cost = _cost(node)
        if not cost:
            continue
        axes = free[node]
        if isinstance(node, Reduce):
            axes = frozenset[Symbol]().union(*(free[arg] for arg in node.args))
        extent = [a.size for a in axes if a.size is not None]
        if isinstance(node, Reduce):
            extent += [a.size for a in node.axes if a.size is not None and a not in axes]
        points = counted(extent, sizes or {})
        yield node, None if points is None else cost * points


def _cost(node: Node) -> int:
    if isinstance(node, Dot):
        return 2
    if isinstance(node, Reduce | Scan):
        return 1
    if isinstance(node, Op) and not is_check(node):
        return cost_of(node.name)
    return 0
