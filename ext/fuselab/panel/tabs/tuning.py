"""The Tuning tab: start a search, watch it, stop it, read the winner and its runners-up."""

from __future__ import annotations

import threading
import time
from html import escape
from typing import Any

import ipywidgets as widgets

from fusec.kernel import Kernel
from fusec.report import Timing
from fusec.tuning_report import Trial, TuningRun
from fuselab.display import noise, words
from fuselab.display.pages.tuning import eager_note, effect_rows, left_words
from fuselab.display.plots.search import SearchPicture
from fuselab.panel.context import Bench
from fuselab.panel.tabs.lazy import LazyTab
from fuselab.panel.widgets import markup, plain
from fuselab.panel.widgets.drawing import Plot, heat_png, outcome_png, preload, tuning_png

USE = "use"
BUDGETS = (5, 10, 30, 60, 120)
REDRAW = 0.25  # seconds from one redraw to the next, at the least
SHARE = 0.2  # the most that drawing may take of the time while a search runs
ENDINGS = {
    "finished": "all tried",
    "budget": "time is up",
    "stopped": "stopped",
    "stored": "from an earlier run",
}


class TuningTab(LazyTab):
    """The search over one kernel's tunables."""

    title = "Tuning"
    prebuilt = False  # its figures

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._stop = threading.Event()
        self._kernel = ""  # name of the kernel whose search is queued or runs
        self._drawn: TuningRun | None = None
        self._picture = SearchPicture()
        self._picked = False  # whether the latest note is about a point that was picked
        self._hint = ""  # what a person did that has to wait for the end of the search
        self._next_draw = 0.0
        self.on_start: list[Any] = []

    def make(self) -> list[Any]:
        """Return the budget, the button, how far it is, and what was found."""
        self.budget = plain.choice(
            "Budget", "10em", options=[(f"{seconds} s", seconds) for seconds in BUDGETS], value=10
        )
        self.button = plain.button("Tune", "Search the tunables of the kernel", "sliders")
        self.button.on_click(lambda _: self.start_or_stop())
        self.progress = plain.make(widgets.IntProgress, label="Progress", look={"width": "14em"})
        self.line = plain.beside()
        self.plot = Plot("Every configuration's time; the list below has the best")
        self.heat = Plot("The best time by two tunables; the table below has each one's effect")
        self.outcome = Plot("The best configurations and what each tunable does; tables are below")
        self.ranking = plain.html(overflow="auto")
        row = [self.budget, self.button, self.progress, self.line]
        pictures = [self.plot.widget, self.heat.widget, self.outcome.widget]
        return [plain.row(row), *pictures, self.ranking]

    @property
    def running(self) -> bool:
        """Whether a search is queued or runs."""
        return bool(self._kernel)

    def label(self, control: Any) -> None:
        """Make a button say what it would do now: Tune or Stop."""
        kernel = self._bench.kernel
        control.description = "Stop" if self.running else "Tune"
        control.icon = "stop" if self.running else "sliders"
        control.button_style = "warning" if self.running else ""
        control.tooltip = (
            "End the search and keep the best so far"
            if self.running
            else "Search the tunables of the text in use"
        )
        idle = kernel is None or not kernel.can_be_tuned or self._bench.simulated
        control.disabled = not self.running and idle

    def close(self) -> None:
        """Stop the search."""
        if self.running:
            self.start_or_stop()

    def start_or_stop(self) -> None:
        """Begin a search for the shown kernel, or end the one that runs; returns at once."""
        with self._bench.state:
            if self.running:
                self._stop.set()
                return
            kernel = self._bench.kernel
            if kernel is None:
                return
            self.open()
            name = self._kernel = self._bench.selected
            self._picked, self._hint = False, ""
            self._stop = threading.Event()
            budget, stop = float(self.budget.value), self._stop
            self.progress.value = 0
            self.line.value = "Starting …"
            self._bench.changed()
        for listener in self.on_start:
            listener()
        self._bench.do(f"Tuning {name}", lambda: self._tune(name, kernel, budget, stop))

    def pick(self, key: str) -> None:
        """Put a configuration of the shown search in use: a point of the plot was picked."""
        with self._bench.state:
            kernel, name = self._bench.kernel, self._bench.selected
            run = kernel.tuning if kernel is not None else None
            index = int(key.removeprefix("trial:"))
            if self.running:
                self._hint = "a point can be put in use once the search has ended"
                self.line.value = escape(f"{name}: {self._hint}")
                return
            if kernel is None or run is None or index >= len(run.trials):
                self.line.value = escape(f"{name}: that search is gone; Tune starts another")
                return
        trial = run.trials[index]
        self._bench.do(f"Using {trial}", lambda: self._use(name, kernel, trial), USE)

    def _use(self, name: str, kernel: Kernel, trial: Trial) -> None:
        text = kernel.text_of(trial)
        with self._bench.cell.lock:
            verdict = kernel.check(text)
            if verdict.ok:
                kernel.use_trial(trial)
                self._bench.cell.refresh()
        self._bench.tried(name, kernel, text, verdict)
        with self._bench.state:
            self._picked = True
            if verdict.ok:
                if self._bench.drafts.get(name) == text:
                    self._bench.drafts.pop(name)
                self._bench.say(f"{name}: {trial} is in use")
            else:
                self._bench.say(f"{name}: {trial} was refused: {verdict.reason}")

    # --- the job ----------------------------------------------------------------------------

    def _tune(self, name: str, kernel: Kernel, budget: float, stop: threading.Event) -> None:
        cell, before = self._bench.cell, kernel.source
        try:
            if stop.is_set():
                return
            preload()
            turns = Turns(cell.lock, stop)
            with turns:
                run = kernel.tune(budget, lambda run: self._progress(run, turns), stop)
            with cell.lock:
                self._show(run)
                self._draw(run)
                if kernel.source != before:
                    cell.refresh()
        finally:
            with self._bench.state:
                self._kernel = ""
                if kernel.source != before:
                    # The verdict was about another text; a draft of the user's own stays.
                    self._bench.checked.pop(name, None)
                    if self._bench.drafts.get(name) == kernel.source:
                        self._bench.drafts.pop(name)
                    typed = name in self._bench.drafts
                    remark = " (above is what you typed; Revert shows them)" if typed else ""
                    self._bench.say(f"{name}: the tuned values are in use{remark}")

    def _progress(self, run: TuningRun, turns: Turns) -> None:
        """Show the run so far: between two measurements, and not often."""
        if not turns.give():
            return
        now = time.monotonic()
        if now < self._next_draw:
            return
        self._show(run)
        self._draw(run)
        spent = time.monotonic() - now
        self._next_draw = time.monotonic() + max(REDRAW - spent, spent * (1 / SHARE - 1))

    def _draw(self, run: TuningRun) -> None:
        self._drawn = run
        self.plot.show(*tuning_png(run, self._picture), self.pick)
        # These need the whole search; while it runs one picture at a time is enough.
        heat, spots = heat_png(run) if run.stopped else (b"", [])
        outcome = outcome_png(run) if run.stopped else b""
        if heat:
            self.heat.show(heat, spots, self.pick)
        else:
            self.heat.clear()
        if outcome:
            self.outcome.show(outcome)
        else:
            self.outcome.clear()

    # --- what is shown ----------------------------------------------------------------------

    def refresh(self) -> None:
        """Show what is now the case."""
        self.label(self.button)
        kernel = self._bench.kernel
        if self.running or kernel is None:
            return
        if self._bench.problem:
            self.line.value = markup.notice(list(self._bench.problem[:1]), markup.BAD)
            return
        if kernel.tuning is not None:
            self._show(kernel.tuning)
            if self._bench.has(USE):  # perhaps after what somebody else asked for
                self.line.value = escape(self._bench.doing)
            elif self._picked and self._bench.note:
                self.line.value = escape(self._bench.note)
            return
        self.progress.value, self.progress.bar_style = 0, ""
        self.ranking.value = ""
        if kernel.can_be_tuned:
            names = [tunable.name for tunable in kernel.tunables]
            names += ["loop plans"] if kernel.plans else []
            text = f"{self._bench.selected}: not tuned yet; can be tuned: {', '.join(names)}"
            if self._bench.simulated:
                text = words.NOT_TUNED
        else:
            text = f"{self._bench.selected} declares no tunables"
        self.line.value = escape(text)

    def draw(self) -> None:
        """Draw the shown kernel's search, if it is another than the one drawn; a worker's job."""
        kernel = self._bench.kernel
        run = kernel.tuning if kernel else None
        if self.running or run is self._drawn:
            return
        if run is None:
            self._drawn = None
            self.plot.clear()
            self.heat.clear()
            self.outcome.clear()
        else:
            with self._bench.cell.lock:
                self._draw(run)

    def _show(self, run: TuningRun) -> None:
        with self._bench.state:
            self.progress.max = max(noise.total(run), 1)
            self.progress.value = self.progress.max if run.stopped else len(run.trials)
            self.progress.bar_style = "success" if run.stopped else "info"
            later = [] if run.stopped else [self._hint, self._bench.waiting]
            self.line.value = escape("; ".join(filter(None, [progress_line(run), *later])))
            self.ranking.value = ranking_table(run)
            if run.stopped:
                facts = self._bench.facts
                self.ranking.value += search_note(run, facts.fused, facts.eager)
                self.ranking.value += effects_table(run)


