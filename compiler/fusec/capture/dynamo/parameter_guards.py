"""Guards on the parameters of modules, asked in every call.

TorchDynamo before torch 2.13 takes a parameter that it found in a dictionary for immutable, and
asks nothing about it while the dictionary has not changed. A layer that is unfrozen
(``requires_grad_(True)``) changes its parameters and no dictionary: it went on without gradients,
silently, whichever backend was asked. So did ``p.data = other`` with other strides, another type or
another shape, which a graph then refused as an input that it was not compiled for.

What is asked is decided while guards are made, by a setting of the whole process; guards are made
under TorchDynamo's own lock, so that one thread at a time changes it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._dynamo.guards import CheckFunctionManager

_SETTING = "skip_tensor_guards_with_matching_dict_tags"
_ASKS_ANYWAY = (2, 13)  # and later


@functools.cache
def install() -> None:
    """Hook into TorchDynamo, once; a release that asks anyway is left alone."""
    if _release() >= _ASKS_ANYWAY or not hasattr(torch._dynamo.config, _SETTING):
        return
    original: Any = CheckFunctionManager.__init__

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        with torch._dynamo.config.patch({_SETTING: False}):
            original(self, *args, **kwargs)

    CheckFunctionManager.__init__ = made  # type: ignore[method-assign]


def _release() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


__all__ = ["install"]
