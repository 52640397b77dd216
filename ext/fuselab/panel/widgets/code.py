"""Source text as HTML for the panel: colors by the theme, lines linked to the cell's lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape

from fuselab.display.pages.stages import DiffRow, Language

# What is shown is saved with the notebook: the rest is one click away, in a file.
MOST_LINES = 300
_LINE = re.compile(r"(?:#|//).*?\bline (\d+)")


def colored(text: str, language: Language) -> list[str]:
    """Return the lines of a text as escaped HTML with classes for its tokens."""
    if language == "text":
        return [escape(line) for line in text.splitlines()]
    import pygments  # type: ignore[import-untyped]
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
    from pygments.lexers import CppLexer, PythonLexer  # type: ignore[import-untyped]

    lexer = (CppLexer if language == "cpp" else PythonLexer)(stripnl=False, ensurenl=False)
    html = pygments.highlight(text, lexer, HtmlFormatter(nowrap=True, classprefix="fl-"))
    return [str(line) for line in html.split("\n")[: len(text.splitlines())]]


def cell_lines(text: str, origins: Mapping[int, Sequence[int]] | None = None) -> dict[int, int]:
    """Return which cell line each line of a text comes from, as far as that is known.

    Args:
        text: A stage's text; its comments name cell lines.
        origins: Line to cell lines, where somebody knows better.
    """
    if origins:
        return {line: places[0] for line, places in origins.items() if places}
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _LINE.search(line):
            found[number] = int(match[1])
    return found


def listing(text: str, language: Language, links: Mapping[int, int], skip: int = 0) -> str:
    """Return a text with line numbers; lines of the same cell line light up together.

    Args:
        text: What to show; at most ``MOST_LINES`` lines are.
        language: How to color it.
        links: Line, from 1, to the cell's line.
        skip: What the first line's number is more than 1: a cell's code begins below ``%%fuse``.
    """
    shown = "\n".join(text.split("\n", MOST_LINES)[:MOST_LINES])
    rows = [
        _line(number + skip, html, links.get(number))
        for number, html in enumerate(colored(shown, language), 1)
    ]
    count = len(text.splitlines())
    if count > MOST_LINES:
        rows.append(f"<div class='fuselab-more'>… {count - MOST_LINES} more lines</div>")
    return f"<div class='fuselab-code' tabindex='0'>{''.join(rows)}</div>"


def _line(number: int, html: str, link: int | None) -> str:
    mark = f" data-link='{link}' title='line {link}'" if link is not None else ""
    return f"<div{mark}><span class='fuselab-no'>{number}</span>{html}</div>"


def diff_listing(rows: Sequence[DiffRow | int], language: Language) -> str:
    """Return two texts side by side, what changed in color."""
    left = colored("\n".join(r.left[1] if isinstance(r, DiffRow) and r.left else "" for r in rows),
                   language)  # fmt: skip
    right = colored(
        "\n".join(r.right[1] if isinstance(r, DiffRow) and r.right else "" for r in rows), language
    )
    html = []
    for n, row in enumerate(rows[:MOST_LINES]):
        if isinstance(row, int):
            html.append(f"<tr><td colspan='2' class='fuselab-more'>… {row} equal lines</td></tr>")
            continue
        cells = []
        for side, texts, kind in ((row.left, left, "gone"), (row.right, right, "new")):
            look = f" class='fuselab-{kind}'" if row.changed and side else ""
            inner = ""
            if side is not None:
                inner = (
                    f"<span class='fuselab-no'>{side[0]}</span>{texts[n] if n < len(texts) else ''}"
                )
            cells.append(f"<td{look}>{inner}</td>")
        html.append(f"<tr>{''.join(cells)}</tr>")
    if len(rows) > MOST_LINES:
        html.append(f"<tr><td class='fuselab-more'>… {len(rows) - MOST_LINES} more rows</td></tr>")
    return f"<div class='fuselab-code' tabindex='0'><table>{''.join(html)}</table></div>"
