"""Which extremes need not mind NaN, because what is computed beside them does.

Where a row has a NaN, the sum of its softmax weights, ``exp(x - max(x))``, is NaN whatever number
its maximum is taken to be. If nothing is stored but what that sum makes NaN, the maximum may be of
the numbers alone, which is one instruction where the other takes three.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusec.codegen.common.patterns import index_nodes
from fusec.codegen.common.relaxed_maths import is_softmax_weight
from fusec.ir.body import Body
from fusec.ir.node import Cast, Node, Op, Reduce

# NaN where an argument is.
_CARRYING = frozenset(
    "add sub mul truediv neg abs exp exp_nonpositive exp_for_half log sqrt rsqrt tanh".split()
)


def extremes_of_numbers(body: Body) -> frozenset[Node]:
    """Return the maxima of ``body`` that may leave NaN out; nothing that is stored differs."""
    nodes, found = body.nodes(), set()
    for node in nodes:
        if isinstance(node, Reduce) and node.kind == "max" and node.dtype.is_floating_point:
            totals = {n for n in nodes if _is_total_of(n, node)}
            if totals and node not in index_nodes(body) and _is_hidden(body, node, totals):
                found.add(node)
    return frozenset(found)


def _is_total_of(node: Node, largest: Reduce) -> bool:
    if not (isinstance(node, Reduce) and node.kind == "sum" and node.axes == largest.axes):
        return False
    weight = node.args[0]
    return is_softmax_weight(weight) and weight.args[0].args[1] is largest


def _is_hidden(body: Body, largest: Node, totals: set[Node]) -> bool:
    """Whether each stored value is the same, or NaN, whatever number stands for ``largest``."""
    differs: dict[Node, bool] = {}
    is_nan: dict[Node, bool] = {}
    for node in body.nodes():
        is_nan[node] = node in totals or _carries(node, is_nan)
        inner = node is largest or any(differs[arg] for arg in node.args)
        differs[node] = inner and not is_nan[node]
    return not any(differs[store.value] for store in body.stores)


def _carries(node: Node, is_nan: Mapping[Node, bool]) -> bool:
    """Whether a value is NaN because one that it is computed from is."""
    if isinstance(node, Cast):
        return node.dtype.is_floating_point and not node.bitcast and is_nan[node.args[0]]
    if isinstance(node, Reduce):
        return node.kind == "sum" and is_nan[node.args[0]]
    carrying = isinstance(node, Op) and node.name in _CARRYING
    return carrying and any(is_nan[arg] for arg in node.args)


__all__ = ["extremes_of_numbers"]
