"""A page about one subject: as text for a terminal, as HTML for a notebook."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from fusec.inspect.terminal import fitted, terminal_width
from fuselab.display.render import columns
from fuselab.display.style import Style, themed

MOST_UNBROKEN = 20  # letters: an index or a shape stays in one line


@dataclass(frozen=True)
class Page:
    """What ``%fuse_report --show`` returns.

    Attributes:
        text: For a terminal.
        html: Static HTML that survives an untrusted notebook; made from the text where empty.
    """

    text: str
    html: str = ""

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> Mapping[str, Any]:
        """Return the forms that a notebook and a terminal show."""
        html = self.html or f'<pre style="{Style.mono}">{escape(self.text)}</pre>'
        page = themed(f'<div style="{Style.box}">{html}</div>')
        return {"text/plain": fitted(self.text, terminal_width()), "text/html": page}


def svg_image(svg: str, alt: str) -> str:
    """Return an ``<img>`` with an SVG inside; JupyterLab keeps it in untrusted notebooks."""
    data = base64.b64encode(svg.encode()).decode()
    look = "background:#ffffff;max-width:100%"
    return f'<img alt="{escape(alt)}" style="{look}" src="data:image/svg+xml;base64,{data}">'


def static_table(head: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1) -> str:
    """Return a static HTML table.

    Args:
        head: Of the columns.
        rows: Their texts.
        text: How many columns at the left are text; the others are figures.
    """
    if not rows:
        return ""

    def cells(row: Sequence[str]) -> str:
        return "".join(
            f'<td style="{_look(cell) if n < text else Style.number}">{escape(cell)}</td>'
            for n, cell in enumerate(row)
        )

    names = "".join(
        f'<th style="{Style.th if n < text else Style.number_head}">{escape(name)}</th>'
        for n, name in enumerate(head)
    )
    body = "".join(f'<tr style="{Style.tr}">{cells(row)}</tr>' for row in rows)
    return (
        f'<table style="{Style.table}"><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>'
    )


def _look(cell: str) -> str:
    return Style.td if len(cell) > MOST_UNBROKEN else f"{Style.td};white-space:nowrap"


def indented(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows in columns, two spaces in."""
    return [f"  {line}" for line in columns(rows)] if rows else []


def picture(encoded: str, alt: str) -> str:
    """Return an ``<img>`` with its data inside; JupyterLab keeps it in untrusted notebooks."""
    look = "background:#ffffff;max-width:100%;width:640px;display:block;margin-top:6px"
    return f'<img alt="{alt}" style="{look}" src="data:image/png;base64,{encoded}">'
