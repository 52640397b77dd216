"""Cheaper forms of what the user's functions make of scores, where the weights are rounded.

A score goes into an exponential whose result has 11 or 8 bits, or 24 in the sum of a whole row: an
error of a few units in float32's last place is far below what the product of query and key is off
by.  A conversion from an integer takes as long as four additions: positions are converted before
they are subtracted, once a row and once a column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from fusec.codegen.common.relaxed_maths import relaxed_nodes
from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.bounds import bounds
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Const, Node, Op, Reduce, cast, const, index_value, op
from fusec.ir.walk import walk

TANH = "tanh_by_exp2"  # a helper: tanh(x), given 2 * log2(e) * x
F32 = torch.float32
EXACT = 2**24  # up to where float32 has all integers
LARGEST = 1e3  # what a quick tanh is times at most: its error is one of the result's largest value


def quicken(roots: Sequence[Node]) -> tuple[Node, ...]:
    """Return scores, and what comes of them, computed in cheaper steps."""
    nodes = walk(tuple(roots), Reduce)
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for arg in node.args:
            users.setdefault(arg, []).append(node)
    done: dict[Node, Node] = {}
    for node in nodes:
        args = tuple(done.get(arg, arg) for arg in node.args)
        same = isinstance(node, Reduce) or args == node.args
        new = node if same else node.rebuild(args, lambda expr: expr)
        if isinstance(node, Op) and node.name == "tanh" and _is_scaled(node, users.get(node, [])):
            new = _tanh(new)
        else:
            new = _quick(new) or new
        if new is not node:
            new.source = node.source
            done[node] = new
    return tuple(done.get(root, root) for root in roots)


def _quick(node: Node) -> Node | None:
    if isinstance(node, Cast) and node.dtype == F32 and not node.bitcast:
        return _converted(node.args[0])
    if not isinstance(node, Op) or node.dtype != F32:
        return None
    if node.name == "truediv" and _is_factor(node.args[1]):
        divisor = node.args[1]
        assert isinstance(divisor, Const)
        return _times(node.args[0], 1 / divisor.value)
    if node.name == "mul":
        for x, y in (node.args, node.args[::-1]):
            if isinstance(y, Const) and _is_factor(y):
                return _times(x, float(y.value))
    return None


def _is_factor(node: Node) -> bool:
    """Whether this is a number that it is safe to divide or to multiply by."""
    return isinstance(node, Const) and 1e-6 < abs(node.value) < 1e6


def _times(x: Node, factor: float) -> Node:
    if isinstance(x, Op) and x.name == "mul" and _is_factor(x.args[1]):
        number = x.args[1]
        assert isinstance(number, Const)
        return _times(x.args[0], float(number.value) * factor)
    return ops.binary("mul", x, const(factor, F32))


def _is_scaled(node: Node, users: Sequence[Node]) -> bool:
    """Whether a value within 1 is only multiplied: by a moderate number, or by itself."""
    for user in users:
        others = [arg for arg in user.args if arg is not node]
        moderate = all(isinstance(o, Const) and abs(o.value) <= LARGEST for o in others)
        if not (isinstance(user, Op) and user.name == "mul" and moderate):
            return False
    return bool(users)


def _tanh(node: Node) -> Node:
    return op(TANH, (_times(node.args[0], 2 * math.log2(math.e)),), F32)


def _converted(node: Node) -> Node | None:
    """Return an integer sum as a sum of floats, where neither rounds."""
    if not isinstance(node, Op) or node.name not in ("add", "sub"):
        return None
    ranges = [bounds(each) for each in (node, *node.args)]
    if any(r is None or r[0] < -EXACT or r[1] > EXACT for r in ranges):
        return None
    left, right = (cast(each, F32) for each in node.args)
    return op(node.name, (left, right), F32)


def without_row_term(
    score: Node, first: Symbol, varies: Callable[[Node], bool]
) -> tuple[Node, Node | None]:
    """Return a score without what all scores of a row have in common; and that, or None.

    A softmax does not change where a number is added to a whole row, such as ``- slope * query``
    in a bias of ``slope * (key - query)``.  Positions are counted from the first query of a tile,
    so that the products are as small, and as exact, as those of the bias.

    Args:
        score: As ``quicken`` leaves it.
        first: The place of a tile's first query.
        varies: Whether a value differs along a row.
    """
    if not (isinstance(score, Op) and score.name == "add"):
        return score, None
    for rest, bias in (score.args, score.args[::-1]):
        if not (isinstance(bias, Op) and bias.name == "mul"):
            continue
        for slope, distance in (bias.args, bias.args[::-1]):
            parts = _distance(distance)
            if parts is None:
                continue
            one, other = parts
            along = varies(one)
            if varies(slope) or varies(other) == along:
                continue
            start = index_value(Expr.of(first), one.dtype)
            left, right = (
                ops.binary("mul", slope, cast(ops.binary("sub", each, start), F32))
                for each in parts
            )
            # slope * (left - right): the part of the row is taken off, and given back at the end
            if along:
                return ops.binary("add", rest, left), ops.unary("neg", right)
            return ops.binary("sub", rest, right), left
    return score, None


def _distance(node: Node) -> tuple[Node, Node] | None:
    """Return the two integers whose difference a float is."""
    if not (isinstance(node, Op) and node.name == "sub"):
        return None
    left, right = node.args
    for each in (left, right):
        if not isinstance(each, Cast) or each.args[0].dtype.is_floating_point:
            return None
    found = left.args[0], right.args[0]
    return found if found[0].dtype == found[1].dtype != torch.bool else None


def relaxed(body: Body, root: Node) -> frozenset[Node]:
    """Return the values below a score that quick instructions may compute."""
    rounded = cast(root, torch.bfloat16)
    found = relaxed_nodes(Body(body.axes, body.reduce_axes, (Store("", (), rounded),)), quick=True)
    return found & frozenset(walk((root,), Reduce))


__all__ = ["TANH", "quicken", "relaxed", "without_row_term"]
