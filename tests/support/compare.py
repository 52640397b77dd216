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
    torch.complex128: (1e-9, 1e-9),
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
        a, e = _comparable(a), _comparable(e)
        try:
            torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return " ".join(str(error).split())[:300]
    return ""


def _comparable(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor that torch can compare: it cannot where a type is too narrow or unsigned."""
    if value.layout != torch.strided:
        return value
    if value.dtype.is_floating_point and value.dtype.itemsize == 1:
        return value.float()
    if value.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return value.to(torch.int64)  # of 64 bits, the same ones
    return value.to(torch.complex64) if value.dtype == torch.complex32 else value
