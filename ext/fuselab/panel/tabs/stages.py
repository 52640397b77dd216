"""The Stages tab: every text between the cell and machine code, its time, and what changed."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from fuselab.display import words
from fuselab.display.pages.stages import StageView, side_by_side, stage_views, time_rows
from fuselab.panel.context import Bench
from fuselab.panel.tabs.lazy import LazyTab, problem_or
from fuselab.panel.widgets import markup, plain
from fuselab.panel.widgets.code import cell_lines, diff_listing, listing
from fuselab.panel.widgets.picture import Picture

NONE = ""
SAVE = "save"


class StagesTab(LazyTab):
    """One stage, or two side by side."""

    title = "Stages"
    drawn_locked = False

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._views: list[StageView] = []
        self._filling = False
        self._shown: object = None

    def make(self) -> list[Any]:
        """Return the choice of stages, the texts, and where to save all of it."""
        self._views, self._shown = [], None
        self.left = plain.choice("Stage")
        self.right = plain.choice("beside")
        self.changes = plain.switch("only what changed")
        for control in (self.left, self.right, self.changes):
            control.observe(self._choose, "value")
        self.times = plain.html()
        self.picture = Picture(kept=False)
        self.folder = plain.line("Save all to", f"fuselab-{self._bench.cell.name}")
        self.save = plain.button(
            "Save", "Write every stage, kernel and a runnable repro there", "save"
        )
        self.save.on_click(lambda _: self.start_save())
        self.note = plain.html()
        return [
            self.times,
            plain.row([self.left, self.right, self.changes], grid_gap="0 12px"),
            self.picture,
            plain.row([self.folder, self.save], grid_gap="0 12px"),
            self.note,
        ]

    def start_save(self) -> None:
        """Write everything to the folder that is named."""
        folder = str(self.folder.value).strip() or "."

        def job() -> None:
            cell: Any = self._bench.cell
            place = Path(cell.save(folder))
            with self._bench.state:
                self._bench.say(f"Saved to {place}", SAVE)

        self._bench.do("Saving", job, SAVE)

    def _choose(self, _change: dict[str, Any]) -> None:
        with self._bench.state:
            if not self._filling:
                self._bench.worker.submit(self.draw, "draw")

    # --- what is shown ----------------------------------------------------------------------

    def draw(self) -> None:
        """Read the chosen stages, which may compile, and show them."""
        with self._bench.cell.lock:
            views = stage_views(self._bench.cell)
            times = time_rows(self._bench.cell)
        with self._bench.state:
            self._fill(views)
            self.times.value = times_html(times)
            chosen = (self.left.value, self.right.value, self.changes.value)
        left, right = (next((v for v in views if v.key == key), None) for key in chosen[:2])
        if left is None:
            return
        try:
            texts = [v.read() if v else None for v in (left, right)]
        except Exception as error:
            # A form that this machine has no tool for is no failure of the panel.
            with self._bench.state:
                self._shown = None
                self.picture.write(markup.notice([str(error).partition("\n")[0]], markup.BAD))
            return
        if (chosen, texts) == self._shown:
            return
        with self._bench.cell.lock:  # not beside somebody's measurement
            html = self._listing(left, right, texts, only_changes=bool(chosen[2]))
        with self._bench.state:
            self._shown = (chosen, texts)
            self.picture.write(html)

    def _listing(
        self,
        left: StageView,
        right: StageView | None,
        texts: list[str | None],
        *,
        only_changes: bool,
    ) -> str:
        first, second = texts[0] or "", texts[1]
        if right is None or second is None:
            return self._one(left, first)
        if only_changes:
            return diff_listing(side_by_side(first, second), left.language)
        return (
            f"<div class='fuselab-beside'>{self._one(left, first)}{self._one(right, second)}</div>"
        )

    def _one(self, view: StageView, text: str) -> str:
        if view.key == "source":
            # Line 1 of a cell is %%fuse; a function's source begins at its own first line.
            skip = 1 if getattr(self._bench.cell, "plan", None) is not None else 0
            links = {n: n + skip for n in range(1, text.count("\n") + 2)}
            return listing(text, view.language, links, skip)
        return listing(text, view.language, cell_lines(text, view.origins))

    def _fill(self, views: list[StageView]) -> None:
        if views == self._views:
            return
        self._views = views
        self._filling = True
        options = [(_label(view), view.key) for view in views]
        for control, empty, wanted in (
            (self.left, [], "lower"),
            (self.right, [("nothing", NONE)], "schedule"),
        ):
            before = control.value
            control.options = [*empty, *options]
            keys = [key for _, key in control.options]
            start = next((v.key for v in views if v.stage == wanted), keys[0] if keys else None)
            control.value = before if before in keys else start
        self._filling = False

    def refresh(self) -> None:
        """Show what became of saving."""
        bench = self._bench
        value = markup.notice([bench.note], markup.GOOD) if bench.noted_by == SAVE else ""
        if bench.problem or bench.job == SAVE:
            value = problem_or(self._bench, value)
        self.note.value = value


def _label(view: StageView) -> str:
    return view.title if view.seconds is None else f"{view.title} ({words.duration(view.seconds)})"


def times_html(rows: list[tuple[str, float, str]]) -> str:
    """Draw what each stage took as a bar of one line a stage, beside its figures."""
    if not rows:
        return "Nothing was compiled yet: run the cell first."
    whole = sum(seconds for _, seconds, _ in rows)
    total = words.duration(whole)
    body = "".join(
        f"<tr><td style='padding:0 14px 0 0'>{escape(title)}</td>"
        f"<td style='text-align:right;padding:0 14px 0 0'>{words.duration(seconds)}</td>"
        f"<td style='text-align:right;padding:0 8px 0 0'>{escape(share)}</td>"
        "<td style='width:12em'><div style='height:0.7em;min-width:1px;"
        f"width:{100 * seconds / (whole or 1):.1f}%;"
        "background:var(--jp-brand-color1,#2f6db5)'></div></td></tr>"
        for title, seconds, share in rows
    )
    return (
        f"<details><summary>Compiled in {total}: where the time went</summary>"
        "<table style='border-collapse:collapse;font-variant-numeric:tabular-nums'>"
        f"{body}</table></details>"
    )
