"""Snapshots to text and HTML: pure functions, a Jinja template a kind of result.

The HTML survives an untrusted notebook, where JupyterLab strips ``<style>``, ``<script>`` and
inline ``<svg>``: all looks are literal inline styles, and every box sets its own background
*and* its own text color, so that it reads the same in a light and in a dark theme.
"""

from __future__ import annotations

import functools
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import starmap
from typing import Any

from fusec.devices import CPU
from fusec.report import (
    ExternCall,
    FusionDecision,
    GraphBreak,
    Guard,
    Recompile,
    SourceLine,
    Timing,
    TuningRun,
    Verdict,
    compile_line,
)
from fusec.target_api.registry import default_target, find_target
from fuselab.display import words

HEAD_LINES = 12
# A notebook with many long kernels stays a notebook; the files are where --save puts them.
MOST_LINES = 400
MOST_ROWS = 60


@dataclass(frozen=True)
class KernelView:
    """A kernel as a result shows it.

    Attributes:
        name: What the user types after ``%%kernel``.
        target: The name of its target.
        state: ``generated``, ``tuned`` or ``edited``.
        summary: A few words on what it computes.
        lines: The cell lines it computes: ``lines 3-5``.
        moved: Bytes it must read and write; -1 where unknown.
        time: Of the kernel alone.
        source: The text in use.
        origins: Kernel line to cell lines, both 1-based; empty for an edited text.
    """

    name: str
    target: str
    state: str
    summary: str
    lines: str
    moved: int
    time: Timing | None
    source: str = field(repr=False)
    origins: Mapping[int, tuple[SourceLine, ...]] = field(default_factory=dict, repr=False)

    @property
    def head(self) -> list[str]:
        """The first lines of the source."""
        return self.source.splitlines()[:HEAD_LINES]


@dataclass(frozen=True)
class Summary:
    """Everything that the static forms of a result show, frozen at one moment."""

    name: str
    filename: str
    kernels: tuple[KernelView, ...]
    graphs: int
    eager: Timing | None
    fused: Timing | None
    others: Mapping[str, Timing]
    verdict: Verdict | None
    breaks: tuple[GraphBreak, ...]
    externs: tuple[ExternCall, ...]
    fallbacks: tuple[str, ...]
    guards: tuple[Guard, ...]
    recompiles: tuple[Recompile, ...]
    kept: tuple[str, ...]
    fusions: tuple[FusionDecision, ...]
    stages: tuple[tuple[str, float], ...]
    plan: str
    notes: tuple[str, ...]
    device: str
    pending: tuple[str, ...] = ()

    @property
    def max_error(self) -> float | None:
        """Largest error against eager over all outputs; None where nothing was compared."""
        return self.verdict.max_error if self.verdict and self.verdict.outputs else None

    @property
    def facts(self) -> list[str]:
        """How many kernels there are, what else there is, and how fast it is."""
        parts = [words.count(len(self.kernels), "kernel")]
        if self.externs:
            parts.append(words.count(len(self.externs), "extern call"))
        if self.breaks:
            parts.append(words.count(len(self.breaks), "graph break"))
        if self.eager and self.fused:
            faster = words.against(self.fused.median, self.eager.median)
            eager, fused = words.duration(self.eager.median), words.duration(self.fused.median)
            parts.append(f"eager {eager}, fused {fused} ({faster})")
        return parts

    @property
    def headline(self) -> str:
        """What a reader wants to know first, in one line."""
        parts = self.facts
        if self.verdict is not None:
            word = "checked" if self.verdict.ok else "WRONG"
            found = f", {words.error_line(self.verdict)}" if self.verdict.outputs else ""
            parts.append(f"{word}{found}" if self.verdict.ok else f"{word}: {self.verdict.reason}")
        return "; ".join(parts)


