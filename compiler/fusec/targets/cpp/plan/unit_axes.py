"""Loops of one turn, left out before anything is decided."""

from __future__ import annotations

from fusec.ir.body import Body
from fusec.ir.index import Expr
from fusec.ir.node import Reduce
from fusec.targets.cpp.plan.facts import extent


def without_unit_axes(body: Body) -> Body:
    """Return a body without the axes that have one position, which are then 0.

    What rows and columns share keeps its axes; so does what reduces over nothing else.
    """
    if body.sums or body.companions:
        return body
    axes = tuple(axis for axis in body.axes if extent(axis) != 1)
    reduced = tuple(axis for axis in body.reduce_axes if extent(axis) != 1)
    over = [node.axes for node in body.nodes() if isinstance(node, Reduce)]
    if body.reduce_axes and not (reduced and all(set(each) & set(reduced) for each in over)):
        reduced = body.reduce_axes
    dropped = {*body.axes, *body.reduce_axes} - {*axes, *reduced}
    if not dropped:
        return body
    return body.moved(axes, reduced, dict.fromkeys(dropped, Expr.of(0)))


__all__ = ["without_unit_axes"]