class Turns:
    """The cell's lock during a search, given away for a moment between two measurements.

    Other cells share the lock; held for a whole search it would hold them up for as long. A
    cell that keeps it (perhaps waiting for the very graph that is tuned) ends the search.
    """

    PATIENCE = 2.0  # seconds

    def __init__(self, lock: threading.RLock, stop: threading.Event) -> None:
        self._lock = lock
        self._stop = stop
        self._owner = threading.get_ident()
        self._held = False

    def __enter__(self) -> None:
        self._held = self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        if self._held:
            self._lock.release()

    def give(self) -> bool:
        """Let whoever waits have the lock; return whether it came back."""
        if threading.get_ident() != self._owner:
            return True  # only the thread that took a lock can give it
        if self._held:
            self._lock.release()
            time.sleep(0.001)  # without it this thread would be the first to have it again
        self._held = self._lock.acquire(timeout=0 if self._stop.is_set() else self.PATIENCE)
        if not self._held:
            self._stop.set()
        return self._held


def progress_line(run: TuningRun) -> str:
    """Say how far a search is: ``gelu: 12 of 40, best 0.61 ms (GRAIN=4 UNROLL=2)``."""
    parts = [f"{run.kernel}: {noise.progress(run)}"]
    best = run.trials[run.best] if run.best is not None else None
    if best and best.timing:
        word = "in use" if run.stopped else "best so far"
        parts.append(f"{word} {best}, {words.duration(best.timing.median)}")
    if run.stopped:
        took = f"{run.seconds:.1f}\N{NO-BREAK SPACE}s"
        parts.append(f"{ENDINGS.get(run.stopped, run.stopped)} after {took}")
    elif left := left_words(run):
        parts.append(left)
    return ", ".join(parts)


