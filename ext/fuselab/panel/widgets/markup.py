"""Facts as HTML for the plain widgets: every text is escaped, in one place."""

from __future__ import annotations

from html import escape

from fusec.report import Verdict
from fuselab.display import words

# The theme's own colors; the fallbacks are for frontends other than JupyterLab.
GOOD = "var(--jp-success-color1, #388e3c)"
BAD = "var(--jp-error-color1, #d32f2f)"
QUIET = "var(--jp-border-color1, #bdbdbd)"


def verdict_lines(verdict: Verdict, *, compared_alone: bool = False) -> list[str]:
    """Return the verdict as lines of plain text, the outcome first; see ``words.time_line``."""
    head = "Passed" if verdict.ok else words.REFUSALS.get(verdict.stage, "Refused")
    where = f"line {verdict.line}: " if verdict.line and not verdict.bare else ""
    if verdict.bare:
        head = "Refused"  # the reason says how
    rest = (words.error_line(verdict), words.time_line(verdict, compared_alone=compared_alone))
    return [f"{head} – {where}{verdict.reason}", *(_sentence(line) for line in rest if line)]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def notice(lines: list[str], color: str, details: str = "", faded: bool = False) -> str:
    """Return lines as an HTML notice with a colored edge.

    Args:
        lines: The first is set bold.
        color: A CSS color.
        details: Long text to fold away.
        faded: Whether it speaks of a text that has changed since.
    """
    body = [f"<b>{escape(lines[0])}</b>", *(escape(line) for line in lines[1:])]
    folded = (
        "<details><summary>Full output</summary><pre style='margin:4px 0 0;max-height:16em;"
        f"overflow:auto;white-space:pre-wrap'>{escape(details)}</pre></details>"
        if details.strip()
        else ""
    )
    return (
        f"<div style='border-left:3px solid {color};padding:1px 8px;margin:2px 0 6px;"
        f"overflow-wrap:anywhere;opacity:{0.6 if faded else 1}'>{'<br>'.join(body)}{folded}</div>"
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return an HTML table; the first column is text, the rest figures."""
    return texts(head, rows, 1)


def texts(head: list[str], rows: list[list[str]], text: int | None = None) -> str:
    """Return an HTML table.

    Args:
        head: Of the columns, each begun with a capital.
        rows: Their texts.
        text: How many columns at the left are text; the others are figures. All if None.
    """
    text = len(head) if text is None else text
    head = [_sentence(name) for name in head]

    def row(cells: list[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if i >= text else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )

    # Its looks are in editor.css: said at each place, they would be most of a saved notebook.
    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    return (
        f"<table class='fuselab-table'><thead><tr>{row(head, 'th')}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )
