"""Compiled code where autocast is on: what it converts has been converted while it was compiled.

A graph may be called in another state than the one that it was made in: ``backward()`` within
autocast runs the backward part there, though the forward part was called outside. Operators of ATen
would then convert their inputs once more, and return what no kernel after them expects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def without_autocast(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs another one with autocast off."""
    is_on = torch._C._is_any_autocast_enabled
    disabled = torch._C._DisableAutocast

    def call(*inputs: Any) -> Any:
        if not is_on():
            return run(*inputs)
        with disabled():
            return run(*inputs)

    return call


__all__ = ["without_autocast"]
