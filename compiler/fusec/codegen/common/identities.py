"""Reductions, scans and updates in any language: what they start from, and how they combine."""

from __future__ import annotations

import torch

from fusec.ir.node import Number, Reduce

# A sum of exp(x - largest) that is carried with the largest in one pass.
ONLINE_SUM = "online_sum"
# A sum of squared distances from the mean that is carried with the sum in one pass.
SQUARES = "squares"
# What each of them is carried with.
CARRIED_WITH = {ONLINE_SUM: "max", SQUARES: "sum"}

# By which operation two results of a kind become one; an update's kinds, too.
COMBINES = {
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "mul": "mul",
    "max": "maximum",
    "min": "minimum",
    "any": "logical_or",
    "all": "logical_and",
    "xor": "logical_xor",
}


def identity(kind: str, dtype: torch.dtype) -> Number:
    """Return the value that changes nothing.

    Args:
        kind: Of a reduction or a scan; for one of positions, that of the extreme beside it.
        dtype: Of the values.
    """
    if kind in ("sum", "xor", "any", ONLINE_SUM, SQUARES):
        return 0
    if kind in ("prod", "all"):
        return 1
    largest = kind.removeprefix("arg") == "max"
    if dtype == torch.bool:
        return not largest
    if dtype.is_floating_point:
        return float("-inf") if largest else float("inf")
    info = torch.iinfo(dtype)
    return info.min if largest else info.max


def padding_value(node: Reduce) -> Number:
    """Return what stands for elements outside the row: for a sum of exponentials, exp's zero."""
    if node.kind == ONLINE_SUM:
        return float("-inf")
    return identity(node.kind, node.args[0].dtype)


__all__ = [
    "CARRIED_WITH",
    "COMBINES",
    "ONLINE_SUM",
    "SQUARES",
    "identity",
    "padding_value",
]
