"""What a search found, drawn: the runners-up with their quartiles, and each tunable's effect."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from fusec.tuning_report import TuningRun
from fuselab.display.noise import UNCONFIRMED, unconfirmed
from fuselab.display.plots import figures as plots
from fuselab.display.search_facts import effects, runners

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_EFFECTS = 4
LONGEST_NAME = 40  # characters of a line


def outcome_figure(run: TuningRun) -> Figure | None:
    """Draw the winner beside its runners-up, and below it the best time with each tunable's values.

    Args:
        run: A search that has ended.

    Returns:
        None where fewer than two configurations ran.
    """
    best = [(index, trial) for index, trial in runners(run) if trial.timing is not None]
    if len(best) < 2:
        return None
    shown = effects(run)[:MOST_EFFECTS]
    used = dict(run.winner.values) if run.winner is not None else {}
    doubtful = unconfirmed(run)
    rows = []
    for index, trial in best:
        assert trial.timing is not None
        word = ", in use" if run.stopped else ", best so far"
        marks = word * (index == run.best) + ", at the start" * (index == 0)
        marks += f", {UNCONFIRMED}" * (index in doubtful)
        color = plots.EDITED if index == run.best else plots.FUSED
        # A long name and what stands beside its bar are wider than the figure.
        name = textwrap.fill(f"{trial}{marks}", LONGEST_NAME, break_on_hyphens=False)
        rows.append((name, trial.timing, color))
    high = max(0.3, 0.17 * max(name.count("\n") + 1 for name, _, _ in rows))
    heights = [0.9 + high * len(best)] + ([1.7] if shown else [])
    figure = plots.blank(sum(heights))
    upper, *rest = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    axes = upper.subplots()
    plots.bars(axes, rows, reference=rows[0][1], room=1.7)
    if shown:
        scale, unit = plots.unit_of(max(time.median for _, values in shown for _, time in values))
        panes = rest[0].subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for pane, (name, values) in zip(panes, shown, strict=True):
            times = [time.median * scale for _, time in values]
            pane.plot(
                range(len(times)), times, "o-", color=plots.FUSED, markersize=4, linewidth=1.2
            )
            mine = [place for place, (value, _) in enumerate(values) if value == used.get(name)]
            at = [times[place] for place in mine]
            pane.plot(mine, at, "o", color=plots.EDITED, markersize=6)
            pane.set_xticks(range(len(times)), [str(value) for value, _ in values])
            pane.set_xlabel(name)
            pane.margins(x=0.15)
            pane.grid(axis="y", color="#e4e4e4", linewidth=0.6)
            plots.plain(pane)
        panes[0].set_ylabel(f"best time with it ({unit})")
        highest = max(time.median for _, values in shown for _, time in values)
        panes[0].set_ylim(0.0, 1.15 * highest * scale)
    return figure
