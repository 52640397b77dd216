"""Numbers that eager converts with a check: 300 is no uint8, and 1e39 no float32.

Where eager refuses one, the operator stays with ATen, which raises eager's own error when it is
called: not earlier, and not instead of what would have been raised before it.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.lower.values import NotLowered

_SMALL = 127  # no more than this fits into any type


def require_fitting(dtype: torch.dtype, *values: object) -> None:
    """Raise where eager does not convert a number to ``dtype``; anything but numbers passes.

    Raises:
        NotLowered: It would overflow.
    """
    for value in values:
        if not isinstance(value, (int, float)) or 0 <= value <= _SMALL:
            continue
        try:
            with unset_fake_temporarily():
                torch.full((), value, dtype=dtype)
        except (RuntimeError, OverflowError):
            raise NotLowered(
                f"{value} is not a {str(dtype).removeprefix('torch.')}", refused=True
            ) from None


__all__ = ["require_fitting"]
