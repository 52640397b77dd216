"""How two times compare, by the spread of both: the one rule, which every view asks.

A time is a ``Timing`` with its quartiles, or a plain number of seconds, which is taken as exact.

- The quartiles of the two do not meet and the medians differ by more than 2 %: FASTER or SLOWER.
- They do not meet, and the medians differ by less; or they meet, and the medians differ by less
  than 5 %: SAME.
- They meet, and the medians differ by more: UNSURE. Nothing is said about which is faster.
"""

from __future__ import annotations

from enum import Enum, auto

from fusec.report import Timing

INDIFFERENT = 0.02  # the least that is called a difference
CLOSE = 0.05  # medians so near are the same where the quartiles meet

UNSURE = "not told apart: the times vary too much"
SAME = "the same"


class Pace(Enum):
    """How a time compares with another."""

    UNKNOWN = auto()
    SAME = auto()
    FASTER = auto()
    SLOWER = auto()
    UNSURE = auto()


def median(time: Timing | float) -> float:
    """Return the seconds of a time."""
    return time.median if isinstance(time, Timing) else time


def bounds(time: Timing | float) -> tuple[float, float]:
    """Return the quartiles of a time; of an exact one, itself twice."""
    return (time.low, time.high) if isinstance(time, Timing) else (time, time)


def pace(time: Timing | float, reference: Timing | float) -> Pace:
    """Return how ``time`` compares with ``reference``."""
    own, other = median(time), median(reference)
    if own <= 0 or other <= 0:
        return Pace.UNKNOWN
    difference = max(own, other) / min(own, other) - 1
    (low, high), (least, most) = bounds(time), bounds(reference)
    if low <= most and least <= high:
        return Pace.SAME if difference < CLOSE else Pace.UNSURE
    if difference < INDIFFERENT:
        return Pace.SAME
    return Pace.FASTER if own < other else Pace.SLOWER


def against(time: Timing | float, reference: Timing | float) -> str:
    """Say how ``time`` compares with ``reference``: ``3.0× faster``; empty if unknown."""
    found = pace(time, reference)
    if found is Pace.FASTER:
        return f"{ratio(median(reference) / median(time))}× faster"
    if found is Pace.SLOWER:
        return f"{ratio(median(time) / median(reference))}× slower"
    return {Pace.SAME: SAME, Pace.UNSURE: UNSURE}.get(found, "")


def compared(time: Timing | float, reference: Timing | float, name: str) -> str:
    """Say how ``time`` compares with what has a name: ``3.0× faster than eager``."""
    found = pace(time, reference)
    if found is Pace.UNSURE:
        return f"not told apart from {name}: the times vary too much"
    if found is Pace.SAME:
        return f"as fast as {name}"
    said = against(time, reference)
    return f"{said} than {name}" if said else ""


def ratio(value: float) -> str:
    """Write a ratio: two decimals below 2, one below 100."""
    return f"{value:.2f}" if value < 2 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


__all__ = ["Pace", "against", "bounds", "compared", "median", "pace", "ratio"]
