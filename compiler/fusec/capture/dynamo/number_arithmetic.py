"""Arithmetic of symbolic numbers that torch gets wrong, whichever backend is asked.

A remainder is taken for an integer, of floating-point numbers as well: ``(x.shape[0] / 2) % 1`` was
0 for every size, so that ``if`` went the same way for odd ones, and ``x.shape[0] % 2.5`` was that
of an earlier call. ``round(x.shape[0], -1)`` did not round. Both are what Python says now, and
guarded to be: another size is compiled again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols


@functools.cache
def install() -> None:
    """Hook into torch, once."""
    mod: Any = SymNode.mod
    SymNode.mod = _of_integers(mod)  # type: ignore[assignment,method-assign]
    torch.SymInt.__round__ = _to_tens(torch.SymInt.__round__)  # type: ignore[method-assign]


def _of_integers(mod: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return torch's remainder, asked of integers alone."""

    @functools.wraps(mod)
    def remainder(self: Any, other: Any) -> Any:
        if self.pytype is int and other.pytype is int:
            return mod(self, other)
        if free_unbacked_symbols(self.expr) or free_unbacked_symbols(other.expr):
            return mod(self, other)  # nobody knows what they are
        return self.wrap_float(float(_guarded(self) % _guarded(other)))

    return remainder


def _guarded(node: Any) -> int | float:
    """Return what a number is in this call, which is guarded."""
    found: int | float = (
        node.guard_int(__file__, 0) if node.pytype is int else node.guard_float(__file__, 0)
    )
    return found


def _to_tens(to_digits: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's rounding of a symbolic integer, which leaves it as it is, before the point."""

    @functools.wraps(to_digits)
    def rounded(self: Any, ndigits: int | None = None) -> Any:
        if ndigits is None or ndigits >= 0:
            return to_digits(self, ndigits)
        return round(int(self), ndigits)

    return rounded


__all__ = ["install"]
