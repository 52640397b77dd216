"""Data to matplotlib figures: pure functions, no pyplot, no global state.

White background and dark text whatever the notebook's theme; every axis says its unit.
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fusec.report import Timing
from fusec.tuning_report import TuningRun
from fuselab.display.noise import against
from fuselab.display.words import digits, duration
from fuselab.display.words import shares as percents

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure


EAGER = "#8a8a8a"
FUSED = "#2f6db5"
EDITED = "#c8641b"
FAILED = "#c0392b"
PEER = "#7a5ea8"
TEXT = "#1a1a1a"
# A palette for kernels that stays apart in gray and for color-blind readers (Okabe and Ito).
KERNELS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a400", "#666666")
SMALL = 8
MOST_SHARES = 7
SHARES = "share of the kernels' time, each alone (%)"
# A quartile further out than so many of the longest medians, of a disturbed run, is drawn up to
# there: it would press all else together. The tables have it.
MOST_SPREAD = 2.0
COLORS = 64  # of a picture: enough for smooth edges of text and bars
MOST_LAYOUTS = 4  # of a figure whose words reach past its edge


def speed_figure(
    eager: Timing | None,
    fused: Timing | None,
    kernels: Mapping[str, Timing] | None = None,
    *,
    title: str = "",
    others: Mapping[str, Timing] | None = None,
) -> Figure:
    """Draw eager against fused, with quartiles, and each kernel's share of the time.

    Args:
        eager: The whole cell in eager.
        fused: The whole cell as compiled.
        kernels: Each kernel alone; shares are drawn of two or more.
        title: Above the bars; the cell's name.
        others: More bars, such as ``{"inductor": timing}``.
    """
    wanted = [("eager", eager, EAGER), *((n, t, PEER) for n, t in (others or {}).items())]
    wanted.append(("fused", fused, FUSED))
    present = [(name, timing, color) for name, timing, color in wanted if timing is not None]
    if kernels and len(kernels) == 1:
        kernels = None  # all of it is its share
    rows = share_rows(kernels) if kernels else 0
    figure = blank(0.9 + 0.34 * len(present) + (0.6 + 0.17 * rows if kernels else 0.0))
    if kernels:
        heights = [len(present) + 0.6, 1.0]
        axes, below = figure.subplots(2, 1, height_ratios=heights)
        shares(below, kernels)
    else:
        axes = figure.subplots()
    bars(axes, present, reference=eager)
    axes.set_title(title, fontsize=SMALL + 1, loc="left", color=TEXT)
    return figure


def edit_figure(verdict_times: Sequence[tuple[str, Timing | None]], *, title: str = "") -> Figure:
    """Draw an edited kernel beside the generated one: ``[("generated", t), ("edited", t)]``."""
    colors = {"generated": FUSED, "eager": EAGER}
    present = [(n, t, colors.get(n, EDITED)) for n, t in verdict_times if t is not None]
    figure = blank(0.9 + 0.34 * len(present))
    axes = figure.subplots()
    bars(axes, present, reference=present[0][1] if present else None)
    axes.set_title(title, fontsize=SMALL + 1, loc="left", color=TEXT)
    return figure


def attempts_figure(times: Sequence[tuple[str, Timing, Timing]], *, title: str = "") -> Figure:
    """Draw texts beside the generated one, each as its share of the time that that took beside it.

    Args:
        times: A name, its time, and the generated text's in the same run.
        title: Above it.
    """
    figure = blank(0.9 + 0.34 * len(times))
    axes = figure.subplots()
    relative_bars(axes, times)
    axes.set_title(title, fontsize=SMALL + 1, loc="left", color=TEXT)
    return figure


def relative_bars(axes: Axes, times: Sequence[tuple[str, Timing, Timing]]) -> None:
    """Draw times as bars whose unit is another time of the same run, with quartiles.

    Args:
        axes: Where.
        times: Name, time, what it is compared with.
    """
    shares = [(own, base, 1 / base.median if base.median > 0 else 0.0) for _, own, base in times]
    most = MOST_SPREAD * max((own.median * unit for own, _, unit in shares), default=1.0)
    ends = []
    for row, (own, base, unit) in enumerate(shares):
        middle, low, high = own.median * unit, own.low * unit, min(own.high * unit, most)
        spread = [[max(0.0, middle - low)], [max(0.0, high - middle)]]
        axes.barh(
            row, middle, height=0.62, color=EDITED, xerr=spread, ecolor="#222222", capsize=2.5
        )
        goes_on(axes, row, own.high * unit > most, most)
        ends.append(max(middle, high))
        axes.annotate(
            f"{digits(middle)}  {against(own, base)}",
            (ends[-1], row), xytext=(5, 0), textcoords="offset points", va="center",
            fontsize=SMALL, color=TEXT,
            bbox={"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    axes.axvline(1.0, color="#1a1a1a", linestyle=":", linewidth=1.3)
    axes.set_yticks(range(len(times)), [name for name, _, _ in times])
    axes.invert_yaxis()
    axes.set_xlim(0, max([1.0, *ends]) * 1.6)
    axes.set_xlabel("share of the time of the generated text: median, quartiles")
    plain(axes)


def goes_on(axes: Axes, row: int, longer: bool, end: float) -> None:
    """Draw an arrow where a quartile lies further out than its line is drawn."""
    if longer:
        axes.plot(end, row, marker=">", markersize=5, color="#222222", clip_on=False)


def heat_axes(run: TuningRun) -> tuple[str, str] | None:
    """Return the two tunables of which most values were tried; None where fewer than two vary."""
    tried: dict[str, set[int]] = {}
    for trial in run.trials:
        for name, value in trial.values:
            tried.setdefault(name, set()).add(value)
    varied = sorted((n for n in tried if len(tried[n]) > 1), key=lambda n: -len(tried[n]))
    return (varied[0], varied[1]) if len(varied) > 1 else None


def heat_figure(run: TuningRun) -> Figure | None:
    """Draw the best time for each pair of values of two tunables; None where fewer vary.

    What other tunables there are take the value that was best with the pair.
    """
    names = heat_axes(run)
    if names is None:
        return None
    best: dict[tuple[int, int], float] = {}
    for trial in run.trials:
        values = dict(trial.values)
        if trial.timing is not None and names[0] in values and names[1] in values:
            key = values[names[0]], values[names[1]]
            best[key] = min(best.get(key, math.inf), trial.timing.median)
    columns = sorted({key[0] for key in best})
    rows = sorted({key[1] for key in best})
    if not best:
        return None
    scale, unit = unit_of(max(best.values()))
    grid = [[best.get((column, row), math.nan) * scale for column in columns] for row in rows]
    figure = blank(1.0 + 0.34 * len(rows))
    axes = figure.subplots()
    shown = axes.imshow(grid, cmap="viridis_r", aspect="auto", origin="lower")
    low, high = min(best.values()) * scale, max(best.values()) * scale
    for y, row in enumerate(grid):
        for x, value in enumerate(row):
            if not math.isnan(value):
                dark = value > (low + high) / 2
                axes.text(
                    x, y, digits(value), ha="center", va="center", fontsize=SMALL,
                    color="white" if dark else TEXT,
                )  # fmt: skip
    axes.set_xticks(range(len(columns)), [str(value) for value in columns])
    axes.set_yticks(range(len(rows)), [str(value) for value in rows])
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    bar = figure.colorbar(shown, ax=axes)
    bar.set_label(f"best time a call ({unit})", fontsize=SMALL, color=TEXT)
    bar.ax.tick_params(labelsize=SMALL, colors=TEXT)
    plain(axes)
    return figure


def heat_spots(figure: Figure, run: TuningRun) -> list[tuple[float, float, int]]:
    """Return where each square is on a drawn ``heat_figure``, and the trial whose time it shows.

    Args:
        figure: After it was written: only then is it laid out.
        run: What it shows.

    Returns:
        x and y from 0 to 1, from the upper left, and the index into ``run.trials``.
    """
    names = heat_axes(run)
    best: dict[tuple[int, int], tuple[float, int]] = {}
    for index, trial in enumerate(run.trials):
        values = dict(trial.values)
        if names and trial.timing is not None and set(names) <= values.keys():
            key = values[names[0]], values[names[1]]
            best[key] = min(best.get(key, (math.inf, index)), (trial.timing.median, index))
    columns, rows = (sorted({key[n] for key in best}) for n in (0, 1))
    axes = figure.axes[0]
    found = []
    for (column, row), (_, index) in sorted(best.items()):
        x, y = axes.transData.transform((columns.index(column), rows.index(row)))
        found.append((x / figure.bbox.width, 1 - y / figure.bbox.height, index))
    return found


def figure_png(figure: Figure, dpi: int = 110) -> bytes:
    """Write a figure as PNG with a palette, a third of its size: notebooks keep every picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for _ in range(MOST_LAYOUTS):
        if not _is_cut(figure):
            break
        canvas.draw()
    return encoded(canvas)


