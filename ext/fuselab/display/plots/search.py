"""A search over a kernel's tunables, drawn: every configuration's time, again and again.

While it runs the picture is drawn several times a second beside measurements. Most of that is the
axes: numbers, labels, a grid. So what is drawn on them is kept apart from them, and a picture whose
axes are still the same is drawn on a copy of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusec.report import Timing
from fusec.tuning_report import TuningRun
from fuselab.display import noise
from fuselab.display.plots import figures as plots
from fuselab.display.plots.figures import EAGER, EDITED, FAILED, FUSED, SMALL, TEXT
from fuselab.display.search_facts import eager_title
from fuselab.display.words import digits, duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT = 2.7  # inches
DPI = 110
MOST_RATIO = 20  # of times on a linear axis
FAR = 8  # times the slowest configuration: eager's line would press them all into one

STEPS = (1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9)  # where axes end

SURE = {"color": FUSED, "markersize": 4}
DOUBTFUL = {"color": FUSED, "markersize": 4, "markerfacecolor": "white"}
BEST = {"color": EDITED, "markersize": 6}

Spots = list[tuple[float, float, int]]


@dataclass(frozen=True)
class Ground:
    """The axes of a picture; two runs with the same can share them.

    Attributes:
        title: Above them.
        count: How many configurations there is room for.
        low: Where the times begin, in the unit.
        high: Where they end.
        scale: How many of the unit make a second.
        unit: Its name.
    """

    title: str
    count: int
    low: float
    high: float
    scale: float
    unit: str

    @property
    def logarithmic(self) -> bool:
        """Whether the times are too far apart for a linear axis."""
        return self.low > 0


def ground_of(run: TuningRun, title: str = "") -> Ground:
    """Return the axes that a run needs."""
    timings = [trial.timing for trial in run.trials if trial.timing is not None]
    slowest = _slowest(run)
    scale, unit = plots.unit_of(slowest)
    shown = [value for timing in timings for value in (timing.low, timing.median)]
    shown += [min(timing.high, plots.MOST_SPREAD * slowest) for timing in timings]
    if run.eager is not None and _fits(run, slowest):
        shown.append(run.eager.median)
    highest = max(shown, default=0.0) or 1.0 / scale
    lowest = min((timing.low for timing in timings), default=0.0)
    low, high = 0.0, 1.05 * highest
    if lowest > 0 and slowest / lowest > MOST_RATIO:
        room = (highest / min(shown)) ** 0.05
        low, high = min(shown) / room, highest * room
    else:
        high = _rounded(high * scale) / scale  # one that is a little slower changes no axes
    count = max(noise.total(run), 1)
    return Ground(title or run.kernel, count, low * scale, high * scale, scale, unit)


def _rounded(value: float) -> float:
    """Return a number with few digits that is not below ``value``, nor far above."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in STEPS if value <= step * power), 10.0 * power)


def tuning_figure(run: TuningRun, *, title: str = "") -> Figure:
    """Draw every configuration's median and quartiles, eager's line, and the best so far.

    Hollow is what looked faster than what is in use and was not confirmed, as the tables say.
    """
    ground = ground_of(run, title)
    figure = _axes_on(ground)
    _draw_run(figure.axes[0], run, ground)
    return figure


def tuning_spots(figure: Figure, run: TuningRun) -> Spots:
    """Return where each configuration's point is on a drawn ``tuning_figure``.

    Args:
        figure: After it was written: only then is it laid out.
        run: What it shows.

    Returns:
        x and y from 0 to 1, from the upper left, and the index into ``run.trials``.
    """
    axes = figure.axes[0]
    scale = ground_of(run).scale
    found = []
    for index, trial in enumerate(run.trials):
        if trial.timing is not None:
            x, y = axes.transData.transform((index + 1, trial.timing.median * scale))
            found.append((x / figure.bbox.width, 1 - y / figure.bbox.height, index))
    return found


class SearchPicture:
    """The picture of a search while it runs: ``tuning_figure``, its axes drawn once.

    Not for several threads at once.
    """

    def __init__(self) -> None:
        self._ground: Ground | None = None
        self._figure: Any = None
        self._canvas: Any = None
        self._empty: Any = None  # the drawn axes with nothing on them

    def draw(self, run: TuningRun) -> tuple[bytes, Spots]:
        """Return the run as PNG, and its points as ``tuning_spots`` has them."""
        ground = ground_of(run)
        if ground != self._ground:
            self._begin(ground)
        else:
            self._canvas.restore_region(self._empty)
        axes = self._figure.axes[0]
        marks = _draw_run(axes, run, ground)
        for mark in sorted(marks, key=lambda mark: float(mark.get_zorder())):
            axes.draw_artist(mark)
        axes.draw_artist(axes.xaxis.label)
        png = plots.encoded(self._canvas)
        spots = tuning_spots(self._figure, run)
        for mark in marks:
            mark.remove()
        axes.containers.clear()
        return png, spots

    def _begin(self, ground: Ground) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        figure = _axes_on(ground)
        figure.set_dpi(DPI)
        canvas = FigureCanvasAgg(figure)
        label = figure.axes[0].xaxis.label
        label.set_visible(False)  # it says how many configurations have run
        canvas.draw()
        label.set_visible(True)
        self._empty = canvas.copy_from_bbox(figure.bbox)
        self._ground, self._figure, self._canvas = ground, figure, canvas


