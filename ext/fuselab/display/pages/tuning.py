"""What a search found: how far it is, the best and its runners-up, what each tunable does."""

from __future__ import annotations

from fusec.report import Timing
from fusec.tuning_report import TuningRun
from fuselab.display import noise, words
from fuselab.display.search_facts import eager_title, effects, range_of


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


def eager_words(run: TuningRun) -> str:
    """Say what the search measured of eager; empty where it did not."""
    return f"{eager_title(run)}: {words.spread(run.eager)}" if run.eager else ""


def eager_note(run: TuningRun, eager: Timing | None) -> str:
    """Say that eager was measured again, where the cell's own time of it is shown beside.

    Empty where the two read the same.
    """
    if run.eager is None or eager is None:
        return ""
    own, other = words.duration(run.eager.median), words.duration(eager.median)
    if own == other:
        return ""
    return f"{eager_title(run)}: {own}; the cell's {other} is of another run"


def effect_rows(run: TuningRun) -> list[tuple[str, str, str]]:
    """Return each tunable's effect in words: its name, the best time with each value, the range.

    Marked is the value that is in use.
    """
    rows = []
    place = noise.in_use(run)
    used = dict(run.trials[place].values) if place is not None else {}
    for name, values in effects(run):
        text = ", ".join(
            f"{v}: {words.duration(t.median)}" + " ◂" * (v == used.get(name)) for v, t in values
        )
        rows.append((name, text, range_of(values)))
    return rows
