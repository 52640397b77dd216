"""Below the verdict of the Kernels tab: what was tried, drawn, and what differs from generated."""

from __future__ import annotations

from typing import Any

from fusec.target_api.registry import find_target
from fuselab.display.pages.stages import side_by_side
from fuselab.display.plots import figures as plots
from fuselab.panel.attempts import bars
from fuselab.panel.context import Bench, Checked
from fuselab.panel.tabs.lazy import LazyTab
from fuselab.panel.widgets import plain
from fuselab.panel.widgets.code import diff_listing
from fuselab.panel.widgets.drawing import Plot
from fuselab.panel.widgets.picture import Picture


class More(LazyTab):
    """The history of a kernel in this panel, its times as bars, and a diff."""

    title = "More"

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._filling = False
        self._drawn: object = None
        self._compared: object = None

    def make(self) -> list[Any]:
        """Return the history, the switch of the diff, the bars and the diff."""
        self.history = plain.choice("History", "28em", options=[("nothing tried yet", 0)])
        self.history.observe(self._choose, "value")
        self.changes = plain.switch("show what differs from the generated text")
        self.changes.observe(lambda _: self._switched(), "value")
        self.plot = Plot(
            "How the texts tried compare with the generated one, as bars; the list above says it"
        )
        self.place = plain.box(shown=False)
        return [
            plain.row([self.history, self.changes], grid_gap="0 12px"),
            self.plot.widget,
            self.place,
        ]

    def _choose(self, change: dict[str, Any]) -> None:
        """Take a text of the history into the editor; nothing is put in use."""
        bench = self._bench
        with bench.state:
            tried = bench.attempts.get(bench.selected, [])
            found = next((each for each in tried if each.number == change["new"]), None)
            if self._filling or found is None:
                return
            bench.set_draft(bench.selected, found.text)
            bench.checked[bench.selected] = Checked(found.text, found.verdict)
            bench.say(f"{found.label} is in the editor")
            bench.changed()

    def _switched(self) -> None:
        with self._bench.state:
            if self.changes.value and not self.place.children:
                self.picture = Picture(kept=False)
                self.place.children = [self.picture]
            plain.show(self.place, bool(self.changes.value))
        self._bench.worker.submit(self.draw, "differ")

    def draw(self) -> None:
        """Draw what was tried, and the diff where it is wanted; on the worker."""
        bench = self._bench
        with bench.state:
            name, kernel = bench.selected, bench.kernel
            tried = bars(bench.attempts.get(name, []))
            text = bench.draft(name) if kernel is not None else ""
        if not self.made or kernel is None:
            return
        if (name, tried) != self._drawn:
            self._drawn = (name, tried)
            if tried:
                self.plot.show(plots.figure_png(plots.attempts_figure(tried, title=name)))
            else:
                self.plot.clear()
        if self.changes.value and (name, text) != self._compared:
            self._compared = (name, text)
            rows = side_by_side(kernel.generated.text, text)
            changed = any(not isinstance(row, int) and row.changed for row in rows)
            html = (
                diff_listing(rows, find_target(kernel.target).language)
                if changed
                else "No difference."
            )
            self.picture.write(html)

    def refresh(self) -> None:
        """Show what was tried; a diff that is shown follows what is typed."""
        bench = self._bench
        tried = bench.attempts.get(bench.selected, [])
        options = [(each.line, each.number) for each in reversed(tried)]
        text = bench.draft(bench.selected) if bench.kernel is not None else ""
        shown = next((each.number for each in reversed(tried) if each.text == text), 0)
        if not shown:  # a list with nothing chosen would be a blank box
            count = f"{len(tried)} tried: pick one to see it" if tried else "nothing tried yet"
            options.insert(0, (count, 0))
        wanted = tuple(options)
        self._filling = True
        if self.history.options != wanted:
            self.history.options = wanted
        self.history.value = shown
        self.history.disabled = not tried
        self._filling = False
        if self.changes.value and (bench.selected, text) != self._compared:
            bench.worker.submit(self.draw, "differ")
