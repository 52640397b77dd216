"""Figures of ``fuselab.plots`` in the panel, as PNG.

No pyplot: it keeps global state that callbacks on several threads corrupt.
"""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from fusec.report import TuningRun
from fuselab import plots

from .bench import PanelCell


class Plot:
    """An image that takes no room while it is empty.

    The table beside it says the same in text: an Image has no alternative text, and JupyterLab
    cannot show one that has a tooltip.
    """

    def __init__(self) -> None:
        self.image = widgets.Image(
            format="png",
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


def preload() -> None:
    """Load matplotlib now: the first figure must not hold up a search that has begun."""
    import matplotlib.figure  # noqa: F401


def speed_png(cell: PanelCell) -> bytes:
    """Draw eager and fused, and the kernels' shares where all were timed alone."""
    timings = {
        name: kernel.last_verdict.timing
        for name, kernel in cell.kernels.items()
        if kernel.last_verdict and kernel.last_verdict.timing
    }
    complete = timings if len(timings) == len(cell.kernels) > 1 else None
    return plots.figure_png(plots.speed_figure(cell.eager, cell.fused, complete))


def tuning_png(run: TuningRun) -> bytes:
    """Draw a search so far."""
    return plots.figure_png(plots.tuning_figure(run))
