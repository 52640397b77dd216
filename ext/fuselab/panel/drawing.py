"""Figures of ``fuselab.plots`` in the panel, as PNG.

No pyplot: it keeps global state that callbacks on several threads corrupt.
"""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from fusec.report import TuningRun
from fuselab import plots, words
from fuselab.plots_cell import cell_figure
from fuselab.views.timings import edits_of, peer_title, steps_of

from .bench import Facts
from .picture import Spot


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


def speed_png(facts: Facts) -> bytes:
    """Draw the cell beside its peers and its limit, its edits, and each step's share."""
    figure = cell_figure(
        facts.eager,
        facts.fused,
        others={peer_title(name): timing for name, timing in facts.others.items()},
        limit=facts.limit,
        edits=edits_of(facts.kernels),
        steps=steps_of(facts),
    )
    return plots.figure_png(figure)


def tuning_png(run: TuningRun) -> tuple[bytes, list[Spot]]:
    """Draw a search so far; return the picture and its points as places to pick."""
    figure = plots.tuning_figure(run)
    png = plots.figure_png(figure)
    return png, [
        (round(x, 4), round(y, 4), f"trial:{index}", trial_words(run, index))
        for x, y, index in plots.tuning_spots(figure, run)
    ]


def heat_png(run: TuningRun) -> bytes:
    """Draw the best time by two tunables; empty where fewer than two vary."""
    figure = plots.heat_figure(run)
    return plots.figure_png(figure) if figure is not None else b""


def trial_words(run: TuningRun, index: int) -> str:
    """Say what a point of a search is."""
    trial = run.trials[index]
    assert trial.timing is not None
    return f"{plots.config_text(trial.values)}: {words.spread(trial.timing)}; pick to use it"
