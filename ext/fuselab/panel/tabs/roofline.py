"""The roofline of the Timings tab: how near each kernel comes to what the machine can do."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from fusec.devices import where_computed
from fusec.timing.limits import MeasuredLimits, machine
from fuselab.display.pages.limits import (
    COPIES,
    NO_ROWS,
    above_note,
    copies_of,
    roofline_points,
    roofline_rows,
    symbolic_costs,
)
from fuselab.display.plots import figures as plots
from fuselab.display.plots import machine as plots_machine
from fuselab.panel.tabs.lazy import LazyTab, problem_or
from fuselab.panel.widgets import markup, plain
from fuselab.panel.widgets.drawing import Plot

if TYPE_CHECKING:
    from fusec.inspect.line_costs import LineCost

JOB = "roofline"


class Roofline(LazyTab):
    """A plot on request: it measures the machine, which takes a quarter of a second."""

    title = "Roofline"

    def make(self) -> list[Any]:
        """Return the button, the plot and the same in figures."""
        self._found: MeasuredLimits | None = None
        self._copies: dict[int, float] = {}
        self._symbolic: dict[str, LineCost] = {}
        self._drawn: object = None
        self.start_button = plain.button(
            "Against the machine",
            "Measure what copies and products reach here, and draw each kernel beside them",
            "tachometer",
        )
        self.start_button.on_click(lambda _: self.start())
        self.plot = Plot("Each kernel and what the machine can do; the table says the same")
        self.table = plain.html(width="100%", overflow="auto")
        return [plain.row([self.start_button]), self.plot.widget, self.table]

    def start(self) -> None:
        """Measure the machine and the limit, on the worker."""

        def job() -> None:
            cell: Any = self._bench.cell
            with cell.lock:
                kernels = list(cell.kernels.values())
                arguments = [a.device for k in kernels for a in k.signature.arguments]
                found = machine(where_computed(arguments))
                if not cell.kernel_times:
                    cell.refresh()
                cell.know_limit()
                self._symbolic = symbolic_costs(cell)
                points = roofline_points(cell, self._symbolic)
                self._copies = copies_of(points, found.device, cell.traffic)
            self._found = found

        self._bench.do("Measuring the machine", job, JOB)

    def draw(self) -> None:
        """Draw the kernels' latest times: those that the table of times has."""
        points = roofline_points(self._bench.facts, self._symbolic)
        if self._found is None or points == self._drawn:
            return
        self._drawn = points
        with self._bench.cell.lock:
            self.plot.show(plots.figure_png(plots_machine.roofline_figure(points, self._found)))

    def refresh(self) -> None:
        """Show what it does now, or the table."""
        self.start_button.disabled = bool(self._bench.activity) or self._bench.simulated
        found = self._found
        points = roofline_points(self._bench.facts, self._symbolic)
        value = table(points, found, self._copies) if found is not None else ""
        self.table.value = problem_or(self._bench, "") if self._bench.job == JOB else value


def table(
    points: list[plots_machine.RooflinePoint], found: MeasuredLimits, copies: Mapping[int, float]
) -> str:
    """Write the roofline as figures."""
    rows = [list(row) for row in roofline_rows(points, found, copies)]
    head = ["Kernel", "Memory traffic", "Of a copy", "Operations", "Of a product"]
    notes = [note for note in (found.method, COPIES if rows else NO_ROWS, above_note(rows)) if note]
    listed = markup.table(head, rows) if rows else ""
    return listed + f"<div><i>{escape('; '.join(notes))}</i></div>"
