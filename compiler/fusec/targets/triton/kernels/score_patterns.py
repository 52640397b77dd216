"""Cheaper forms of what the user's functions make of scores, where the weights are rounded.

A score goes into an exponential whose result has 11 or 8 bits, or 24 in the sum of a whole row: an
error of a few units in float32's last place is far below what the product of query and key is off
by.  A conversion from an integer takes as long as four additions: positions are converted before
they are subtracted, once a row and once a column.
"""

from __future__ import annotations

import math

import torch

from fusec.codegen.common.relaxed_maths import relaxed_nodes
from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.bounds import bounds
from fusec.ir.node import Cast, Const, Dot, Node, Op, cast, const, op, rewrite, walk

TANH = "tanh_by_exp2"  # a helper: tanh(x), given 2 * log2(e) * x
F32 = torch.float32
EXACT = 2**24  # up to where float32 has all integers
LARGEST = 1e3  # what a quick tanh is times at most: its error is one of the result's largest value


def quicken(root: Node) -> Node:
    """Return a score computed in cheaper steps."""
    return rewrite((root,), {}, _quick, leaf=Dot)[0]


def _quick(node: Node) -> Node | None:
    if isinstance(node, Cast) and node.dtype == F32 and not node.bitcast:
        return _converted(node.args[0])
    if not isinstance(node, Op) or node.dtype != F32:
        return None
    if node.name == "truediv" and _factor(node.args[1]):
        divisor = node.args[1]
        assert isinstance(divisor, Const)
        return _times(node.args[0], 1 / divisor.value)
    if node.name == "mul":
        for x, y in (node.args, node.args[::-1]):
            if isinstance(y, Const) and _factor(y):
                return _times(x, float(y.value))
    return None


def _factor(node: Node) -> bool:
    """Whether this is a number that it is safe to divide or to multiply by."""
    return isinstance(node, Const) and 1e-6 < abs(node.value) < 1e6


def _times(x: Node, factor: float) -> Node | None:
    if isinstance(x, Op) and x.name == "mul" and _factor(x.args[1]):
        number = x.args[1]
        assert isinstance(number, Const)
        return _times(x.args[0], float(number.value) * factor)
    if isinstance(x, Op) and x.name == "tanh" and abs(factor) <= LARGEST:
        double = _times(x.args[0], 2 * math.log2(math.e))
        assert double is not None
        x = op(TANH, (double,), F32)
    return ops.binary("mul", x, const(factor, F32))


def _converted(node: Node) -> Node | None:
    """Return an integer sum as a sum of floats, where neither rounds."""
    if not isinstance(node, Op) or node.name not in ("add", "sub"):
        return None
    ranges = [bounds(each) for each in (node, *node.args)]
    if any(r is None or r[0] < -EXACT or r[1] > EXACT for r in ranges):
        return None
    left, right = (cast(each, F32) for each in node.args)
    return op(node.name, (left, right), F32)


def relaxed(body: Body, root: Node) -> frozenset[Node]:
    """Return the values below a score that quick instructions may compute."""
    rounded = cast(root, torch.bfloat16)
    found = relaxed_nodes(Body(body.axes, body.reduce_axes, (Store("", (), rounded),)), quick=True)
    return found & frozenset(walk((root,), Dot))


__all__ = ["TANH", "quicken", "relaxed"]