def summary_text(summary: Summary) -> str:
    """Write a result for a terminal."""
    lines = [f"{summary.name}: {summary.headline}"]
    for name, timing in summary.others.items():
        lines.append(f"  {name}: {words.spread(timing)}")
    if summary.stages:
        lines.append(f"  {compile_line(dict(summary.stages))}")
    if summary.kernels:
        rows = [("kernel", "target", "time", "moves", "rate", "what")]
        for kernel in summary.kernels:
            what = ", ".join(part for part in (kernel.summary, kernel.lines) if part)
            rows.append(
                (
                    kernel.name + ("" if kernel.state == "generated" else f" ({kernel.state})"),
                    kernel.target,
                    words.duration(kernel.time.median) if kernel.time else "–",
                    words.size(kernel.moved),
                    words.rate(kernel.moved, kernel.time.median) if kernel.time else "",
                    what,
                )
            )
        lines += [f"  {line}" for line in columns(rows)]
    for call, count in Counter(summary.externs).items():
        times = f" {count} times" if count > 1 else ""
        lines.append(f"  extern  {_located(call.name, call.where, summary)}{times}: {call.reason}")
    for item in summary.breaks:
        hint = f" – {item.hint}" if item.hint else ""
        lines.append(f"  break   {_located(item.reason, item.where, summary)}{hint}")
    lines += [f"  eager   {reason}" for reason in summary.fallbacks]
    lines += [f"  again   {item}" for item in summary.recompiles]
    for text in summary.kept:
        lines += textwrap.wrap(text, 96, initial_indent="  kept    ", subsequent_indent=" " * 10)
    if summary.pending:
        lines.append(f"  compiled at the first call: {', '.join(summary.pending)}")
    for note in summary.notes:
        lines += textwrap.wrap(note, 96, initial_indent="  note    ", subsequent_indent=" " * 10)
    for label, said in _folded(summary):
        start = f"  {label:<8}"
        lines += textwrap.wrap(said, 96, initial_indent=start, subsequent_indent=" " * 10)
    for kernel in summary.kernels[:1]:
        lines += ["", f"{kernel.name} ({kernel.target}, {kernel.state}), first lines:"]
        lines += [f"{i:4d}  {line}".rstrip() for i, line in enumerate(kernel.head, 1)]
        if len(kernel.source.splitlines()) > HEAD_LINES:
            lines.append("      ...")
    return "\n".join(lines)


