"""Hooks that are put on a compiled module, and taken away again.

What is captured has the hooks of its time, and no guard of TorchDynamo's asks for new ones, or for
those that went. Hooks of the compiled object therefore run around it, as those of
``torch.compile``'s module do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

_TABLES = "_forward_hooks _forward_pre_hooks _backward_pre_hooks _backward_hooks".split()
_FULL = "register_full_backward_hook"
_REGISTER = frozenset(
    ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_pre_hook", _FULL)
)


def hook_tables(function: Callable[..., Any]) -> tuple[Mapping[int, Any], ...]:
    """Return where a module keeps its own hooks, by number; of a function there is nothing."""
    if not isinstance(function, nn.Module):
        return ()
    return tuple(getattr(function, name) for name in _TABLES)


def puts_hook(name: str) -> bool:
    """Return whether a method of this name puts a hook on a module."""
    return name in _REGISTER


def put_around(optimized: nn.Module, name: str) -> Any:
    """Return the method that puts a hook around what is compiled.

    Args:
        optimized: TorchDynamo's module around the original.
        name: Of the method.
    """
    if name == _FULL:
        # nn.Module notes here that its hooks are of this kind, and looks here for it. The method
        # would leave the note with the original, and the hook would never run.
        optimized.__dict__["_is_full_backward_hook"] = True
    return getattr(optimized, name)


def share_hooks(optimized: nn.Module, other: nn.Module) -> None:
    """Have another module around a copy of the original run the hooks of this one, as they are."""
    for name, value in optimized.__dict__.items():
        if "_hook" in name:
            other.__dict__[name] = value.copy() if isinstance(value, dict) else value


__all__ = ["hook_tables", "put_around", "puts_hook", "share_hooks"]
