"""The Timings tab: the cell beside eager, TorchInductor and its limit; edits; every step."""

from __future__ import annotations

import threading
from html import escape
from typing import Any

from fuselab.display.pages.timings import (
    HEAD,
    STEPS,
    check_note,
    failures_of,
    noise_notes,
    step_note,
    step_rows,
    time_rows,
)
from fuselab.panel.context import Bench
from fuselab.panel.tabs.counters import Counters
from fuselab.panel.tabs.lazy import LazyTab
from fuselab.panel.tabs.roofline import Roofline
from fuselab.panel.tabs.sweep import Sweep
from fuselab.panel.widgets import markup, plain
from fuselab.panel.widgets.drawing import Plot, speed_png

NOT_TIMED = (
    "Nothing is timed: there is no GPU here, and an interpreter’s times say nothing about one. "
    "The result has what the kernels take of the GPU, and a predicted time."
)
MEASURING = "Measuring"
COMPARING = "Timing TorchInductor"
JOB = "compare"
PEER = "inductor"


class TimingsTab(LazyTab):
    """Time of the whole cell, of its steps, and of the kernels that were checked alone."""

    title = "Timings"
    prebuilt = False  # its figures

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._drawn: object = None
        self._stop = threading.Event()
        self._compiling = False
        self.roofline = Roofline(bench)
        self.counters = Counters(bench)
        self.sweep = Sweep(bench)

    def make(self) -> list[Any]:
        """Return the buttons, the figure, its table, the roofline, the counters and the sweep."""
        bench = self._bench
        self.again = plain.button(
            "Measure again", "Time eager and fused again, and each kernel and call alone", "refresh"
        )
        self.again.on_click(lambda _: bench.do(MEASURING, self._measure, "measure"))
        self.peer = plain.button("TorchInductor", "")
        self.peer.on_click(lambda _: self.start_or_stop())
        self.plot = Plot("Eager and fused, and each kernel's share; the table below says the same")
        self.table = plain.html(overflow="auto")
        self.method = plain.html(flex="1 1 20em", margin="2px 0 2px 8px")
        return [
            plain.row([self.again, self.peer, self.method]),
            self.plot.widget,
            self.table,
            self.roofline.widget,
            self.counters.widget,
            self.sweep.widget,
        ]

    def start_or_stop(self) -> None:
        """Begin timing TorchInductor beside eager and our own code, or end that."""
        bench = self._bench
        with bench.state:
            if self.comparing:
                self._stop.set()
                return
            self._stop = stop = threading.Event()
            self._compiling = True
            bench.say("")
            bench.changed()
        # Not on the worker, which draws and checks meanwhile; it only waits for the compiler.
        name = f"fuselab-{bench.cell.name}-{PEER}"
        threading.Thread(target=self._compile, args=[stop], name=name, daemon=True).start()

    @property
    def comparing(self) -> bool:
        """Whether TorchInductor compiles, or is timed."""
        return self._compiling or self._bench.job == JOB

    def _compile(self, stop: threading.Event) -> None:
        bench, cell = self._bench, self._cell
        ready = False
        try:
            ready = cell.compile_peer(PEER, stop.is_set)
        finally:
            with bench.state:
                if ready:
                    bench.do(COMPARING, lambda: self._compare(stop), JOB)
            bench.look()
            with bench.state:
                self._compiling = False  # once what became of it is known
                self._say_stopped(stop)
                bench.changed()

    def _compare(self, stop: threading.Event) -> None:
        self._cell.compare(PEER, stop=stop.is_set)
        with self._bench.state:
            self._say_stopped(stop)

    def _say_stopped(self, stop: threading.Event) -> None:
        if stop.is_set():
            self._bench.say(
                "TorchInductor was stopped; what it compiles is ready the next time", JOB
            )

    @property
    def _cell(self) -> Any:
        return self._bench.cell

    def close(self) -> None:
        """Wait for nothing any more."""
        self._stop.set()

    def _measure(self) -> None:
        cell = self._cell
        with cell.lock:
            cell.refresh()
            if hasattr(cell, "measure_steps") and not self._bench.simulated:
                cell.measure_steps()

    def refresh(self) -> None:
        """Show what is now the case."""
        bench, facts = self._bench, self._bench.facts
        rows, steps = time_rows(facts), step_rows(facts)
        value = markup.table(list(HEAD), [list(row) for row in rows])
        if note := check_note(facts):
            value += f"<div style='opacity:0.75'>{escape(note)}</div>"
        for note in noise_notes(facts):
            value += f"<div style='opacity:0.75'>{escape(note)}</div>"
        if facts.extern_times:
            value += f"<div style='margin-top:6px'>{escape(step_note(facts))}</div>"
            value += markup.table(list(STEPS), [list(row) for row in steps])
        for failure in failures_of(facts):
            value += markup.notice([failure], markup.BAD)
        nothing = NOT_TIMED if bench.simulated else "Nothing was timed yet."
        self.table.value = value if rows else nothing
        busy = bench.activity
        self.method.value = f"<i>{escape(facts.eager.method)}</i>" if facts.eager else ""
        if self.comparing:
            doing = "TorchInductor compiles" if self._compiling else COMPARING
            self.method.value = markup.notice([f"{doing} \N{HORIZONTAL ELLIPSIS}"], markup.QUIET)
        elif bench.problem:
            self.method.value = markup.notice(list(bench.problem[:1]), markup.BAD)
        elif bench.noted_by == JOB:
            self.method.value = markup.notice([bench.note], markup.QUIET)
        self.again.disabled = bool(busy) or bench.simulated
        self.peer.description = "Stop" if self.comparing else "TorchInductor"
        self.peer.icon = "stop" if self.comparing else "balance-scale"
        self.peer.tooltip = (
            "Stop waiting for TorchInductor"
            if self.comparing
            else "Time torch.compile’s own backend in one run with eager and fused"
        )
        self.peer.disabled = (bool(busy) and not self.comparing) or bench.simulated

    def draw(self) -> None:
        """Draw the figure if the times are others than those drawn; a worker's job."""
        facts = self._bench.facts
        verdicts = [kernel.last_verdict for kernel in facts.kernels.values()]
        if (facts, verdicts) != self._drawn and facts.eager and facts.fused and not facts.early:
            self._drawn = facts, verdicts
            with self._bench.cell.lock:
                self.plot.show(speed_png(facts))
        # Made by the worker: the times are there first.
        self.roofline.open()
        self.roofline.draw()
        self.counters.open()
        self.sweep.open()
        self.sweep.draw()
