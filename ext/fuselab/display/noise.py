"""What is said of noise: a busy machine, a part longer than its whole, what a search put in use.

How two times compare is decided in ``fusec.timing.pace``, for every view: the card, the panel, the
pages, the plots, what a check and what a search found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fusec.report import Timing
from fusec.timing.pace import Pace, against, bounds, compared, median, pace, ratio
from fusec.tuning_report import TuningRun

UNCONFIRMED = "looked faster, not confirmed"
BUSY = 0.25  # a quartile distance of so much of the median is said once


def spread(time: Timing) -> float:
    """Return the distance of the quartiles as a share of the median."""
    return (time.high - time.low) / time.median if time.median > 0 else 0.0


def busy_note(times: Iterable[Timing | None]) -> str:
    """Say, once for all times of a view, that the machine was noisy; empty where it was not."""
    worst = max((spread(time) for time in times if time is not None), default=0.0)
    if worst < BUSY:
        return ""
    much = f"by {worst:.0%}" if worst < 1 else f"{worst + 1:.0f}-fold"
    return f"this machine is busy: times vary {much}; measure again when it is quiet"


def part_note(whole: Timing | None, parts: Mapping[str, Timing]) -> str:
    """Say why a part seems to take longer than its whole; empty where none does."""
    if whole is None:
        return ""
    longer = [name for name, time in parts.items() if time.median > whole.median]
    if not longer:
        return ""
    kernels = "kernel" if len(longer) == 1 else "kernels"
    return (
        f"{kernels} {', '.join(longer)} alone took longer than the whole cell, in another run: "
        "compare times of one run"
    )


def in_use(run: TuningRun) -> int | None:
    """Return the trial whose values are in use: every view of a search marks this one."""
    return run.best


def unconfirmed(run: TuningRun) -> frozenset[int]:
    """Return the trials whose times beat what a search put in use, and which are not in use.

    What looks faster once need not be: a search ends with a round in which the leaders are timed
    in turns, and only what is faster there, round by round, is put in use. Of what a person has
    picked since, the search has decided nothing.
    """
    place = in_use(run)
    own = run.trials[place].timing if place is not None and run.stopped else None
    if run.picked or own is None:
        return frozenset()
    times = {i: trial.timing for i, trial in enumerate(run.trials) if i != place}
    return frozenset(i for i, time in times.items() if time and pace(time, own) is Pace.FASTER)


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
    "UNCONFIRMED",
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
    "unconfirmed",
]
