"""One rule for noise: how two times compare, by the spread of both.

Every view asks here, so that no two of them can disagree: the card, the panel, the pages, the
plots, what a check and what a search found.  A time is a ``Timing`` with its quartiles, or a plain
number of seconds, which is taken as exact.

- The quartiles of the two do not meet and the medians differ by more than 2 %: FASTER or SLOWER.
- They do not meet, and the medians differ by less; or they meet, and the medians differ by less
  than 5 %: SAME.
- They meet, and the medians differ by more: UNSURE. Nothing is said about which is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from fusec.report import Timing, TuningRun

INDIFFERENT = 0.02  # the least that is called a difference
CLOSE = 0.05  # medians so near are the same where the quartiles meet
BUSY = 0.25  # a quartile distance of so much of the median is said once

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
    apart = max(own, other) / min(own, other) - 1
    (low, high), (least, most) = bounds(time), bounds(reference)
    if low <= most and least <= high:
        return Pace.SAME if apart < CLOSE else Pace.UNSURE
    if apart < INDIFFERENT:
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
    said = against(time, reference)
    return f"{said} {'as' if found is Pace.SAME else 'than'} {name}" if said else ""


def ratio(value: float) -> str:
    """Write a ratio: two decimals below 2, one below 100."""
    return f"{value:.2f}" if value < 2 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def spread(time: Timing) -> float:
    """Return the distance of the quartiles as a share of the median."""
    return (time.high - time.low) / time.median if time.median > 0 else 0.0


def busy_note(times: Iterable[Timing | None]) -> str:
    """Say, once for all times of a view, that the machine was noisy; empty where it was not."""
    worst = max((spread(time) for time in times if time is not None), default=0.0)
    if worst < BUSY:
        return ""
    return f"this machine is busy: times vary by {worst:.0%}; measure again when it is quiet"


def part_note(whole: Timing | None, parts: Mapping[str, Timing]) -> str:
    """Say why a part seems to take longer than its whole; empty where none does."""
    if whole is None:
        return ""
    longer = [name for name, time in parts.items() if time.median > whole.median]
    if not longer:
        return ""
    return (
        f"{', '.join(longer)} alone took longer than the cell with it, in another run: "
        "compare times of one run"
    )


def in_use(run: TuningRun) -> int | None:
    """Return the trial whose values are in use: every view of a search marks this one."""
    return run.best


def gain(run: TuningRun) -> tuple[Pace, str]:
    """Return how what a search put in use compares with what it started from, and say it."""
    place = in_use(run)
    first = run.trials[0].timing if run.trials else None
    own = run.trials[place].timing if place is not None else None
    if place in (None, 0) or own is None or first is None:
        return Pace.UNKNOWN, ""
    return pace(own, first), compared(own, first, "before")


def progress(run: TuningRun) -> str:
    """Say how many configurations were tried: ``12 of 40``; the same in each view."""
    return f"{len(run.trials)} of {total(run)}"


def total(run: TuningRun) -> int:
    """Return how many configurations there are to try."""
    return max(run.total, len(run.trials))


__all__ = [
    "Pace",
    "against",
    "bounds",
    "busy_note",
    "compared",
    "gain",
    "in_use",
    "median",
    "pace",
    "part_note",
    "progress",
    "ratio",
    "spread",
    "total",
]
