"""Softmax in one pass less: the maximum and the sum of exponentials carried together.

``sum(exp(x - max(x)))`` needs two passes over a row as it is written.  Carrying
``(largest, total)`` with ``total = sum(exp(x - largest))`` needs one: whenever a larger element
comes, the total is scaled down.  What infinities give is decided at the end, by what the user
subtracted: the maximum itself (softmax: NaN, as in eager), or the maximum with infinities
replaced, as ``logsumexp`` does (the infinity).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fusec.codegen.triton.reduce_text import ONLINE_SUM
from fusec.ir.body import Body
from fusec.ir.node import Node, Op, Reduce, op, reduce, rewrite, walk


def carry_online(body: Body) -> Body:
    """Return ``body`` with sums of exponentials carried along with their maximum."""
    nodes = body.nodes()
    maxima = {n.args[0]: n for n in nodes if isinstance(n, Reduce) and n.kind == "max"}
    if not maxima:
        return body

    def replace_sum(node: Node) -> Node | None:
        if not isinstance(node, Reduce) or node.kind != "sum" or node.dtype != torch.float32:
            return None
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
    return replace(body, stores=stores)


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
