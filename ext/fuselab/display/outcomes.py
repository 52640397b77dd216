"""What an edit, a tuning run and a list of kernels look like."""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from fusec.inspect.terminal import fitted, terminal_width
from fusec.report import Timing, Verdict
from fusec.tuning_report import Trial, TuningRun
from fuselab.display import noise, render, words
from fuselab.display.listing import marked_listing
from fuselab.display.pages.page import static_table
from fuselab.display.pages.tuning import eager_words, effect_rows, left_words
from fuselab.display.style import themed

if TYPE_CHECKING:
    from fusec.kernel import Kernel
    from fuselab.edit_record import Edit

RUNNERS_UP = 9


class EditRefused(Exception):
    """A kernel's edit that did not pass, raised where the user asked for an error (--strict)."""

    def __init__(self, outcome: EditOutcome) -> None:
        self.outcome = outcome
        super().__init__("\n".join(outcome.lines()))

    def _render_traceback_(self) -> list[str]:
        """Show IPython the verdict alone: the stack is ours, not the user's."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class EditOutcome:
    """What became of an edit.

    Attributes:
        name: What the user typed after ``%%kernel``.
        kernel: The kernel.
        text: The edited text.
        verdict: What the check said.
        kept: Whether the text is now in use.
        edit: The history's record.
        offset: Added to a kernel line to get the line in the cell's gutter.
    """

    name: str
    kernel: Kernel
    text: str
    verdict: Verdict
    kept: bool
    edit: Edit
    offset: int = 1

    @property
    def ok(self) -> bool:
        """Whether the text passed."""
        return self.verdict.ok

    @property
    def cell_line(self) -> int | None:
        """The line at fault as the cell's gutter shows it."""
        return None if self.verdict.line is None else self.verdict.line + self.offset

    @property
    def outcome(self) -> str:
        """The verdict in a word or two."""
        if self.verdict.ok:
            return "Kept" if self.kept else "Passed"
        return words.REFUSALS.get(self.verdict.stage, "Refused")

    def reason(self) -> str:
        """The verdict's reason, with the cell's own line in front of it."""
        if self.verdict.line is None:
            return self.verdict.reason
        # The compiler counts the kernel's lines; the user sees the cell's.
        return f"line {self.cell_line}: {self.verdict.bare or self.verdict.reason}"

    def details(self) -> str:
        """The compiler's full output, its line numbers those of the cell."""

        def shifted(found: re.Match[str]) -> str:
            return f"{found[1]}{int(found[2]) + self.offset}{found[3]}"

        text = re.sub(r"(kernel\.\w+:)(\d+)(\b)", shifted, self.verdict.details)
        return re.sub(r"(?m)^( *)(\d+)( \|)", shifted, text)

    def lines(self, *, alone: bool = True) -> list[str]:
        """The verdict as lines of text, the outcome first.

        Args:
            alone: Whether neither the line at fault nor a table of the errors is shown beside them.
        """
        verdict = self.verdict
        lines = [f"{self.name}: {self.outcome} – {self.reason()}"]
        source = self.text.splitlines()
        if alone and verdict.line is not None and 1 <= verdict.line <= len(source):
            lines.append(f"    {source[verdict.line - 1].strip()}")
        errors = words.error_line(verdict) if alone else ""
        lines += [line for line in (errors, words.time_line(verdict)) if line]
        if not verdict.ok:
            state = "edited text" if self.kernel.edited else "generated text"
            lines.append(f"the {state} stays in use; this one is in fuselab.edits({self.name!r})")
        return lines

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """Return the forms that a notebook and a terminal show."""
        text = self.lines()
        line = self.verdict.line
        marked = marked_listing(self.text, self.kernel.target, line, offset=self.offset)
        diff = difflib.unified_diff(
            self.kernel.generated.text.splitlines(),
            self.text.splitlines(),
            "generated",
            "edited",
            lineterm="",
            n=2,
        )
        bundle: dict[str, Any] = {"text/plain": fitted("\n".join(text), terminal_width())}
        plot = ""
        if self.verdict.timing is not None and self.verdict.generated is not None:
            from fuselab.display.pages.page import picture
            from fuselab.display.plots import figures as plots

            times = [("generated", self.verdict.generated), ("edited", self.verdict.timing)]
            png = plots.figure_png(plots.edit_figure(times, title=self.name))
            bundle["image/png"] = base64.b64encode(png).decode()
            plot = picture(bundle["image/png"], "the generated kernel against the edited one")
        html = render.edit_html(
            name=self.name,
            verdict=self.verdict,
            outcome=self.outcome,
            reason=self.reason(),
            lines=self.lines(alone=False)[1:],
            marked=marked,
            diff="\n".join(diff),
            details=self.details(),
            more=plot,
        )
        return bundle | {"text/html": themed(html)}

    def __repr__(self) -> str:
        return "\n".join(self.lines())


