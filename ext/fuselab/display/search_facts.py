"""What a search found, as data: the winner and its runners-up, and what each tunable does."""

from __future__ import annotations

from fusec.tuning_report import Trial, TuningRun

MOST_RUNNERS = 6


def effects(run: TuningRun) -> list[tuple[str, list[tuple[int, float]]]]:
    """Return each tunable's effect: by value, the best time with it, in seconds.

    Tunables of which one value alone was tried are left out. The one that matters most is first.
    """
    best: dict[str, dict[int, float]] = {}
    for trial in run.trials:
        if trial.timing is not None:
            for name, value in trial.values:
                known = best.setdefault(name, {})
                known[value] = min(known.get(value, trial.timing.median), trial.timing.median)
    found = [(name, sorted(values.items())) for name, values in best.items() if len(values) > 1]
    return sorted(found, key=lambda entry: -spread_of(entry[1]))


def spread_of(values: list[tuple[int, float]]) -> float:
    """Return how many times longer the worst value's best time is than the best value's."""
    times = [time for _, time in values]
    return max(times) / min(times) if min(times) > 0 else 1.0


def runners(run: TuningRun) -> list[tuple[int, Trial]]:
    """Return the winner, its runners-up, and where the search began, with their places in it."""
    timed = [(i, trial) for i, trial in enumerate(run.trials) if trial.timing is not None]
    timed.sort(key=lambda entry: (entry[0] != run.best, entry[1].timing.median))  # type: ignore[union-attr]
    first = [entry for entry in timed[MOST_RUNNERS:] if entry[0] == 0]
    return timed[:MOST_RUNNERS] + first


__all__ = ["MOST_RUNNERS", "effects", "runners", "spread_of"]
