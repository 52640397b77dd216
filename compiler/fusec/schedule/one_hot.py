"""The sum of a row that is zero but at one place is the value at that place.

The gradient of a loss with class labels comes as such rows.  Their sums would be a pass over the
row of their own, with nothing to read.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fusec.ir import ops
from fusec.ir.body import Body
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Const, IndexValue, Node, Op, Reduce, Scan
from fusec.ir.walk import free_axes, rewrite


def fold_one_hots(body: Body) -> Body:
    """Return ``body`` with sums of one-hot rows as the one value.

    What the zeros are multiplied by still counts once, so that infinities and NaN stay what they
    are in eager.
    """
    if not any(isinstance(n, Reduce) and n.kind == "sum" for n in body.nodes()):
        return body
    free = free_axes(body.computed)

    def folded(node: Node) -> Node | None:
        if not isinstance(node, Reduce) or node.kind != "sum" or node.dtype != torch.float32:
            return None
        wide = [axis for axis in node.axes if axis.size != 1]
        if len(wide) != 1 or wide[0].size is None or (wide[0].size.constant or 0) < 2:
            return None
        value, factor = node.args[0], None
        if isinstance(value, Op) and value.name == "mul":
            value, factor = value.args
            if not _is_one_hot(value, wide[0]):
                value, factor = factor, value
        if not _is_one_hot(value, wide[0]) or value.dtype != node.dtype:
            return None
        assert isinstance(value, Op)
        place = _place(value.args[0], wide[0])
        then, other = value.args[1:]
        parts = [p for p in (place, then, factor) if p is not None]
        if place is None or any(set(node.axes) & free.get(p, frozenset(node.axes)) for p in parts):
            return None
        zero, size = ops.const(0, place.dtype), wide[0].size
        end = ops.cast(ops.index_value(size, torch.int64), place.dtype)
        inside = ops.binary(
            "logical_and", ops.binary("ge", place, zero), ops.binary("lt", place, end)
        )
        if factor is None:
            return ops.where(inside, then, other)
        rest = ops.binary("mul", other, factor)
        return ops.binary("add", ops.where(inside, ops.binary("mul", then, factor), rest), rest)

    values = rewrite(tuple(s.value for s in body.stores), {}, folded)
    if values == tuple(s.value for s in body.stores):
        return body
    stores = tuple(replace(s, value=v) for s, v in zip(body.stores, values, strict=True))
    result = replace(body, stores=stores)
    left = any(isinstance(n, Reduce | Scan) for n in result.nodes())
    reduced = set(body.reduce_axes)
    if not left and all(
        reduced <= {s for e in store.index for s in e.symbols()} for store in stores
    ):
        return Body(body.axes + body.reduce_axes, (), stores)  # nothing is left but elements
    return result


def _is_one_hot(value: Node, axis: Symbol) -> bool:
    """Whether this is ``where(position == place, something, 0)``."""
    if not (isinstance(value, Op) and value.name == "where"):
        return False
    condition, _, other = value.args
    zero = isinstance(other, Const) and other.value == 0
    return zero and _place(condition, axis) is not None


def _place(condition: Node, axis: Symbol) -> Node | None:
    """Return what the position along ``axis`` is compared with."""
    if not (isinstance(condition, Op) and condition.name == "eq"):
        return None
    for one, other in (condition.args, condition.args[::-1]):
        if isinstance(one, IndexValue) and one.expr == Expr.of(axis):
            return other
    return None


__all__ = ["fold_one_hots"]