def search_note(run: TuningRun, fused: Timing | None, eager: Timing | None) -> str:
    """Say why a search's times are not those in the head, which are of another run."""
    place = noise.in_use(run)
    own = run.trials[place].timing if place is not None else None
    part = noise.part_note(fused, {run.kernel: own} if own is not None else {})
    notes = [note for note in (eager_note(run, eager), part) if note]
    return "".join(f"<div>{escape(note[:1].upper() + note[1:])}.</div>" for note in notes)


def effects_table(run: TuningRun) -> str:
    """Return the tunables' effects as an HTML table, the one that matters most first."""
    rows = [list(row) for row in effect_rows(run)]
    if not rows:
        return ""
    head = ["Tunable", "Best time with each value", "Range"]
    return "<div style='margin-top:6px'></div>" + markup.texts(head, rows, 2)


def ranking_table(run: TuningRun, length: int = 5) -> str:
    """Return the best configurations as an HTML table: the winner, its runners-up, the start."""
    timed = [(trial.timing, i) for i, trial in enumerate(run.trials) if trial.timing]
    if not timed:
        return ""
    fastest = min(timed, key=lambda entry: entry[0].median)[1]
    timed.sort(key=lambda entry: (entry[1] != run.best, entry[0].median))
    first = run.trials[0].timing
    head = ["Configuration", "Median (quartiles)", "Against the start"]
    alone = run.eager if not run.eager_is_whole else None
    head += ["Against eager, same run"] if alone else []
    rows = []
    doubtful = noise.unconfirmed(run)
    for place, (timing, index) in enumerate(timed):
        if place >= length and index:
            continue
        marks = ["in use" if run.stopped else "best so far"] if index == noise.in_use(run) else []
        marks += ["at the start"] if index == 0 else []
        marks += [noise.UNCONFIRMED] if index in doubtful else []
        label = str(run.trials[index])
        row = [f"{label} ({', '.join(marks)})" if marks else label, words.spread(timing)]
        row.append(noise.against(timing, first) if first and index else "")
        row += [noise.against(timing, alone)] if alone else []
        rows.append(row)
    notes = [f"{escape(reason)}." for reason in run.plan_reasons()]
    if run.stopped and not run.picked and fastest != run.best:
        notes.append("A lead that is within the noise does not win.")
    if busy := noise.busy_note(timing for timing, _ in timed):
        notes.append(f"{busy[:1].upper()}{busy[1:]}.")
    failed = sum(bool(trial.error) for trial in run.trials)
    if failed:
        notes.append(f"{failed} of {len(run.trials)} failed.")
    if len(timed) + failed < len(run.trials):
        notes.append(f"{len(run.trials) - len(timed) - failed} left out: they cannot win.")
    return markup.table(head, rows) + (f"<div>{' '.join(notes)}</div>" if notes else "")
