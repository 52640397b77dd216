"""Figures of ``fuselab.display.plots.figures`` in the panel, as PNG.

No pyplot: it keeps global state that callbacks on several threads corrupt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusec.tuning_report import TuningRun
from fuselab.display import noise, words
from fuselab.display.pages.timings import edits_of, steps_of
from fuselab.display.plots import figures as plots
from fuselab.display.plots.cell import cell_figure
from fuselab.display.plots.search import SearchPicture
from fuselab.display.plots.tuning import outcome_figure
from fuselab.panel.context import CellFacts
from fuselab.panel.widgets import plain
from fuselab.panel.widgets.picture import Picture, Spot

OnPick = Callable[[str], None]


class Plot:
    """A figure, made when there is one to show, and no room taken until then."""

    def __init__(self, label: str = "A figure; the table beside it says the same") -> None:
        """Make an empty place.

        Args:
            label: What it shows, for screen readers; the figures are in a table beside it.
        """
        self._label = label
        self.picture: Picture | None = None
        self.widget = plain.box(shown=False)

    @property
    def png(self) -> bytes:
        """What is shown, or was shown last; empty where nothing ever was."""
        return bytes(self.picture.image) if self.picture is not None else b""

    def show(self, png: bytes, spots: Sequence[Spot] = (), on_pick: OnPick | None = None) -> None:
        """Show a figure.

        Args:
            png: The picture.
            spots: Places on it to pick.
            on_pick: Called with the key of what was picked; taken at the first time.
        """
        if self.picture is None:
            self.picture = Picture(on_pick)
            self.widget.children = [self.picture]
        self.picture.show(png, self._label, spots)
        plain.show(self.widget)

    def clear(self) -> None:
        """Show nothing."""
        plain.show(self.widget, False)


def preload() -> None:
    """Load matplotlib now: the first figure must not hold up a search that has begun."""
    import matplotlib.figure  # noqa: F401


def speed_png(facts: CellFacts) -> bytes:
    """Draw the cell beside its peers and its limit, its edits, and each step's share."""
    figure = cell_figure(
        facts.eager,
        facts.fused,
        others={words.peer_title(name): timing for name, timing in facts.others.items()},
        limit=facts.limit,
        edits=edits_of(facts.kernels),
        steps=steps_of(facts),
        calls=bool(facts.extern_times),
    )
    return plots.figure_png(figure)


def tuning_png(run: TuningRun, picture: SearchPicture) -> tuple[bytes, list[Spot]]:
    """Draw a search so far; return the picture and its points as places to pick.

    Args:
        run: The search.
        picture: Where it was drawn before.
    """
    png, spots = picture.draw(run)
    return png, [
        (round(x, 4), round(y, 4), f"trial:{index}", trial_words(run, index))
        for x, y, index in spots
    ]


def heat_png(run: TuningRun) -> tuple[bytes, list[Spot]]:
    """Draw the best time by two tunables, its squares to pick; nothing where fewer vary."""
    figure = plots.heat_figure(run)
    if figure is None:
        return b"", []
    png = plots.figure_png(figure)
    return png, [
        (round(x, 4), round(y, 4), f"trial:{index}", trial_words(run, index))
        for x, y, index in plots.heat_spots(figure, run)
    ]


def outcome_png(run: TuningRun) -> bytes:
    """Draw the runners-up and each tunable's effect; empty where there is nothing to compare."""
    figure = outcome_figure(run)
    return plots.figure_png(figure) if figure is not None else b""


def trial_words(run: TuningRun, index: int) -> str:
    """Say what a point of a search is, as its row of the table does."""
    trial = run.trials[index]
    assert trial.timing is not None
    remark = f" ({noise.UNCONFIRMED})" if index in noise.unconfirmed(run) else ""
    return f"{trial}{remark}: {words.spread(trial.timing)}; pick to use it"
