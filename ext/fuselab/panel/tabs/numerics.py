"""The Numerics tab: outputs against eager and float64, where errors grow, where NaN begins."""

from __future__ import annotations

from html import escape
from typing import Any

from fusec.inspect.trace import Trace
from fusec.report import Verdict
from fuselab.display.pages import numerics, subjects
from fuselab.panel.context import Bench
from fuselab.panel.tabs.lazy import LazyTab, problem_or
from fuselab.panel.widgets import markup, plain


class NumericsTab(LazyTab):
    """How exact the results are, and which line is to blame."""

    title = "Numerics"

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.traces: list[tuple[str, Trace | str]] = []

    def make(self) -> list[Any]:
        """Return the outputs' table, the button, and what the trace found."""
        self.outputs = plain.html(width="100%", overflow="auto")
        self.trace = plain.button(
            "Trace the numbers",
            "Run every step in float64 as well, and compare line by line",
            "search",
        )
        self.trace.on_click(lambda _: self.start())
        self.compare = plain.button(
            "Compare again",
            "Compare every output with eager and float64, on the real inputs and on random ones",
            "check",
        )
        self.compare.on_click(lambda _: self.start_compare())
        self.found = plain.html(width="100%", overflow="auto")
        return [self.outputs, plain.row([self.compare, self.trace]), self.found]

    def start_compare(self) -> None:
        """Compare the outputs with eager and float64, on the worker."""
        cell: Any = self._bench.cell
        self._bench.do("Comparing", cell.check, "compare")

    def start(self) -> None:
        """Run the steps in float64 too, on the worker."""

        def job() -> None:
            traces = subjects.trace_cell(self._bench.cell)
            with self._bench.state:
                self.traces = traces

        self._bench.do("Tracing", job, "trace")

    def draw(self) -> None:
        """Show the latest verdict."""
        with self._bench.cell.lock:
            verdict = getattr(self._bench.cell, "verdict", None)
        with self._bench.state:
            self.outputs.value = outputs_html(verdict)

    def refresh(self) -> None:
        """Show what is done now, or did not work, and what the trace found."""
        value = "".join(trace_html(name, trace) for name, trace in self.traces)
        self.found.value = problem_or(self._bench, "") + value


def outputs_html(verdict: Verdict | None) -> str:
    """Write how far each output is from the references."""
    rows = numerics.output_rows(verdict)
    if verdict is None or not rows:
        return "The results were not compared with eager yet."
    head = "Every output is right" if verdict.ok else "An output is wrong"
    line = markup.notice([head, verdict.reason], markup.GOOD if verdict.ok else markup.BAD)
    return line + markup.texts(list(numerics.OUTPUTS), [list(row) for row in rows], 3)


def trace_html(name: str, trace: Trace | str) -> str:
    """Write what a trace found."""
    title = f"<div style='margin:8px 0 2px;font-weight:600'>{escape(name)}</div>"
    if isinstance(trace, str):
        return f"{title}<div>{escape(trace)}</div>"
    html = [title, f"<div>{escape(numerics.growth_line(trace))}</div>"]
    for each in trace.anomalies:
        # A mask of infinities is an input like any other.
        color = markup.QUIET if each.step == "input" else markup.BAD
        html.append(markup.notice([numerics.anomaly_line(each)], color))
    rows = [list(row) for row in numerics.line_rows(trace)]
    if rows:
        html.append("<div style='margin-top:6px'>Line by line, inside of the kernels</div>")
        html.append(markup.texts(list(numerics.LINES), rows, 3))
    rows = [list(row) for row in numerics.tensor_rows(trace)]
    if rows:
        html.append("<div style='margin-top:6px'>Tensors in memory, in the order written</div>")
        html.append(markup.texts(list(numerics.TENSORS), rows, 4))
    for kernel in trace.skipped:
        html.append(f"<div>{escape(kernel)} is too large to look into its lines.</div>")
    return "".join(html)
