"""Compiled code where autocast is on: what it converts has been converted while it was compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def without_autocast(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs another one with autocast off."""
    disabled = torch._C._DisableAutocast

    def call(*inputs: Any) -> Any:
        with disabled():
            return run(*inputs)

    return call


__all__ = ["without_autocast"]
