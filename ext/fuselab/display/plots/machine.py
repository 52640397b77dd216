"""Figures of a machine and its sizes: the roofline with every kernel, and times over a size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusec.report import Timing
from fuselab.display.noise import Pace, against, pace, ratio
from fuselab.display.plots.figures import EAGER, FUSED, KERNELS, SMALL, TEXT, blank, plain, unit_of
from fuselab.display.words import digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fusec.inspect.sweep import SweepPoint
    from fusec.timing.limits import MeasuredLimits

_MOST_POINTS = 8


@dataclass(frozen=True)
class RooflinePoint:
    """A kernel as the roofline shows it.

    Attributes:
        name: The kernel's.
        operations: Arithmetic operations of a launch.
        bytes: Read and written by a launch.
        seconds: A launch, alone.
    """

    name: str
    operations: int
    bytes: int
    seconds: float


def roofline_figure(points: Sequence[RooflinePoint], machine: MeasuredLimits) -> Figure:
    """Draw kernels under what the machine reached: copies from memory and cache, a product.

    Args:
        points: The kernels, the most important first; those that move nothing are left out. One
            without operations stands at the left edge, at its rate.
        machine: What the device reached.
    """
    figure = blank(3.0)
    axes = figure.subplots()
    usable = [p for p in points if p.bytes > 0 and p.seconds > 0]
    at = [p.operations / p.bytes for p in usable if p.operations > 0]
    ridge = machine.operations / machine.memory
    low = min([0.05, *(x / 2 for x in at)])
    high = max([4 * ridge, *(2 * x for x in at)])
    for rate, name, style in (
        (machine.cache, "copy in cache", ":"),
        (machine.memory, "copy through memory", "-"),
    ):
        bend = machine.operations / rate
        axes.plot(
            [low, bend], [low * rate / 1e9, machine.operations / 1e9],
            style, color="#555555", linewidth=1.3,
            label=f"{name}: {digits(rate / 1e9)} GB/s",
        )  # fmt: skip
    best = machine.operations / 1e9
    axes.plot(
        [machine.operations / max(machine.cache, machine.memory), high], [best, best],
        "--", color="#555555", linewidth=1.3, label=f"product of matrices: {digits(best)} Gop/s",
    )  # fmt: skip
    for index, point in enumerate(usable):
        rate = point.bytes / point.seconds
        named = index < _MOST_POINTS
        counted = point.operations > 0
        x = point.operations / point.bytes if counted else low
        axes.plot(
            x, x * rate / 1e9, "o" if counted else "<", markersize=7 if named else 5,
            color=KERNELS[index % len(KERNELS)] if named else "#b0b0b0", clip_on=False,
            markeredgecolor="white", zorder=4 if named else 3,
            label=f"{point.name}: {digits(rate / 1e9)} GB/s{'' if counted else ', only moves'}"
            if named else None,
        )  # fmt: skip
    if len(usable) > _MOST_POINTS:
        rest = f"{len(usable) - _MOST_POINTS} more, in the table"
        axes.plot([], [], "o", color="#b0b0b0", markersize=5, label=rest)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_xlabel("operations a byte of memory traffic")
    axes.set_ylabel("operations a second (Gop/s)")
    axes.legend(
        fontsize=SMALL - 1, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0),
        labelcolor=TEXT,
    )  # fmt: skip
    axes.grid(color="#e4e4e4", linewidth=0.6)
    plain(axes)
    return figure


def _beside(fused: Timing, eager: Timing) -> str:
    """Return what stands above a point: short where it is faster, which is what one looks for."""
    found = pace(fused, eager)
    if found is Pace.FASTER:
        return f"{ratio(eager.median / fused.median)}×"
    return "?" if found is Pace.UNSURE else against(fused, eager)


def sweep_figure(points: Sequence[SweepPoint], label: str) -> Figure:
    """Draw eager and fused over a size, with quartiles, both axes logarithmic.

    Args:
        points: In any order; at least one.
        label: Which size varies: ``x.size(0)``.
    """
    from matplotlib.ticker import NullFormatter, NullLocator

    figure = blank(2.8)
    axes = figure.subplots()
    ordered = sorted(points, key=lambda point: point.size)
    sizes = [point.size for point in ordered]
    scale, unit = unit_of(max((p.eager.median for p in ordered), default=1e-3))
    for name, color in (("eager", EAGER), ("fused", FUSED)):
        times: list[Timing] = [getattr(point, name) for point in ordered]
        medians = [t.median * scale for t in times]
        axes.plot(sizes, medians, "o-", color=color, markersize=4, linewidth=1.3, label=name)
        axes.fill_between(
            sizes, [t.low * scale for t in times], [t.high * scale for t in times],
            color=color, alpha=0.2, linewidth=0,
        )  # fmt: skip
    for point in ordered:
        # Between the two curves at the end of the range there is room for the ratio.
        axes.annotate(
            _beside(point.fused, point.eager),
            (point.size, max(point.eager.high, point.fused.high) * scale),
            xytext=(0, 4), textcoords="offset points", ha="center",
            fontsize=SMALL - 1, color=TEXT,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.08, y=0.18)
    axes.set_xlabel(f"{label} (elements)")
    axes.set_ylabel(f"time a call ({unit})")
    axes.legend(fontsize=SMALL, frameon=False, loc="best", labelcolor=TEXT)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    plain(axes)
    return figure
