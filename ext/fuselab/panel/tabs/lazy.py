"""A tab whose widgets are made when somebody first opens it.

Every widget costs a message to the page and room in the saved notebook, so a panel that nobody
opens further holds none of them.
"""

from __future__ import annotations

from typing import Any

from fuselab.panel.context import Bench
from fuselab.panel.widgets import markup, plain


class LazyTab:
    """Base of the tabs that are filled late.

    A tab says its ``title`` and writes ``make`` (its widgets, on the caller's thread), ``draw``
    (fills them; on the worker, without the bench's state held) and, where it has to, ``refresh``.
    Its class stands in ``TABS``, in ``tabs/__init__.py``.

    Attributes:
        title: What the panel writes on it.
        prebuilt: Whether it is filled before anybody opens it, while nobody needs the worker;
            otherwise it is only made, because what it shows takes long and comes second.
        drawn_locked: Whether the cell's lock is held while it is drawn; one that may compile
            takes it itself, for as long as it needs it.
    """

    title = ""
    prebuilt = True
    drawn_locked = True

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.made = False
        self.opened = False  # by a person
        self.widget = plain.column()
        bench.listen(self._refresh)

    def open(self) -> None:
        """Make the widgets, at the first time."""
        with self._bench.state:
            if not self.made:
                made = self.make()
                self.made = True
                self.refresh()
                self.widget.children = made

    def forget(self) -> None:
        """Let go of widgets that nobody has opened; on the worker."""
        with self._bench.state:
            if not self.made or self.opened:
                return
            children, self.widget.children = self.widget.children, ()
            self.made = False
            for child in children:
                for widget in plain.below(child):
                    widget.close()

    def make(self) -> list[Any]:
        """Return the widgets of the tab."""
        raise NotImplementedError

    def draw(self) -> None:
        """Show what is now the case, where that is not shown yet; on the worker."""

    def draw_if_made(self) -> None:
        """Draw, if there is anything to draw on; never beside a measurement."""
        if not self.made:
            return
        if not self.drawn_locked:
            self.draw()
            return
        with self._bench.cell.lock:
            self.draw()

    def close(self) -> None:
        """Stop what it started, when the panel is closed."""

    def refresh(self) -> None:
        """Show what changed in the panel; with the state held."""

    def _refresh(self) -> None:
        if self.made:
            self.refresh()


def problem_or(bench: Bench, value: str) -> str:
    """Return the latest job's failure as a notice, or else ``value``."""
    if bench.activity:
        return markup.notice([bench.doing], markup.QUIET)
    if bench.problem:
        message, details = bench.problem
        return markup.notice(["That did not work", message], markup.BAD, details)
    return value