@dataclass(frozen=True)
class TuningOutcome:
    """A tuning run, as a notebook and a terminal show it.

    Attributes:
        name: The kernel's.
        run: The search.
        whole: The time of all of its cell, where that is shown beside it.
    """

    name: str
    run: TuningRun
    whole: Timing | None = None

    @property
    def ranked(self) -> list[tuple[int, Trial]]:
        """The configurations that ran, each with its place in the search.

        The winner, then the fastest first.  The winner need not have the lowest median: a
        search that ends with a final round keeps what it started from unless something is
        faster beyond the noise.
        """
        done = [(i, t) for i, t in enumerate(self.run.trials) if t.timing is not None]

        def place(item: tuple[int, Trial]) -> tuple[bool, float]:
            index, trial = item
            return index != self.run.best, trial.timing.median if trial.timing else 0.0

        return sorted(done, key=place)

    def note(self) -> str:
        """The outcome in one line."""
        run = self.run
        tried = f"{noise.progress(run)} configurations"
        why = {"finished": "all tried", "budget": "out of time", "stopped": "stopped by you"}
        ending = why.get(run.stopped, run.stopped)
        note = f"{tried} in {words.duration(run.seconds)}" + (f" ({ending})" if ending else "")
        if run.best is None:
            return f"{note}: none ran, nothing has changed"
        best = run.trials[run.best]
        note += f"; in use: {best}"
        if best.timing is not None:
            note += f" with {words.duration(best.timing.median)}"
            if said := noise.gain(run)[1]:
                note += f", {said}"
            elif run.best == 0:
                note += ", which is what it started from: nothing was confirmed as faster"
        part = noise.part_note(self.whole, {self.name: best.timing} if best.timing else {})
        busy = noise.busy_note(trial.timing for trial in run.trials)
        return "; ".join(filter(None, (note, part, busy)))

    def rows(self) -> list[dict[str, Any]]:
        """The winner and its runners-up, then what failed."""
        rows: list[dict[str, Any]] = []
        doubtful = noise.unconfirmed(self.run)
        for rank, (index, trial) in enumerate(self.ranked[: RUNNERS_UP + 1], 1):
            assert trial.timing is not None
            time, _, quartiles = words.spread(trial.timing).partition(" (")
            marks = ["in use"] if index == noise.in_use(self.run) else []
            marks += ["start"] if index == 0 else []
            marks += [noise.UNCONFIRMED] if index in doubtful else []
            rows.append(
                {
                    "rank": rank,
                    "config": str(trial),
                    "time": time,
                    "quartiles": quartiles.rstrip(")"),
                    "remark": ", ".join(marks),
                    "best": index == self.run.best,
                }
            )
        rest = [trial for trial in self.run.trials if trial.timing is None]
        for trial in sorted(rest, key=lambda trial: not trial.error)[:RUNNERS_UP]:
            rows.append(
                {
                    "rank": "–",
                    "config": str(trial),
                    "time": "failed" if trial.error else "left out",
                    "quartiles": "",
                    "remark": (trial.error or trial.note).partition("\n")[0],
                    "best": False,
                }
            )
        return rows

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """Return the forms that a notebook and a terminal show."""
        from fuselab.display.pages.page import picture
        from fuselab.display.plots import figures as plots
        from fuselab.display.plots import search as plots_search

        rows = self.rows()
        table = [("", "configuration", "time", "quartiles", "")]
        table += [
            (str(r["rank"]), r["config"], r["time"], r["quartiles"], r["remark"]) for r in rows
        ]
        lines = [f"{self.name}: {self.note()}"]
        lines += [f"  {line}" for line in render.columns(table)] if rows else []
        eager = eager_words(self.run)
        lines += [f"  {eager}"] if eager else []
        effects = effect_rows(self.run)
        lines += [f"  {reason}" for reason in self.run.plan_reasons()]
        lines += [f"  best with each {name} ({range_}): {text}" for name, text, range_ in effects]
        more = "".join(f"<div>{escape(reason)}</div>" for reason in self.run.plan_reasons())
        more += static_table(("tunable", "best time with each value", "range"), effects, 2)
        bundle: dict[str, Any] = {"text/plain": fitted("\n".join(lines), terminal_width())}
        if self.run.best is not None:
            png = plots.figure_png(plots_search.tuning_figure(self.run, title=self.name))
            bundle["image/png"] = base64.b64encode(png).decode()
            more += picture(bundle["image/png"], f"{self.name}: every configuration's time")
        html = render.tuning_html(self.run, rows, self.note(), eager, more)
        return bundle | {"text/html": themed(html)}

    def __repr__(self) -> str:
        return f"{self.name}: {self.note()}"


