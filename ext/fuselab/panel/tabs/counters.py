"""The counters of the Timings tab: what the hardware counts while each kernel runs."""

from __future__ import annotations

from html import escape
from typing import Any

from fuselab.display.pages import counters
from fuselab.panel.tabs.lazy import LazyTab, problem_or
from fuselab.panel.widgets import markup, plain

JOB = "counters"


class Counters(LazyTab):
    """A table on request: each kernel runs alone for a twentieth of a second."""

    title = "Counters"

    def make(self) -> list[Any]:
        """Return the button and the table."""
        self._html = ""
        self.start_button = plain.button(
            "What the hardware counts",
            "Cycles, instructions, cache misses, vector share; on a GPU what CUPTI counts",
            "microchip",
        )
        self.start_button.on_click(lambda _: self.start())
        self.table = plain.html(width="100%", overflow="auto")
        return [plain.row([self.start_button]), self.table]

    def start(self) -> None:
        """Count, on the worker."""

        def job() -> None:
            cell: Any = self._bench.cell
            with cell.lock:
                found = counters.count_cell(cell)
            rows = [list(row) for row in counters.counter_rows(found)]
            value = markup.table(list(counters.HEAD), rows) if rows else ""
            for note in counters.notes(found):
                value += f"<div><i>{escape(note)}</i></div>"
            with self._bench.state:
                self._html = value

        self._bench.do("Counting", job, JOB)

    def refresh(self) -> None:
        """Show what it does now."""
        self.start_button.disabled = bool(self._bench.activity) or self._bench.simulated
        busy = self._bench.job == JOB
        self.table.value = problem_or(self._bench, "") if busy else self._html
