"""Softmax in one pass less: the maximum and the sum of exponentials carried together.

``sum(exp(x - max(x)))`` needs two passes over a row as it is written.  Carrying
``(largest, total)`` with ``total = sum(exp(x - largest))`` needs one: whenever a larger element
comes, the total is scaled down.  What infinities give is decided at the end, by what the user
subtracted: the maximum itself (softmax: NaN, as in eager), or the maximum with infinities
replaced, as ``logsumexp`` does (the infinity).

Likewise ``sum((x - mean(x)) ** 2)`` is carried along with the sum, as Welford does: each lane has
the squared distances from the mean of its own elements, and the lanes are joined at the end.
Nothing cancels, wherever the mean lies.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fusec.codegen.common.identities import CARRIED_WITH, ONLINE_SUM, SQUARES
from fusec.ir.body import Body
from fusec.ir.node import Cast, Const, IndexValue, Node, Op, Reduce, op, reduce
from fusec.ir.shapes import product
from fusec.ir.walk import rewrite, walk


def carry_online(body: Body) -> Body:
    """Return ``body`` with sums that need an earlier reduction carried along with it.

    Those of exponentials go with their maximum, those of squared distances with their mean's sum.
    """
    kinds = [n.kind for n in body.nodes() if isinstance(n, Reduce)]
    if "max" not in kinds and kinds.count("sum") < 2:
        return body

    def replace_sum(node: Node) -> Node | None:
        if not isinstance(node, Reduce) or node.kind != "sum" or node.dtype != torch.float32:
            return None
        if is_square_distance(node):
            (distance, _) = node.args[0].args
            return reduce(SQUARES, distance.args[0], node.axes, node.dtype)
        exponential = node.args[0]
        if not (isinstance(exponential, Op) and exponential.name == "exp"):
            return None
        difference = exponential.args[0]
        if not (isinstance(difference, Op) and difference.name == "sub"):
            return None
        value, shift = difference.args
        largest = find_maximum(value, shift, node)
        if largest is None:
            return None
        total = reduce(ONLINE_SUM, value, node.axes, node.dtype)
        if shift is largest:
            return total
        factor = op("exp", (op("sub", (largest, shift), node.dtype),), node.dtype)
        infinite = op("isinf", (largest,), torch.bool)
        scaled = op("mul", (total, factor), node.dtype)
        return op("where", (infinite, factor, scaled), node.dtype)

    values = rewrite(body.roots, {}, replace_sum)
    stores = tuple(replace(s, value=v) for s, v in zip(body.stores, values, strict=True))
    carried = replace(body, stores=stores)
    # a variance that nobody divides by its mean needs the mean's sum all the same, made of what
    # is carried below it
    companions = dict.fromkeys(
        reduce(CARRIED_WITH[n.kind], n.args[0], n.axes, n.dtype)
        for n in carried.nodes()
        if isinstance(n, Reduce) and n.kind in CARRIED_WITH
    )
    there = set(carried.nodes())
    return replace(carried, companions=tuple(n for n in companions if n not in there))


def is_square_distance(total: Reduce) -> bool:
    """Whether this is the sum of ``(x - mean(x)) ** 2`` over all that the mean is over."""
    square = total.args[0]
    if not (isinstance(square, Op) and square.name == "mul" and square.args[0] is square.args[1]):
        return False
    distance = square.args[0]
    if not (isinstance(distance, Op) and distance.name == "sub"):
        return False
    value, mean = distance.args
    if not (isinstance(mean, Op) and mean.name == "truediv" and value.dtype == torch.float32):
        return False
    sum_of, count = mean.args
    summed = (
        isinstance(sum_of, Reduce)
        and sum_of.kind == "sum"
        and sum_of.args[0] is value
        and sum_of.axes == total.axes
    )
    return summed and _is_count(count, total)


def _is_count(count: Node, total: Reduce) -> bool:
    """Whether a number is how many elements a reduction runs over."""
    wanted = product(a.size for a in total.axes if a.size is not None)
    if isinstance(count, Const):
        return wanted.constant == count.value
    number = count.args[0] if isinstance(count, Cast) else count
    return isinstance(number, IndexValue) and number.expr == wanted


def find_maximum(value: Node, shift: Node, total: Reduce) -> Reduce | None:
    """Return the maximum of ``value`` that ``shift`` is made from, over the same axes."""
    for node in walk((shift,)):
        if (
            isinstance(node, Reduce)
            and node.kind == "max"
            and node.args[0] is value
            and node.axes == total.axes
        ):
            return node
    return None
