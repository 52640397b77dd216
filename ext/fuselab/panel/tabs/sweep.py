"""The sweep of the Timings tab: eager and fused over a range of sizes."""

from __future__ import annotations

import threading
from html import escape
from typing import Any

import ipywidgets as widgets

import fusec
from fusec.errors import FusecError
from fusec.inspect.sweep import FixedSize, SweepPoint, SweptSize, sizes_of, sweep
from fuselab.display import noise, words
from fuselab.display.plots import figures as plots
from fuselab.display.plots import machine as plots_machine
from fuselab.panel.context import Bench
from fuselab.panel.tabs.lazy import LazyTab, problem_or
from fuselab.panel.widgets import markup, plain
from fuselab.panel.widgets.drawing import Plot

ACTIVITY = "Sweeping"
JOB = "sweep"
STEPS = 6  # powers of two below the present size, and one above


class Sweep(LazyTab):
    """A size to vary, its range, and the curves."""

    title = "Sweep"

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._sizes: list[tuple[Any, SweptSize]] = []
        self._stop = threading.Event()
        self._filling = False
        self._failed = ""
        self.points: list[SweepPoint] = []

    def make(self) -> list[Any]:
        """Return the choice of a size, its range, the button and the plot."""
        self.size = plain.choice("Over sizes")
        self.size.observe(self._choose, "value")
        self.range = plain.make(
            widgets.SelectionRangeSlider,
            label="from, to",
            look={"width": "24em", "max_width": "100%"},
            options=(1,),
            continuous_update=False,
        )
        self.button = plain.button(
            "Sweep", "Time eager and fused at each of these sizes", "line-chart"
        )
        self.button.on_click(lambda _: self.start_or_stop())
        self.plot = Plot("Eager and fused over the sizes; the table below says the same")
        self.table = plain.html(width="100%", overflow="auto")
        return [
            plain.row([self.size, self.range, self.button], grid_gap="0 12px"),
            self.plot.widget,
            self.table,
        ]

    def start_or_stop(self) -> None:
        """Begin a sweep, or end the one that runs."""
        bench = self._bench
        with bench.state:
            if bench.job == JOB:
                self._stop.set()
                return
            if not self._sizes:
                return
            graph, size = self._sizes[self.size.value or 0]
            low, high = self.range.value
            values = [value for value in values_of(size) if low <= value <= high]
            self._stop = stop = threading.Event()
            self._failed = ""

        def job() -> None:
            points: list[SweepPoint] = []
            try:
                with bench.cell.lock:
                    for point in sweep(graph, size, values, compile=fusec.compile, stop=stop):
                        points.append(point)
                        several = len(points) > 1  # one alone is no picture
                        figure = plots_machine.sweep_figure(points, size.name) if several else None
                        png = plots.figure_png(figure) if figure is not None else b""
                        with bench.state:
                            self.points = list(points)
                            if png:
                                self.plot.show(png)
                            else:
                                self.plot.clear()
            except FixedSize as error:
                self._failed = str(error)

        bench.do(ACTIVITY, job, JOB)

    def draw(self) -> None:
        """Read which sizes there are."""
        found: list[tuple[Any, SweptSize]] = []
        with self._bench.cell.lock:
            for graph in self._bench.cell.graphs:
                try:
                    found += [(graph, size) for size in sizes_of(graph)]
                except FusecError:
                    continue  # it has not run yet
        if [s for _, s in found] == [s for _, s in self._sizes] and found:
            return
        with self._bench.state:
            self._sizes = found
            several = len({id(graph) for graph, _ in found}) > 1
            self._filling = True
            self.size.options = [
                (f"{graph.name}: {size.label}" if several else size.label, n)
                for n, (graph, size) in enumerate(found)
            ]
            self._filling = False
            if found:
                self.size.value = 0
                self._show_range()
            self.button.disabled = not found

    def _choose(self, _change: dict[str, Any]) -> None:
        with self._bench.state:
            if not self._filling:
                self._show_range()

    def _show_range(self) -> None:
        if self._sizes:
            values = values_of(self._sizes[self.size.value or 0][1])
            self.range.options = values
            self.range.value = (values[0], values[-1])

    def refresh(self) -> None:
        """Show how far it is."""
        busy, sweeping = bool(self._bench.activity), self._bench.job == JOB
        self.button.description = "Stop" if sweeping else "Sweep"
        self.button.icon = "stop" if sweeping else "line-chart"
        self.button.disabled = (busy and not sweeping) or not self._sizes
        self.button.disabled = self.button.disabled or self._bench.simulated
        rows = [
            [
                str(point.size),
                words.spread(point.eager),
                words.spread(point.fused),
                noise.against(point.fused, point.eager),
            ]
            for point in self.points
        ]
        head = ["Size", "Eager (quartiles)", "Fused (quartiles)", "Compared"]
        value = markup.table(head, rows) if rows else ""
        if rows:
            value += f"<div><i>{escape(words.OWN_RUN + self.points[0].fused.method)}</i></div>"
        if sweeping or (self._bench.problem and not busy):
            value = problem_or(self._bench, "") + value
        elif self._failed:
            value = markup.notice(["That did not work", self._failed], markup.BAD) + value
        self.table.value = value


def values_of(size: SweptSize) -> list[int]:
    """Return the values to offer: powers of two of the present one, down to 2 and one above."""
    below = [size.value >> step for step in range(STEPS, 0, -1)]
    return sorted({value for value in below if value >= 2} | {size.value, 2 * size.value})
