"""From data to a picture in the panel: a Figure made by ``fuselab.plots``, written as PNG.

No pyplot: it keeps global state that callbacks on several threads corrupt.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from fusec.report import TuningRun

from .bench import PanelCell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 144  # sharp on a high-density screen; the layout below sets the size


class Plot:
    """An image that takes no room while it is empty."""

    def __init__(self, tooltip: str) -> None:
        self.image = widgets.Image(
            format="png",
            tooltip=tooltip,
            layout=widgets.Layout(width="100%", max_width="720px", display="none"),
        )
        self.image.add_class("fuselab-plot")

    @property
    def widget(self) -> Any:
        """What to place in a layout."""
        return self.image

    def show(self, png: bytes) -> None:
        """Show a picture."""
        self.image.value = png
        self.image.layout.display = ""

    def clear(self) -> None:
        """Show nothing."""
        self.image.layout.display = "none"


def png(figure: Figure) -> bytes:
    """Write a figure as PNG."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI)
    return data.getvalue()


def speed_png(cell: PanelCell) -> bytes:
    """Draw eager and fused."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 1.7), layout="constrained")
    axes = figure.subplots()
    bars = [(n, t) for n, t in (("fused", cell.fused), ("eager", cell.eager)) if t]
    for i, (_, timing) in enumerate(bars):
        ms = timing.milliseconds
        error = [[ms - timing.low * 1e3], [timing.high * 1e3 - ms]]
        axes.barh(i, ms, xerr=error, color="#4c78a8" if i == 0 else "#9a9a9a", capsize=3)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.set_xlabel("time per call (ms), median and quartiles")
    return png(figure)


def tuning_png(run: TuningRun) -> bytes:
    """Draw a search so far."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 2.6), layout="constrained")
    axes = figure.subplots()
    done = [(i + 1, t.timing) for i, t in enumerate(run.trials) if t.timing]
    axes.plot([i for i, _ in done], [t.milliseconds for _, t in done], "o", ms=4)
    if run.eager:
        axes.axhline(run.eager.milliseconds, color="#9a9a9a", ls="--", label="eager")
        axes.legend()
    axes.set_xlabel("configuration, in the order tried")
    axes.set_ylabel("time per call (ms)")
    return png(figure)
