"""What a reduction over nothing is: the number from which a running one starts, in any language."""

from __future__ import annotations

import torch

from fusec.ir.node import Number

# A sum of exp(x - largest) that is carried with the largest in one pass.
ONLINE_SUM = "online_sum"
# A sum of squared distances from the mean that is carried with the sum in one pass.
SQUARES = "squares"


def identity(kind: str, dtype: torch.dtype) -> Number:
    """Return the value that changes nothing.

    Args:
        kind: Of a reduction or a scan; for one of positions, that of the extreme beside it.
        dtype: Of the values.
    """
    if kind in ("sum", "xor", "any", ONLINE_SUM, SQUARES):
        return False if dtype == torch.bool else 0
    if kind in ("prod", "all"):
        return True if dtype == torch.bool else 1
    largest = kind.removeprefix("arg") == "max"
    if dtype == torch.bool:
        return not largest
    if dtype.is_floating_point:
        return float("-inf") if largest else float("inf")
    info = torch.iinfo(dtype)
    return info.min if largest else info.max


__all__ = ["ONLINE_SUM", "SQUARES", "identity"]