def _axes_on(ground: Ground) -> Figure:
    """Return a figure with empty axes."""
    from matplotlib.ticker import MaxNLocator

    # Margins that are known, and a legend with a place of its own: nothing has to be laid out.
    figure = plots.blank(HEIGHT, layout=None)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.1, right=0.985, bottom=0.45 / HEIGHT, top=1 - 0.67 / HEIGHT)
    if ground.logarithmic:
        axes.set_yscale("log")
    axes.set_ylim(ground.low, ground.high)
    axes.set_xlim(0.3, ground.count + 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("configuration, in the order tried")
    axes.set_ylabel(f"time a call ({ground.unit})")
    axes.set_title(ground.title, fontsize=SMALL + 1, loc="left", color=TEXT, pad=29, y=1.0)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_autoscale_on(False)
    plots.plain(axes)
    return figure


def _draw_run(axes: Axes, run: TuningRun, ground: Ground) -> list[Any]:
    """Draw a run on its axes; return what was added to them."""
    from matplotlib.lines import Line2D

    scale, unit = ground.scale, ground.unit
    done = [(i, t.timing) for i, t in enumerate(run.trials, 1) if t.timing is not None]
    failed = [i for i, t in enumerate(run.trials, 1) if t.error]
    left_out = [i for i, t in enumerate(run.trials, 1) if t.timing is None and not t.error]
    winner = run.best + 1 if run.best is not None else 0
    doubtful = {index + 1 for index in noise.unconfirmed(run)}
    groups: list[tuple[list[tuple[int, Timing]], dict[str, Any]]] = [
        ([each for each in done if each[0] not in {winner, *doubtful}], SURE),
        ([each for each in done if each[0] in doubtful], DOUBTFUL),
        ([each for each in done if each[0] == winner], BEST),
    ]
    marks = [mark for some, look in groups for mark in _points(axes, some, scale, look)]
    told: list[Any] = []
    look: dict[str, Any]

    def tell(label: str, **look: Any) -> None:
        told.append(Line2D([], [], label=label, **look))

    best = run.trials[run.best].timing if run.best is not None else None
    if run.best is not None and best is not None:
        word = "in use" if run.stopped else "best so far"
        label = f"{word}: {run.trials[run.best]}"
        label += f", {digits(best.median * scale)} {unit}"
        tell(label, linestyle="", marker="o", **BEST)
    if doubtful:
        tell(noise.UNCONFIRMED, linestyle="", marker="o", **DOUBTFUL)
    if run.eager is not None:
        label = f"{eager_title(run)}: {duration(run.eager.median)}"
        if _fits(run, _slowest(run)):
            look = {"linestyle": "--", "color": EAGER, "linewidth": 1.2}
            marks.append(axes.axhline(run.eager.median * scale, **look))
            tell(label, **look)
        else:
            tell(f"{label}, off the top", linestyle="")
    top = _slowest(run) * scale or 1.0
    if failed:
        look = {"linestyle": "", "marker": "x", "color": FAILED, "markersize": 5}
        marks += axes.plot(failed, [top] * len(failed), **look)
        tell("failed", **look)
    if left_out:
        look = {"linestyle": "", "marker": "_", "color": EAGER, "markersize": 4}
        marks += axes.plot(left_out, [top] * len(left_out), **look)
        tell("left out: cannot win", **look)
    axes.set_xlabel(f"configuration, in the order tried ({noise.progress(run)})")
    if told:
        columns = (len(told) + 1) // 2  # two rows, the long ones in the first column
        legend = axes.legend(
            handles=told, fontsize=SMALL - 1, frameon=False, labelcolor=TEXT, ncols=columns,
            loc="lower left", bbox_to_anchor=(0.0, 1.0), borderpad=0.0, borderaxespad=0.3,
        )  # fmt: skip
        marks.append(legend)
    return marks


def _slowest(run: TuningRun) -> float:
    """Return the longest median, in seconds."""
    return max((t.timing.median for t in run.trials if t.timing is not None), default=0.0)


def _fits(run: TuningRun, slowest: float) -> bool:
    """Whether eager's line fits on the axes with the configurations."""
    return run.eager is not None and (not slowest or run.eager.median < FAR * slowest)


def _points(
    axes: Axes, done: Sequence[tuple[int, Timing]], scale: float, look: Mapping[str, Any]
) -> list[Any]:
    """Draw medians with their quartiles."""
    if not done:
        return []
    medians = [timing.median * scale for _, timing in done]
    low = [max(0.0, m - t.low * scale) for m, (_, t) in zip(medians, done, strict=True)]
    high = [max(0.0, t.high * scale - m) for m, (_, t) in zip(medians, done, strict=True)]
    drawn = axes.errorbar(
        [x for x, _ in done], medians, yerr=[low, high], fmt="o", elinewidth=1.0,
        capsize=2, zorder=3 if look is BEST else 2, **look,
    )  # fmt: skip
    return [part for part in drawn.get_children() if part is not None]
