"""What people call a value that several operations make together: a mean, a variance, squares."""

from __future__ import annotations

import torch

from fusec.ir.body import axis_sizes
from fusec.ir.index import Expr
from fusec.ir.node import Cast, Const, IndexValue, Node, Op, Reduce
from fusec.ir.shapes import product


def reduction_word(node: Reduce) -> str:
    """Return what a reduction makes: ``sum``, ``squares``, ``max``."""
    if node.kind != "sum":
        return node.kind
    if not node.dtype.is_floating_point and _is_one_or_none(node.args[0]):
        return "count"
    return "squares" if _square(node.args[0]) is not None else "sum"


def told_word(node: Node) -> str:
    """Return what a value is called if it is one of these; else nothing."""
    if not isinstance(node, Op):
        return ""
    mean = _mean(node)
    if mean:
        return mean
    if node.name == "truediv":
        return _quotient(node)
    if node.name == "where":
        return _chosen(node)
    if node.name in ("rsqrt", "sqrt"):
        inner = _plain(node.args[0])
        if isinstance(inner, Op) and inner.name == "add" and isinstance(inner.args[1], Const):
            inner = _plain(inner.args[0])
        of = _mean(inner)
        if of in ("variance", "mean_square"):
            stem = "std" if of == "variance" else "rms"
            return f"r{stem}" if node.name == "rsqrt" else stem
    return ""


def _mean(node: Node) -> str:
    """Return what a sum over its count is; nothing if a value is no such thing."""
    if not isinstance(node, Op) or node.name not in ("truediv", "mul"):
        return ""
    total = _plain(node.args[0])
    if not isinstance(total, Reduce) or total.kind != "sum":
        return ""
    inner = _square(total.args[0])
    off = isinstance(inner, Op) and inner.name == "sub"
    count = product(axis_sizes(total.axes))
    if not any(_is_count(node, count - less) for less in ((0, 1) if off else (0,))):
        return ""
    return "mean" if inner is None else "variance" if off else "mean_square"


def _chosen(node: Op) -> str:
    """Return what a choice by a comparison with a bound is called."""
    condition, yes, no = node.args
    if not isinstance(condition, Op) or condition.name not in ("lt", "le", "gt", "ge"):
        return ""
    value, bound = condition.args
    if value is no and yes is bound:
        return "clamped"
    from_end = isinstance(yes, Op) and yes.name == "add" and yes.args[0] is value
    return "wrapped" if value is no and from_end and condition.name == "lt" else ""


def _quotient(node: Op) -> str:
    """Return what some quotients are called."""
    above, below = (_plain(arg) for arg in node.args)
    if isinstance(below, Reduce) and isinstance(above, Const):
        return f"inverse_{reduction_word(below)}"
    if isinstance(below, Op) and below.name == "sqrt" and isinstance(above, Const):
        return "inverse_root"
    if isinstance(below, Op) and below.name == "add":
        inner = [_plain(arg) for arg in below.args]
        if any(
            isinstance(n, Op) and n.name.startswith("exp") and _is_negated(n, above) for n in inner
        ):
            return "silu"
    return ""


def _is_negated(exponential: Op, value: Node) -> bool:
    argument = _plain(exponential.args[0])
    return isinstance(argument, Op) and argument.name == "neg" and _plain(argument.args[0]) is value


def _is_one_or_none(node: Node) -> bool:
    """Whether a value is 1 where a condition holds, and 0 elsewhere."""
    if isinstance(node, Cast):
        return node.args[0].dtype == torch.bool
    values = [arg.value for arg in node.args[1:] if isinstance(arg, Const)]
    return isinstance(node, Op) and node.name == "where" and values == [1, 0]


def _is_count(node: Op, count: Expr) -> bool:
    """Whether a value is a sum over ``count``."""
    by = _plain(node.args[1])
    if isinstance(by, IndexValue):
        return node.name == "truediv" and by.expr == count
    if not isinstance(by, Const) or count.constant is None or not by.value:
        return False
    one = count.constant / by.value if node.name == "truediv" else count.constant * by.value
    return abs(one - 1) < 1e-5


def _square(node: Node) -> Node | None:
    """Return what a value is the square of; None if it is none."""
    node = _plain(node)
    if isinstance(node, Op) and node.name == "mul" and node.args[0] is node.args[1]:
        return _plain(node.args[0])
    return None


def _plain(node: Node) -> Node:
    """Return a value without the conversions of it."""
    while isinstance(node, Cast):
        node = node.args[0]
    return node


__all__ = ["reduction_word", "told_word"]