def _folded(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield what a page folds away: a word and a text each."""
    if summary.eager and summary.fused:
        times = f"eager {words.spread(summary.eager)}, fused {words.spread(summary.fused)}"
        yield "times", f"{times}: {summary.fused.method}. {summary.device}."
    more = f"%fuse_report {summary.name} --show"
    if summary.fusions:
        made = words.count(sum(each.fused for each in summary.fusions), "fusion")
        apart = sum(not each.fused for each in summary.fusions)
        rest = f", {apart} not made" if apart else ""
        yield "fusion", f"{made} made{rest}: {more} fusion has the reasons"
    if summary.guards:
        guards = words.count(len(summary.guards), "guard")
        yield "guards", f"{guards} on using it again: {more} guards has them in words"


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return a result as data (``application/vnd.fuselab.result+json``)."""
    outputs = summary.verdict.outputs if summary.verdict else ()
    far = max(outputs, key=lambda output: output.against_eager, default=None)
    return {
        "name": summary.name,
        "kernels": [
            {"name": k.name, "target": k.target, "state": k.state, "head": k.head}
            for k in summary.kernels
        ],
        "eager_ms": summary.eager.milliseconds if summary.eager else None,
        "fused_ms": summary.fused.milliseconds if summary.fused else None,
        "others_ms": {name: timing.milliseconds for name, timing in summary.others.items()},
        "max_error": summary.max_error,
        "error_of": far.name if far else None,
        "ok": summary.verdict.ok if summary.verdict else None,
        "breaks": [f"{_located(b.reason, b.where, summary)}" for b in summary.breaks],
        "externs": [f"{_located(e.name, e.where, summary)}: {e.reason}" for e in summary.externs],
        "fallbacks": list(summary.fallbacks),
        "notes": list(summary.notes),
        "stages_s": dict(summary.stages),
    }


def _located(text: str, place: SourceLine | None, summary: Summary) -> str:
    spot = words.where(place, summary.filename)
    return f"{text} ({spot})" if spot else text


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows of text in columns, all but the last one padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


# --- HTML ------------------------------------------------------------------------------------


_LINES = (
    "border:0;margin:0;padding:0;white-space:pre;overflow:visible;"
    "font:12px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
)


class Style:
    """Literal looks, by role; the templates name them."""

    box = (
        "background:#fff;color:#111;border:1px solid #d0d0d0;border-radius:4px;"
        "padding:8px 12px;font:13px/1.45 system-ui,-apple-system,'Segoe UI',sans-serif;"
        "max-width:1100px;overflow-x:auto;text-align:left"
    )
    table = (
        "border-collapse:collapse;background:#fff;color:#111;font-size:12px;margin:6px 0;"
        "font-variant-numeric:tabular-nums;width:auto"
    )
    th = (
        "background:#f2f4f7;color:#111;text-align:left;font-weight:600;padding:2px 12px 2px 6px;"
        "border-bottom:1px solid #d0d0d0;white-space:nowrap"
    )
    # Rows have the colors, which notebooks give to rows as well; cells inherit them.
    tr = "background:#fff;color:#111"
    td = "text-align:left;padding:2px 12px 2px 6px;vertical-align:top"
    number = "text-align:right;padding:2px 12px 2px 6px;white-space:nowrap;vertical-align:top"
    best = (
        "background:#fdf1e7;color:#111;text-align:right;padding:2px 12px 2px 6px;"
        "white-space:nowrap;font-weight:600"
    )
    quiet = "background:#fff;color:#5a5a5a"
    code = (
        "background:#fafafa;color:#111;border:1px solid #e4e4e4;padding:4px 0;margin:4px 0;"
        "font:12px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-x:auto;"
        "max-height:32em;overflow-y:auto;white-space:pre"
    )
    listing = (
        "background:#fafafa;color:#111;border:1px solid #e4e4e4;margin:4px 0;max-height:32em;"
        "overflow:auto"
    )
    columns = "border-collapse:collapse;background:#fafafa;color:#111;margin:0"
    column = (
        "background:#fafafa;color:#111;border:0;padding:4px 8px;text-align:left;"
        "vertical-align:top;width:100%"
    )
    gutter = (
        "background:#fafafa;color:#6e6e6e;border:0;padding:4px 4px 4px 8px;text-align:right;"
        "vertical-align:top;user-select:none"
    )
    origin = (
        "background:#fafafa;color:#2f6db5;border:0;padding:4px;text-align:left;"
        "vertical-align:top;user-select:none"
    )
    lines = f"background:#fafafa;color:#111;{_LINES}"
    numbers = f"background:#fafafa;color:#6e6e6e;text-align:right;{_LINES}"
    origins = f"background:#fafafa;color:#2f6db5;{_LINES}"
    code_bad = "background:#fbe3e0;color:#111"
    mono = (
        "background:#fff;color:#111;font:12px ui-monospace,Menlo,Consolas,monospace;"
        "white-space:pre-wrap"
    )
    summary = "background:#fff;color:#111;cursor:pointer;padding:2px 0"
    good = "background:#e8f4ea;color:#1d5c2b;padding:1px 6px;border-radius:3px"
    bad = "background:#fbe3e0;color:#8a1c10;padding:1px 6px;border-radius:3px;font-weight:600"
    warn = "background:#fff5dc;color:#5f4300;padding:1px 6px;border-radius:3px"


def summary_html(summary: Summary) -> str:
    """Write a result as static HTML."""
    return _rendered(
        "result.html.j2",
        s=summary,
        where=lambda place: words.where(place, summary.filename),
        sources=_listings(summary),
        externs=list(Counter(summary.externs).items()),
        most_rows=MOST_ROWS,
    )


def _listings(summary: Summary) -> dict[str, Listing]:
    """Return the kernels' listings by name; together no more than ``MOST_LINES``."""
    left, found = MOST_LINES, {}
    for kernel in summary.kernels:
        # Of each at least its head: the rest is a click or a name away.
        listing = source_listing(kernel, summary.filename, max(left, HEAD_LINES))
        found[kernel.name] = listing
        left -= listing.numbers.count("\n") + 1
    return found


def edit_html(**values: Any) -> str:
    """Write the outcome of an edit as static HTML."""
    return _rendered("edit.html.j2", **values)


def tuning_html(run: TuningRun, rows: Sequence[Mapping[str, Any]], note: str) -> str:
    """Write a tuning run as static HTML."""
    return _rendered("tuning.html.j2", run=run, rows=rows, note=note)


def kernels_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a plain table as static HTML."""
    return _rendered("table.html.j2", head=head, rows=rows)


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
        left_out: How many lines follow.
    """

    numbers: str
    origins: Any
    html: Any
    left_out: int = 0


def source_listing(kernel: KernelView, filename: str, most: int = MOST_LINES) -> Listing:
    """Return a kernel's source with the cell lines that its lines come from.

    Args:
        kernel: The kernel.
        filename: The cell's; lines of other files are named with theirs.
        most: How many lines to show.
    """
    from markupsafe import Markup

    lines = highlight(kernel.source, kernel.target)
    shown = lines[:most]
    origins: list[Any] = []
    before = ""
    for number in range(1, len(shown) + 1):
        places = kernel.origins.get(number, ())
        origin = words.lines_of(places, filename).removeprefix("lines ").removeprefix("line ")
        if origin and origin != before:
            title = "; ".join(str(place) for place in places)
            origins.append(Markup("<span title='{}'>cell {}</span>").format(title, origin))
        else:
            origins.append("│" if origin else "")
        before = origin
    return Listing(
        "\n".join(str(number) for number in range(1, len(shown) + 1)),
        Markup("\n").join(origins) if any(origins) else "",
        Markup("\n").join(shown),
        len(lines) - len(shown),
    )


def marked_listing(text: str, target: str, bad: int | None, around: int = 3) -> Listing | None:
    """Return the lines near the one at fault."""
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
    numbers = [f"→ {n}" if n == bad else str(n) for n in range(first, last + 1)]
    return Listing("\n".join(numbers), "", Markup("\n").join(shown))


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
    return [Markup("".join(starmap(_piece, line))) for line in lines[: len(text.splitlines())]]


def _piece(tag: str, text: str) -> str:
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


@functools.cache
def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fuselab.display"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(style=Style, words=words, compile_line=compile_line)
    return environment


def prepare() -> None:
    """Read what the first result would otherwise wait for: templates and colors."""
    for name in ("result.html.j2", "edit.html.j2"):
        _environment().get_template(name)
    highlight("x;", default_target(CPU).name)


def _rendered(template: str, **values: Any) -> str:
    return str(_environment().get_template(template).render(**values))
