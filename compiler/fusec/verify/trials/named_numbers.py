"""The numbers that an edit names: what a condition is about that no drawn value ever meets."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator

# Of C++ and Python; what follows a letter or a digit is part of a name.
_NUMBER = re.compile(
    r"""
    (?<![\w.])(?P<minus>-\s*)?
    (?:
        (?P<hex>0[xX][\da-fA-F']*\.?[\da-fA-F]*(?:[pP][+-]?\d+)?)
      | (?P<plain>(?:\d[\d'_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    )
    """,
    re.VERBOSE,
)
# More of them are decoration, or a table: some are drawn.
MOST = 6


def named_numbers(text: str, generated: str) -> list[float]:
    """Return the finite numbers in a text that the compiler's own has not; a few where many.

    Args:
        text: The whole kernel file, without its comments.
        generated: The compiler's.
    """
    known = set(_numbers(generated))
    found = [number for number in dict.fromkeys(_numbers(text)) if number not in known]
    return random.SystemRandom().sample(found, MOST) if len(found) > MOST else found


def around(number: float) -> list[float]:
    """Return a number, what lies next to it on both sides, and the same below zero."""
    return [number, -number, number * 1.001, number * 0.999]


def computed(number: float) -> list[float]:
    """Return what gives a number where a text doubles or squares it first."""
    return [number / 2, *([math.sqrt(number)] if number > 0 else [])]


def _numbers(text: str) -> Iterator[float]:
    for found in _NUMBER.finditer(text):
        digits = (found["hex"] or found["plain"]).replace("'", "").replace("_", "")
        try:
            number = float.fromhex(digits) if found["hex"] else float(digits)
        except (ValueError, OverflowError):
            continue
        if math.isfinite(number):
            yield -number if found["minus"] else number


__all__ = ["MOST", "around", "computed", "named_numbers"]
