"""What a search found: how far it is, the best and its runners-up, what each tunable does."""

from __future__ import annotations

from fusec.report import Trial, TuningRun
from fuselab.display import words

MOST_RUNNERS = 6


def time_left(run: TuningRun) -> float | None:
    """Return how long a search will still take, in seconds, at the most; None once it has ended.

    It ends with its budget, or when everything was tried at the pace so far.
    """
    if run.stopped or not run.trials:
        return None
    pace = run.seconds / len(run.trials)
    ends = [pace * max(run.total - len(run.trials), 0)]
    if run.budget > 0:
        ends.append(run.budget - run.seconds)
    return max(min(ends), 0.0)


def left_words(run: TuningRun) -> str:
    """Say it: ``about 6 s left``; empty once it has ended."""
    left = time_left(run)
    if left is None:
        return ""
    if len(run.trials) >= run.total or left == 0:
        return "settling on the best"
    if left < 1:
        return "less than 1\N{NO-BREAK SPACE}s left"
    return f"about {left:.0f}\N{NO-BREAK SPACE}s left"


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


def effect_rows(run: TuningRun) -> list[tuple[str, str, str]]:
    """Return each tunable's effect in words: its name, the best time with each value, the range."""
    rows = []
    for name, values in effects(run):
        least = min(time for _, time in values)
        text = ", ".join(f"{v}: {words.duration(t)}" + " ◂" * (t == least) for v, t in values)
        rows.append((name, text, f"{words.ratio(spread_of(values))}×"))
    return rows


def runners(run: TuningRun) -> list[tuple[int, Trial]]:
    """Return the winner, its runners-up, and where the search began, with their places in it."""
    timed = [(i, trial) for i, trial in enumerate(run.trials) if trial.timing is not None]
    timed.sort(key=lambda entry: (entry[0] != run.best, entry[1].timing.median))  # type: ignore[union-attr]
    first = [entry for entry in timed[MOST_RUNNERS:] if entry[0] == 0]
    return timed[:MOST_RUNNERS] + first
