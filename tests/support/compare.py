"""Comparing results of any structure."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_TOLERANCE = {
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float32: (1e-5, 2e-5),
    torch.float64: (1e-9, 1e-9),
}


def difference(actual: Any, expected: Any) -> str:
    """Return how two results differ, or an empty string."""
    left, right = tree_leaves(actual), tree_leaves(expected)
    if len(left) != len(right):
        return f"{len(left)} results instead of {len(right)}"
    for a, e in zip(left, right, strict=True):
        if not isinstance(e, torch.Tensor):
            if a != e and not (a != a and e != e):
                return f"{a!r} instead of {e!r}"
            continue
        if a.shape != e.shape or a.dtype != e.dtype:
            return f"{a.dtype} {tuple(a.shape)} instead of {e.dtype} {tuple(e.shape)}"
        rtol, atol = _TOLERANCE.get(e.dtype, (1e-5, 1e-5))
        try:
            torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return " ".join(str(error).split())[:300]
    return ""
