"""Deciding what the loops' bounds decide, once computations that use one another are one body.

An index that one computation made and another one used was an unknown number until the first
became part of the second: then its range shows that it is never negative and never too large.
"""

from __future__ import annotations

from fusec.ir import ops
from fusec.ir.body import Body
from fusec.ir.bounds import decide
from fusec.ir.node import Op


def fold_bounds(body: Body) -> Body:
    """Return ``body`` without the comparisons that always have one outcome."""
    compared = (n for n in body.nodes() if isinstance(n, Op) and n.name in ops.COMPARISONS)
    if any(decide(node.name, *node.args) is not None for node in compared):
        return body.moved(body.axes, body.reduce_axes, {}, ops.decided)
    return body
