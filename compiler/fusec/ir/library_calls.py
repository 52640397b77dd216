"""Library calls in float64: what a library has for narrower types alone, by operators for any.

Passes put such calls in the place of products where the library is quick at them. A reference in
float64 asks for the same product of other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

aten = torch.ops.aten

# Products whose result is wider than their operands.
_WIDER = {aten.mm.dtype: aten.mm.default, aten.bmm.dtype: aten.bmm.default}
_ONEDNN = "mkldnn._linear_pointwise.default"


def call_exactly(target: Callable[..., object], args: Sequence[Any], kwargs: Any) -> object:
    """Call an operator, or where it is given float64 that it does not take, one that does."""
    if any(isinstance(a, torch.Tensor) and a.dtype is torch.float64 for a in args):
        if target in _WIDER:
            left, right, _ = args
            return _WIDER[target](left, right)
        # by name: torch may be built without oneDNN
        if str(target) == _ONEDNN and args[3] == "none":
            return functional.linear(*args[:3])
    return target(*args, **kwargs)


__all__ = ["call_exactly"]
