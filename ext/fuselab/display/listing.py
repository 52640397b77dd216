"""A kernel's text as static HTML: highlighted, numbered, beside the cell's lines it computes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import starmap
from typing import TYPE_CHECKING, Any

from fusec.report import SourceLine
from fusec.target_api.registry import find_target
from fuselab.display import words
from fuselab.display.kernel_text import extent_of
from fuselab.display.line_counts import details_of, share_of
from fuselab.display.source_lines import cost_color
from fuselab.display.style import Style

if TYPE_CHECKING:
    from fusec.timing.line_counts import LineCounts

# A notebook with many long kernels stays a notebook; the files are where --save puts them.
MOST_LINES = 400


@dataclass(frozen=True)
class Listing:
    """Lines of a kernel, ready for a template: three columns, a text each.

    An element a line, with its looks, would be ten times the text; a notebook with ten results
    would be megabytes.

    Attributes:
        numbers: The lines' numbers, 1-based, a line each; one at fault has an arrow.
        origins: The cell lines that they compute, named where a run of them begins; empty where
            none is known. Safe HTML.
        html: The highlighted text, safe HTML.
        count: How many lines there are.
        costs: Each line's share of the time, where that was looked at; safe HTML.
    """

    numbers: str
    origins: Any
    html: Any
    count: int
    costs: Any = ""


@dataclass(frozen=True)
class KernelListing:
    """A kernel's file in three pieces, of which the kernel itself is shown and the rest folded.

    Attributes:
        head: What stands before it: what it reads and writes, its tunables; None for nothing.
        body: The kernel.
        tail: What stands behind it: what it calls, how it is launched; None for nothing.
        left_out: How many lines are in none of them.
    """

    head: Listing | None
    body: Listing
    tail: Listing | None
    left_out: int


def kernel_listing(kernel: Any, filename: str, most: int = MOST_LINES) -> KernelListing:
    """Return a kernel's source with the lines of the cell that its lines come from.

    Args:
        kernel: A ``KernelView``.
        filename: The cell's; lines of other files are named with theirs.
        most: How many lines to show: of the body first.
    """
    lines = highlight(kernel.source, kernel.target)
    extent = extent_of(kernel.source, kernel.target)
    last = min(extent.last, extent.first - 1 + most)

    def piece(first: int, last: int) -> Listing:
        made = _piece(lines, first, last, kernel.origins, filename)
        return replace(made, costs=_costs(kernel.counts, first, last))

    body = piece(extent.first, last)
    rest = most - (last - extent.first + 1)
    head = tail = None
    if extent.first > 1 and extent.first - 1 <= rest:
        head = piece(1, extent.first - 1)
        rest -= extent.first - 1
    if last == extent.last < len(lines) and len(lines) - last <= rest:
        tail = piece(last + 1, len(lines))
    shown = sum(each.count for each in (head, body, tail) if each is not None)
    return KernelListing(head, body, tail, len(lines) - shown)


def _costs(counts: LineCounts | None, first: int, last: int) -> Any:
    """Return the column of shares of some lines, darker the more; empty where none has one."""
    from markupsafe import Markup

    if counts is None or counts.missing:
        return ""
    shown: list[Any] = []
    for number in range(first, last + 1):
        line = counts.lines.get(number)
        share = share_of(line)
        if line is None or not share:
            shown.append("")
            continue
        look = f"background:{cost_color(line.share)};color:#111"
        title = details_of(line, counts.what)
        shown.append(Markup("<span style='{}' title='{}'>{}</span>").format(look, title, share))
    return Markup("\n").join(shown) if any(shown) else ""


def _piece(
    lines: Sequence[Any],
    first: int,
    last: int,
    known: Mapping[int, tuple[SourceLine, ...]],
    filename: str,
) -> Listing:
    """Return some lines, each that computes something with a class that says for which line."""
    from markupsafe import Markup

    origins: list[Any] = []
    shown: list[Any] = []
    before = ""
    for number in range(first, last + 1):
        places = known.get(number, ())
        origin = words.gutter_of(places, filename)
        if origin and origin != before:
            title = "; ".join(words.where(place, filename) for place in places)
            origins.append(Markup("<span title='{}'>{}</span>").format(title, origin))
        else:
            origins.append("│" if origin else "")
        before = origin
        files = sorted({(p.file if p.file != filename else "", p.line) for p in places})
        marks = " ".join(words.line_class(*place) for place in files)
        text = lines[number - 1]
        shown.append(Markup("<span class='{}'>{}</span>").format(marks, text) if marks else text)
    return Listing(
        "\n".join(str(number) for number in range(first, last + 1)),
        Markup("\n").join(origins) if any(origins) else "",
        Markup("\n").join(shown),
        last - first + 1,
    )


def lines_listing(lines: Sequence[Any], numbers: Sequence[int], most: int = 60) -> Listing:
    """Return some lines of a kernel, wherever they are: those that compute a line of the cell.

    Args:
        lines: All of the kernel's, as ``highlight`` returns them: once for all lines of the cell.
        numbers: Which, from 1.
        most: How many are shown.
    """
    from markupsafe import Markup

    wanted = [number for number in sorted(numbers) if number <= len(lines)][:most]
    numbered: list[str] = []
    shown: list[Any] = []
    for before, number in zip([0, *wanted], wanted, strict=False):
        if before and number > before + 1:
            numbered.append("")
            shown.append(Markup("<i style='color:#777'>⋮</i>"))
        numbered.append(str(number))
        shown.append(lines[number - 1])
    return Listing("\n".join(numbered), "", Markup("\n").join(shown), len(wanted))


def marked_listing(
    text: str, target: str, bad: int | None, around: int = 3, offset: int = 0
) -> Listing | None:
    """Return the lines near the one at fault.

    Args:
        text: The kernel's file.
        target: The name of its target.
        bad: The line at fault.
        around: How many lines to show before and after it.
        offset: Added to a line's number to get the one that the gutter shows.
    """
    from markupsafe import Markup

    if bad is None:
        return None
    lines = highlight(text, target)
    first, last = max(1, bad - around), min(len(lines), bad + around)
    look = Markup("<span style='{}'>{}</span>")
    shown = [
        look.format(Style.code_bad, lines[n - 1]) if n == bad else lines[n - 1]
        for n in range(first, last + 1)
    ]
    numbers = [f"→ {n + offset}" if n == bad else str(n + offset) for n in range(first, last + 1)]
    return Listing("\n".join(numbers), "", Markup("\n").join(shown), len(shown))


def highlight(text: str, target: str) -> list[Any]:
    """Return source text as safe HTML lines with inline colors."""
    from markupsafe import Markup
    from pygments.lexers import CppLexer, PythonLexer  # type: ignore[import-untyped]

    python = find_target(target).language == "python"
    lexer = PythonLexer(stripnl=False) if python else CppLexer(stripnl=False)
    lines: list[list[tuple[str, str]]] = [[]]  # pieces of one look each: its tag, the text
    for kind, value in lexer.get_tokens(text):
        tag = _look(kind)
        for number, piece in enumerate(value.split("\n")):
            if number:
                lines.append([])
            line = lines[-1]
            if line and piece and (line[-1][0] == tag or piece.isspace()):
                line[-1] = (line[-1][0], line[-1][1] + piece)
            elif piece:
                line.append((tag, piece))
    return [Markup("".join(starmap(_colored, line))) for line in lines[: len(text.splitlines())]]


def _colored(tag: str, text: str) -> str:
    """Return a piece of a line as safe HTML."""
    safe = escape(text, quote=False)
    return f"<{tag}>{safe}</{tag.partition(' ')[0]}>" if tag else safe


@functools.cache
def _look(kind: Any) -> str:
    """Return the tag for a kind of token; empty for what is left as it is.

    Colors that read well on #fafafa: at least 4.5:1 each.
    """
    from pygments.token import (  # type: ignore[import-untyped]
        Comment,
        Keyword,
        Name,
        Number,
        String,
    )

    looks = {
        Comment: "i style='color:#575'",
        Comment.Preproc: "span style='color:#739'",
        Comment.PreprocFile: "span style='color:#739'",
        Keyword: "span style='color:#049'",
        Keyword.Type: "span style='color:#739'",
        Name.Function: "span style='color:#640'",
        Name.Decorator: "span style='color:#739'",
        Number: "span style='color:#a30'",
        String: "span style='color:#162'",
    }
    while kind is not None:
        if kind in looks:
            return looks[kind]
        kind = kind.parent
    return ""
