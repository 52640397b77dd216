"""What a search found, as data: the winner and its runners-up, and what each tunable does."""

from __future__ import annotations

from fusec.report import Timing
from fusec.timing.pace import Pace, against, median, pace, ratio
from fusec.tuning_report import Trial, TuningRun

MOST_RUNNERS = 6


def eager_title(run: TuningRun) -> str:
    """Return what a search's time of eager is called: that of its cell is of another run."""
    what = "the whole cell in eager," if run.eager_is_whole else "eager"
    return f"{what} in the search's own run"


def effects(run: TuningRun) -> list[tuple[str, list[tuple[int, Timing]]]]:
    """Return each tunable's effect: by value, the best time with it.

    Tunables of which one value alone was tried are left out. The one that matters most is first.
    """
    best: dict[str, dict[int, Timing]] = {}
    for trial in run.trials:
        if trial.timing is not None:
            for name, value in trial.values:
                known = best.setdefault(name, {})
                known[value] = min(known.get(value, trial.timing), trial.timing, key=median)
    found = [(name, sorted(values.items())) for name, values in best.items() if len(values) > 1]
    return sorted(found, key=lambda entry: -_spread(entry[1]))


def _spread(values: list[tuple[int, Timing]]) -> float:
    times = [median(time) for _, time in values]
    return max(times) / min(times) if min(times) > 0 else 1.0


def range_of(values: list[tuple[int, Timing]]) -> str:
    """Say how much longer the worst value's best time is than the best value's: ``1.30×``.

    Where the two are the same, or not told apart, it says that.
    """
    times = sorted((time for _, time in values), key=median)
    if pace(times[-1], times[0]) is Pace.SLOWER:
        return f"{ratio(median(times[-1]) / median(times[0]))}×"
    return against(times[-1], times[0])


def runners(run: TuningRun) -> list[tuple[int, Trial]]:
    """Return the winner, its runners-up, and where the search began, with their places in it."""
    timed = [(i, trial) for i, trial in enumerate(run.trials) if trial.timing is not None]
    timed.sort(key=lambda entry: (entry[0] != run.best, entry[1].timing.median))  # type: ignore[union-attr]
    first = [entry for entry in timed[MOST_RUNNERS:] if entry[0] == 0]
    return timed[:MOST_RUNNERS] + first


__all__ = ["MOST_RUNNERS", "eager_title", "effects", "range_of", "runners"]