def _is_cut(figure: Figure) -> bool:
    """Whether words reach past the right edge.

    The constrained layout makes room for words beside a bar by narrower axes, and then the bar
    ends further left by less than that: each layout takes away a part of what is still missing.
    """
    return bool(figure.get_tightbbox().x1 > figure.get_figwidth())


def encoded(canvas: FigureCanvasAgg) -> bytes:
    """Write what is drawn on a canvas as PNG with a palette."""
    import numpy as np
    from PIL import Image  # matplotlib's own requirement

    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    ground: Any = image.getpixel((0, 0))
    image = image.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    # The quick way mixes the ground with its neighbors: white becomes a gray that shows.
    palette = image.getpalette() or []
    place: Any = image.getpixel((0, 0))
    first = 3 * place
    palette[first : first + 3] = ground
    image.putpalette(palette)
    data = io.BytesIO()
    image.save(data, format="png")
    return data.getvalue()


def prepare() -> None:
    """Draw something that nobody sees: the first figure imports matplotlib and finds its fonts."""
    timing = Timing(1e-3, 1e-3, 1e-3, 1, "")
    figure_png(speed_figure(timing, timing, title="prepare"))


def blank(height: float, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """Return an empty figure, so many inches high."""
    from matplotlib.figure import Figure

    return Figure(figsize=(6.4, height), layout=layout, facecolor="white")


def unit_of(seconds: float) -> tuple[float, str]:
    """Return the unit in which times up to this one are drawn, and how many make a second."""
    if seconds >= 1.0:
        return 1.0, "s"
    return (1e3, "ms") if seconds >= 1e-4 else (1e6, "µs")


def bars(
    axes: Axes,
    times: Sequence[tuple[str, Timing, str]],
    *,
    reference: Timing | None,
    room: float = 1.32,
) -> None:
    """Draw times as bars with quartiles.

    Args:
        axes: Where.
        times: Name, time, color.
        reference: What the others are compared with, in words beside their bars.
        room: How much wider than the longest bar it is, for those words.
    """
    most = MOST_SPREAD * max((timing.median for _, timing, _ in times), default=1.0)
    longest = max((min(timing.high, most) for _, timing, _ in times), default=1.0)
    scale, unit = unit_of(longest)
    for row, (_, timing, color) in enumerate(times):
        median = timing.median * scale
        spread = [
            [max(0.0, median - timing.low * scale)],
            [max(0.0, min(timing.high, longest) * scale - median)],
        ]
        axes.barh(row, median, height=0.62, color=color, xerr=spread, ecolor="#222222", capsize=2.5)
        goes_on(axes, row, timing.high > longest, longest * scale)
        text = duration(timing.median)  # as the text beside the figure says it
        if reference is not None and timing is not reference:
            text += f"  {against(timing, reference)}"
        axes.annotate(
            text,
            (max(median, min(timing.high, longest) * scale), row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
            color=TEXT,
            # The line of a limit goes below the words.
            bbox={"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 0.5},
        )
    axes.set_yticks(range(len(times)), [name for name, _, _ in times])
    axes.invert_yaxis()
    axes.set_xlim(0, longest * scale * room or 1.0)
    axes.set_xlabel(f"time a call ({unit}): median, quartiles")
    plain(axes)


def share_rows(kernels: Collection[str]) -> int:
    """Return how many lines the names of ``shares`` take."""
    return -(-min(len(kernels), MOST_SHARES + 1) // _columns(kernels))


def _columns(names: Collection[str]) -> int:
    """Return how many columns of names fit into the width of a figure's axes."""
    longest = max((len(name) for name in names), default=0) + len(": 100%")
    return max(1, min(3, int(4.4 / (0.4 + 0.058 * longest))))  # inches


def shares(axes: Axes, kernels: Mapping[str, Timing], label: str = SHARES) -> None:
    """Draw the share of each as one bar in pieces.

    Args:
        axes: Where.
        kernels: Kernels, or steps, by name.
        label: Of what the shares are.
    """
    ordered = sorted(kernels.items(), key=lambda item: -item[1].median)
    shown = [(name, timing.median) for name, timing in ordered[:MOST_SHARES]]
    rest = math.fsum(timing.median for _, timing in ordered[MOST_SHARES:])
    if rest:
        shown.append((f"{len(ordered) - MOST_SHARES} more", rest))
    total = math.fsum(value for _, value in shown) or 1.0
    left = 0.0
    said = percents([value for _, value in shown])
    for index, (name, value) in enumerate(shown):
        share = 100 * value / total
        color = KERNELS[index % len(KERNELS)]
        text = f"{name}: {said[index]}"
        axes.barh(0, share, left=left, height=0.6, color=color, label=text, edgecolor="white")
        left += share
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlim(0, 100)
    axes.set_xlabel(label)
    axes.legend(
        fontsize=SMALL - 1,
        frameon=False,
        ncols=_columns([name for name, _ in shown]),
        loc="lower left",
        bbox_to_anchor=(0.0, 0.95),
        labelcolor=TEXT,
    )
    plain(axes)


def plain(axes: Axes) -> None:
    """Take away what axes do not need, and say every color."""
    # Every color is said: a notebook's dark style must not put white text on white.
    axes.set_facecolor("white")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#555555")
    axes.tick_params(labelsize=SMALL, colors=TEXT)
    for axis in (axes.xaxis, axes.yaxis):
        _plain_numbers(axis)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(SMALL)
        label.set_color(TEXT)


def _plain_numbers(axis: Axis) -> None:
    """Write the numbers of a logarithmic axis as they are; powers of ten are slow to set."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    if axis.get_scale() != "log" or isinstance(axis.get_major_locator(), FixedLocator):
        return
    low, high = axis.get_view_interval()
    wide = low > 0 and high / low > 1e3
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
