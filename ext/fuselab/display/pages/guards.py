"""What stopped capture, what compiled code relies on, and why it was compiled again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from fusec.report import GraphBreak, Guard, Recompile
from fuselab.display import words
from fuselab.display.pages.page import Page, indented, static_table

MOST_GUARDS = 60


@dataclass(frozen=True)
class CellCompilation:
    """One compilation of a cell, for the timeline.

    Attributes:
        graph: Name of the graph; empty where none was made.
        seconds: How long it took.
        why: What made it necessary.
        hint: How to avoid it; empty for the first.
    """

    graph: str
    seconds: float
    why: str
    hint: str = ""


def timeline(cell: Any) -> list[CellCompilation]:
    """Return every compilation of a cell in order, with what made it necessary."""
    reasons: dict[str, Recompile] = {}
    of_no_graph: list[Recompile] = []
    for each in cell.recompiles:
        if each.graph:
            reasons[each.graph] = each
        else:
            of_no_graph.append(each)
    found = []
    for number, graph in enumerate(cell.graphs):
        reason = reasons.get(graph.name)
        why = "first call" if number == 0 else "a further graph: behind a break, or a function"
        if reason is not None:
            why = reason.text
        hint = reason.hint if reason is not None else ""
        found.append(CellCompilation(graph.name, graph.seconds, why, hint))
    return found + [CellCompilation("", 0.0, each.text, each.hint) for each in of_no_graph]


def break_rows(breaks: Sequence[GraphBreak], file: str) -> list[tuple[str, str, str]]:
    """Return a row a graph break: where, why, and how to mend it."""
    return [(words.where(b.where, file), b.reason, b.hint) for b in breaks]


def guard_rows(guards: Sequence[Guard], file: str) -> list[tuple[str, str]]:
    """Return a row a guard: what must hold, and the line that relies on it."""
    return [(g.text, words.where(g.where, file)) for g in guards]


def timeline_rows(found: Sequence[CellCompilation]) -> list[tuple[str, str, str, str]]:
    """Return a row a compilation."""
    return [
        (
            str(n),
            f"{each.graph} in {words.duration(each.seconds)}" if each.graph else "runs in eager",
            each.why,
            each.hint,
        )
        for n, each in enumerate(found, 1)
    ]


def head(cell: Any) -> str:
    """Say in one line what there is."""
    pauses = sum(each.expected for each in cell.breaks)
    return ", ".join(
        (
            words.count(len(cell.graphs), "graph"),
            words.count(len(cell.breaks) - pauses, "graph break"),
            *([f"{words.count(pauses, 'place')} where Python runs as it should"] if pauses else []),
            words.count(len(cell.guards), "guard"),
            f"compiled again {words.count(len(cell.recompiles), 'time')}"
            if cell.recompiles
            else "never compiled again",
        )
    )


def guards_page(cell: Any) -> Page:
    """Return the static page about a cell's breaks, guards and compilations."""
    title = f"{cell.name}: {head(cell)}"
    breaks = break_rows(cell.breaks, cell.filename)
    guards = guard_rows(cell.guards, cell.filename)[:MOST_GUARDS]
    again = timeline_rows(timeline(cell))
    lines = [title]
    html = [f"<div><b>{escape(title)}</b></div>"]
    for name, columns, rows, text in (
        ("capture stops at", ("line", "why", "to mend it"), breaks, 3),
        ("compilations", ("", "what", "why", "to avoid it"), again, 4),
        ("used again as long as", ("this holds", "line"), guards, 2),
    ):
        if rows:
            lines += ["", f"{name}:", *indented([columns, *rows])]
            html += [f"<div>{escape(name)}</div>", static_table(columns, rows, text)]
    more = len(cell.guards) - len(guards)
    if more > 0:
        lines.append(f"  and {more} more")
        html.append(f"<div>and {more} more</div>")
    return Page("\n".join(lines), "".join(html))
