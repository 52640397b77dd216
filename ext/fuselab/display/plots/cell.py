"""The figure of the Timings tab: the cell beside its peers and limit, edits, and its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fusec.report import Timing
from fuselab.display.plots import figures as plots
from fuselab.display.words import duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_EDITS = 4
STEPS = "share of the steps' time, each alone (%)"


def cell_figure(
    eager: Timing | None,
    fused: Timing | None,
    *,
    others: Mapping[str, Timing] | None = None,
    limit: float | None = None,
    edits: Sequence[tuple[str, Timing, Timing]] = (),
    steps: Mapping[str, Timing] | None = None,
    calls: bool = False,
) -> Figure:
    """Draw a cell's times, its edited kernels beside the generated ones, and its steps' shares.

    Args:
        eager: The whole cell in eager.
        fused: The whole cell as compiled.
        others: More bars between the two, by name.
        limit: How fast it could be, in seconds: a line across the bars.
        edits: A kernel's name, its generated text's time and its edit's, in a run of their own:
            drawn as ratios, for those times are none of this cell's.
        steps: Every step alone; shares are drawn of two or more.
        calls: Whether calls of ATen are among them, not kernels alone.
    """
    bars = [("eager", eager, plots.EAGER)]
    bars += [(name, timing, plots.PEER) for name, timing in (others or {}).items()]
    bars.append(("fused", fused, plots.FUSED))
    cell = [(name, timing, color) for name, timing, color in bars if timing is not None]
    changed = [(f"{name}, edit", own, generated) for name, generated, own in edits[:MOST_EDITS]]
    shown = dict(steps or {}) if len(steps or {}) > 1 else {}
    legend = plots.share_rows(shown)
    heights = [len(cell) + 1.4]
    heights += [len(changed) + 1.4] if changed else []
    heights += [2.6 + 0.5 * legend] if shown else []
    figure = plots.blank(0.34 * sum(heights))
    panes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    plots.bars(panes[0], cell, reference=eager)
    if limit is not None and cell:
        _limit(panes[0], limit, max(timing.high for _, timing, _ in cell))
    if changed:
        plots.relative_bars(panes[1], changed)
    if shown:
        plots.shares(panes[-1], shown, STEPS if calls else plots.SHARES)
    return figure


def _limit(axes: Axes, seconds: float, longest: float) -> None:
    scale, _ = plots.unit_of(longest)
    text = f"limit {duration(seconds)}"
    axes.axvline(seconds * scale, color="#1a1a1a", linestyle=":", linewidth=1.3)
    axes.annotate(
        text, (seconds * scale, 1.0), xycoords=("data", "axes fraction"), xytext=(3, 1),
        textcoords="offset points", ha="left", va="bottom", fontsize=8, color="#1a1a1a",
    )  # fmt: skip
