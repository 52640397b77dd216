"""Calls and values as one line of text, for verdicts."""

from __future__ import annotations

import math
from typing import Any

_SHOWN = 160
_COPIED = 640  # an argument that is no longer stands whole in a call: it can be tried again


def short(value: object, most: int = _SHOWN) -> str:
    """Return a value as text that fits a line.

    Args:
        value: A result, or an argument.
        most: What is longer is cut off at a line's length.
    """
    if isinstance(value, str) and "\n" in value.strip():  # a program: its lines in one
        lines = (line.strip() for line in value.strip().splitlines())
        text = "; ".join(filter(None, lines)).replace(":; ", ": ").replace(";; ", "; ")
        text = f"`{text}`"
    else:
        text = repr(_rounded(value))
    return text if len(text) <= max(most, _SHOWN) else text[: _SHOWN - 4] + " ..."


def _rounded(value: object) -> object:
    """Return a value with the digits of numbers that somebody wants to read."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.5g}")
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return value


def call_text(name: str, call: list[Any]) -> str:
    """Return a call as one writes it."""
    return f"{name}({', '.join(short(value, _COPIED) for value in call)})"


__all__ = ["call_text", "short"]
