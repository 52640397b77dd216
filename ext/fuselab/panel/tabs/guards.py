"""The Guards and breaks tab: in words, with the cell's lines; compilations as a timeline."""

from __future__ import annotations

from html import escape
from typing import Any

from fuselab.display import words
from fuselab.display.pages import guards
from fuselab.panel.tabs.lazy import LazyTab
from fuselab.panel.widgets import markup, plain


class GuardsTab(LazyTab):
    """Everything that decides when compiled code runs and when it is compiled again."""

    title = "Guards and breaks"

    def make(self) -> list[Any]:
        """Return the one text that it is."""
        self.text = plain.html()
        return [self.text]

    def draw(self) -> None:
        """Read the cell and show what is there."""
        with self._bench.cell.lock:
            value = guards_html(self._bench.cell)
        with self._bench.state:
            self.text.value = value


def guards_html(cell: Any) -> str:
    """Write breaks, timeline and guards of a cell as HTML for the panel."""
    html = [f"<div>{escape(guards.head(cell))}</div>"]
    rows = guards.break_rows(cell.breaks, cell.filename)
    for found, (where, reason, hint) in zip(cell.breaks, rows, strict=True):
        place = where or "a line of a library"
        if found.expected:
            lines = [f"Python runs at {place}, as it should", reason]
            hint = ""
        else:
            lines = [f"Capture stops at {place}", reason]
        # Where there is nothing to mend nothing is wrong.
        color = markup.QUIET if found.expected else markup.BAD
        html.append(markup.notice([*lines, f"To mend it: {hint}"] if hint else lines, color))
    compilations = guards.timeline(cell)
    if compilations:
        html += [_heading("Compilations"), timeline_html(compilations)]
    held = guards.guard_rows(cell.guards, cell.filename)
    if held:
        html.append(_heading("It is used again as long as"))
        shown = [list(row) for row in held[: guards.MOST_GUARDS]]
        html.append(markup.texts(["This holds", "Because of"], shown))
        if len(held) > len(shown):
            html.append(f"<div>and {len(held) - len(shown)} more</div>")
    return "".join(html)


def _heading(text: str) -> str:
    return f"<div style='margin:8px 0 2px;font-weight:600'>{escape(text)}</div>"


def timeline_html(found: list[guards.CellCompilation]) -> str:
    """Draw compilations one below the other, each bar where the one before ended."""
    total = sum(each.seconds for each in found) or 1.0
    rows, start = [], 0.0
    for number, each in enumerate(found, 1):
        what = f"{each.graph}, {words.duration(each.seconds)}" if each.graph else "runs in eager"
        hint = (
            f"<div style='opacity:0.75'>To avoid it: {escape(each.hint)}</div>" if each.hint else ""
        )
        color = "var(--jp-warn-color1,#f57c00)" if each.hint else "var(--jp-brand-color1,#2f6db5)"
        bar = (
            f"<div style='margin-left:{100 * start / total:.1f}%;min-width:2px;height:0.8em;"
            f"width:{100 * each.seconds / total:.1f}%;background:{color}'></div>"
        )
        rows.append(
            "<tr style='vertical-align:baseline'>"
            f"<td style='padding:0 8px 4px 0;text-align:right'>{number}</td>"
            f"<td style='padding:0 12px 4px 0;white-space:nowrap'>{escape(what)}</td>"
            f"<td style='padding:0 12px 4px 0;width:10em'>{bar}</td>"
            f"<td style='padding:0 0 4px'>{escape(each.why)}{hint}</td></tr>"
        )
        start += each.seconds
    return f"<table style='border-collapse:collapse'>{''.join(rows)}</table>"