def trial_line(run: TuningRun) -> str:
    """Describe the latest trial in one line, for a terminal."""
    if not run.trials:
        return f"{run.kernel}: 0 of {run.total}"
    trial = run.trials[-1]
    time = words.spread(trial.timing) if trial.timing else f"failed: {trial.error}"
    if trial.note:
        time = f"{time}, {trial.note}" if trial.timing else f"left out: {trial.note}"
    mark = "  <- best so far" if run.best == len(run.trials) - 1 else ""
    left = left_words(run)
    place = noise.progress(run) + (f", {left}" if left else "")
    return f"{run.kernel} [{place}] {trial}: {time}{mark}"


@dataclass(frozen=True)
class Table:
    """Rows of text, for a notebook and for a terminal."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    empty: str = "nothing"
    more: str = ""

    def __repr__(self) -> str:
        if not self.rows:
            return self.empty
        return "\n".join([*render.columns([self.head, *self.rows]), *filter(None, [self.more])])

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> Mapping[str, Any]:
        """Return the forms that a notebook and a terminal show."""
        rows = self.rows or [(self.empty, *([""] * (len(self.head) - 1)))]
        html = render.kernels_html(self.head, rows, self.more)
        text = fitted(repr(self), terminal_width())
        return {"text/plain": text, "text/html": themed(html)}


class Edits(tuple["Edit", ...]):
    """Every text that was tried for a kernel, the oldest first; shown as a table."""

    name: str

    @classmethod
    def of(cls, name: str, edits: Sequence[Edit]) -> Edits:
        """Return the edits of a kernel.

        Args:
            name: What the user calls it.
            edits: The oldest first.
        """
        found = cls(edits)
        found.name = name
        return found

    @property
    def table(self) -> Table:
        """A row each: its place, when it was tried, what became of it and why."""
        # a date stays in one line, however narrow the column
        dates = [e.date.replace(" ", "\N{NO-BREAK SPACE}") for e in self]
        rows = [(f"[{i}]", dates[i], e.state, _reason(e)) for i, e in enumerate(self)]
        known = f"fuselab.edits({self.name!r})"
        more = f"{known}[-1].text is the latest text; fuselab.edit({self.name!r}, text) tries one"
        return Table(
            ("", "tried", "became", "because"),
            rows,
            f"no text was tried for a kernel named {self.name!r}",
            more if rows else "",
        )

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # IPython has a way of its own with tuples, which goes before the form for any terminal.
        printer.text(fitted(repr(self.table), terminal_width()))

    def _repr_html_(self) -> str:
        return str(self.table._repr_mimebundle_()["text/html"])


def _reason(edit: Edit) -> str:
    verdict = edit.verdict
    if verdict is None or verdict.line is None:
        return edit.reason
    return f"line {verdict.line} of its text: {verdict.bare or verdict.reason}"
