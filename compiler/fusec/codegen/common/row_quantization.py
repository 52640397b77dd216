"""Rows that become numbers of eight bits with a scale: what of it float32's last bits matter for.

A scale is an extreme of the row, times and over constants.  It means something only beside the row
that it scales, each element of which has been rounded to 8 bits or fewer; that the extreme itself
is a few units off in the last of float32's 24 bits is a ten-thousandth of that.  So quick
instructions may compute the elements.  What follows the extreme costs a row and not an element:
the scale is computed from it exactly, and so is an element over it before it is rounded to an
integer, where a number that lies halfway must stay there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fusec.ir.body import Body
from fusec.ir.node import Cast, Const, Node, Op, Reduce
from fusec.ir.walk import walk

_INTEGERS = (torch.int8, torch.uint8)
_STEPS = frozenset("mul truediv neg abs maximum minimum where lt gt le ge add".split())
_ROUNDINGS = ("round", "nearest_int")


@dataclass(frozen=True)
class Quantized:
    """The nodes that pass nothing on of how exact they are wanted.

    Attributes:
        scales: From an extreme to where it is stored; computed exactly.
        rounded: From an element over its scale to where it is an integer; computed exactly.
    """

    scales: frozenset[Node] = frozenset()
    rounded: frozenset[Node] = frozenset()


def find_quantized(body: Body) -> Quantized:
    """Return what there is of rows quantized by their own extremes."""
    extremes: set[Node] = set()
    rounded: set[Node] = set()
    for store in body.stores:
        path = [store.value]
        if store.value.dtype in _INTEGERS:
            path = list(_to_integer(store.value))
            if not path:
                continue
        elif store.value.dtype != torch.float8_e4m3fn:
            continue
        found = {n for n in walk((path[-1],)) if isinstance(n, Reduce)}
        if not found or any(n.kind not in ("max", "min") for n in found):
            continue
        extremes |= found
        if store.value.dtype in _INTEGERS:
            rounded.update(path)
    if not extremes:
        return Quantized()
    scales: set[Node] = set()
    for store in body.stores:
        between = _from_extremes(store.value, extremes)
        if store.mode == "set":
            scales |= between
    return Quantized(frozenset(scales), frozenset(rounded))


def _to_integer(value: Node) -> Iterator[Node]:
    """Yield the nodes from a store of an integer up to what is rounded, which is the last one.

    Nothing where the value is not a quotient or a product that was rounded, and clamped before
    or after.
    """
    path: list[Node] = []
    node, was_rounded = value, False
    while True:
        path.append(node)
        if isinstance(node, Cast) and not node.bitcast:
            node = node.args[0]
        elif isinstance(node, Op) and node.name in _ROUNDINGS:
            node, was_rounded = node.args[0], True
        elif isinstance(node, Op) and node.name == "where" and isinstance(node.args[1], Const):
            path.append(node.args[0])
            node = node.args[2]
        elif isinstance(node, Op) and node.name in ("truediv", "mul") and was_rounded:
            yield from path
            return
        else:
            return


def _from_extremes(value: Node, extremes: set[Node]) -> set[Node]:
    """Return the nodes between a value and the extremes that it scales; empty where it is more."""
    path: set[Node] = set()
    stack, met = [value], False
    while stack:
        node = stack.pop()
        if node in extremes:
            met = True
        elif not isinstance(node, Const) and node not in path:
            if not (isinstance(node, Cast) or (isinstance(node, Op) and node.name in _STEPS)):
                return set()
            path.add(node)
            stack.extend(node.args)
    return path if met else set()


__all__ = ["Quantized", "find_quantized"]
