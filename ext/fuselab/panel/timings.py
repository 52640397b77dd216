"""The Timings tab: eager and fused, how they compare and how they were measured."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from fusec.report import Timing
from fuselab import words

from . import markup
from .bench import Bench
from .controls import button
from .drawing import Plot, speed_png
from .roofline import Roofline
from .sweep import Sweep


class TimingsTab:
    """Time of the whole cell, and of the kernels that were checked alone."""

    title = "Timings"

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._drawn: object = None
        self.again = button("Measure again", "Time eager and fused again", "refresh")
        self.again.on_click(lambda _: bench.do("Measuring", self._measure, "measure"))
        self.plot = Plot()
        self.table = widgets.HTML(layout=widgets.Layout(overflow="auto"))
        self.method = widgets.HTML()
        self.roofline = Roofline(bench)
        self.sweep = Sweep(bench)
        self.widget = widgets.VBox(
            [
                widgets.HBox([self.again, self.method], layout={"align_items": "center"}),
                self.plot.widget,
                self.table,
                self.roofline.widget,
                self.sweep.widget,
            ]
        )
        bench.listen(self.refresh)

    def open(self) -> None:
        """Make what is made when somebody first looks."""
        self.roofline.open()
        self.sweep.open()

    def _measure(self) -> None:
        with self._bench.cell.lock:
            self._bench.cell.refresh()

    def refresh(self) -> None:
        """Show what is now the case."""
        facts = self._bench.facts
        rows: list[list[str]] = []
        eager = facts.eager
        if eager:
            rows.append(["eager, whole cell", words.spread(eager), "", str(eager.samples)])
        if facts.limit:
            ratio = words.against(facts.limit, facts.fused.median) if facts.fused else ""
            ratio += " than fused" if "×" in ratio else ""
            rows.append(["the limit: a copy", words.duration(facts.limit), ratio, ""])
        for name, timing in facts.others.items():
            rows.append([f"{name}, whole cell", *_row(timing, eager)])
        if facts.fused:
            rows.append(["fused, whole cell", *_row(facts.fused, eager)])
        for name, kernel in facts.kernels.items():
            if kernel.name in facts.kernel_times:
                rows.append([f"{name}, alone", *_row(facts.kernel_times[kernel.name], None)])
            verdict = kernel.last_verdict
            if verdict and verdict.timing:
                label = f"{name}, as checked last"
                rows.append([label, *_row(verdict.timing, verdict.generated, "generated")])
        head = ["What", "Median (quartiles)", "Compared", "Samples"]
        self.table.value = markup.table(head, rows) if rows else "Nothing was timed yet."
        self.method.value = f"<i>{escape(eager.method)}</i>" if eager else ""
        if self._bench.problem:
            self.method.value = markup.notice(list(self._bench.problem[:1]), markup.BAD)
        self.again.disabled = bool(self._bench.activity)

    def draw(self) -> None:
        """Draw the figure if the times are others than those drawn; a worker's job."""
        if self.sweep.made:
            self.sweep.draw()
        facts = self._bench.facts
        if facts == self._drawn or not (facts.eager and facts.fused):
            return
        self._drawn = facts
        with self._bench.cell.lock:
            self.plot.show(speed_png(facts))


def _row(timing: Timing, reference: Timing | None, name: str = "eager") -> list[str]:
    ratio = words.against(timing.median, reference.median) if reference else ""
    return [
        words.spread(timing),
        f"{ratio} than {name}" if "×" in ratio else ratio,
        str(timing.samples),
    ]
