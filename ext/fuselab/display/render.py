"""Snapshots to text and HTML: pure functions, a Jinja template a kind of result.

The HTML survives an untrusted notebook, where JupyterLab strips ``<style>``, ``<script>`` and
inline ``<svg>``: all looks are literal inline styles, and every box sets its own background
*and* its own text color, so that it reads the same in a light and in a dark theme.
"""

from __future__ import annotations

import functools
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fusec.devices import CPU
from fusec.inspect.glossary import explained
from fusec.inspect.terminal import fitted
from fusec.report import compile_line
from fusec.target_api.registry import default_target, find_target
from fusec.tuning_report import TuningRun
from fuselab.display import words
from fuselab.display.bounds import bars, limit_words, saved
from fuselab.display.kernel_text import extent_of
from fuselab.display.line_counts import said_of, share_of
from fuselab.display.listing import (
    MOST_LINES,
    KernelListing,
    Listing,
    highlight,
    kernel_listing,
    lines_listing,
)
from fuselab.display.source_lines import source_text
from fuselab.display.style import THEME, Style
from fuselab.display.summary import HEAD_LINES, KernelView, Summary, located

MOST_OPENED = 8  # kernels that a line of the cell opens to
MOST_ROWS = 60
MOST_LETTERS = 96  # of a sentence behind a label
MOST_WIDE = 116  # of the sentence that bounds a cell


def summary_text(summary: Summary, width: int | None = None) -> str:
    """Write a result for a terminal.

    Args:
        summary: The result.
        width: How many letters fit beside each other; a line is a line where None. A kernel's
            lines stay whole.
    """
    lines = [f"{summary.name}: {summary.headline}"]
    lines += [f"  {line}" for line in _memory_text(summary, width)]
    lines += [f"  {line}" for line in summary.peers]
    if summary.stages:
        lines.append(f"  {compile_line(dict(summary.stages))}")
    if summary.kernels:
        lines += [f"  {line}" for line in columns(kernel_rows(summary))]
    lines += [f"  {line}" for line in source_text(summary.lines)]
    lines = [fitted(line, width) for line in lines]
    lines += [_labeled(label, said, width) for label, said in _outside(summary)]
    if summary.pending:
        lines.append(fitted(f"  compiled at the first call: {', '.join(summary.pending)}", width))
    below = [("note", note) for note in [*summary.notes, *filter(None, [summary.busy])]]
    below += _folded(summary)
    if summary.next:
        below.append(("next", "; ".join(f"{what}: {how}" for what, how in summary.next)))
    lines += [_labeled(label, said, width) for label, said in below]
    return "\n".join([*lines, *_first_kernel_text(summary, width)])


def _labeled(label: str, text: str, width: int | None) -> str:
    """Return a sentence behind a label; it is broken where it is long, whatever shows it."""
    return fitted(f"  {label:<8}{text}", width or MOST_LETTERS)


def _outside(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield what is no kernel: ATen's operators, graph breaks, eager, compiling again."""
    for line in summary.models:
        yield "model", line
    for call, count in Counter(summary.externs).items():
        times = f" {count} times" if count > 1 else ""
        yield "extern", f"{located(call.name, call.where, summary)}{times}: {call.reason}"
    for item in summary.to_mend:
        hint = f" – {item.hint}" if item.hint else ""
        yield "break", f"{located(item.reason, item.where, summary)}{hint}"
    if summary.pauses:
        yield "python", summary.pauses
    for reason in summary.fallbacks:
        yield "eager", str(reason)
    for again in summary.recompiles:
        yield "again", str(again)
    for text in summary.kept:
        yield "kept", text


def _first_kernel_text(summary: Summary, width: int | None) -> list[str]:
    """Return the first lines of the kernel to read first; nothing where there is none."""
    lines: list[str] = []
    for kernel in filter(None, [summary.main]):
        extent = extent_of(kernel.source, kernel.target)
        lines += ["", f"{kernel.name} ({kernel.target}, {kernel.state}), its body:"]
        if kernel.counts is not None:
            lines.append(_labeled("seen", said_of(kernel.counts), width))
        shares = _share_column(kernel)
        lines += [
            f"{shares.get(i, '')}{i:4d}  {line}".rstrip()
            for i, line in enumerate(kernel.head, extent.first)
        ]
        left = extent.count - len(kernel.head)
        if left > 0:
            stage = f"{kernel.name}: {find_target(kernel.target).title}"
            lines.append(
                f"      ... {left} more lines: %fuse_report {summary.name} --stage '{stage}'"
            )
    return lines


def _share_column(kernel: KernelView) -> dict[int, str]:
    """Return what stands before the numbers of a kernel's lines; nothing where nobody looked."""
    if kernel.counts is None or kernel.counts.missing:
        return {}
    known = kernel.counts.lines
    return {i: f"{share_of(known.get(i)):>5}" for i in range(1, kernel.source.count("\n") + 2)}


def _memory_text(summary: Summary, width: int | None) -> list[str]:
    """Return the bytes before and after as bars, and what bounds the cell."""
    if summary.traffic is None:
        return []
    less = saved(summary.traffic)
    lines = [
        f"{name} moves {words.size(count):>9}  {'█' * length}"
        + (f"  {less}" if name == "fused" and less else "")
        for name, count, length in bars(summary.traffic, 24)
    ]
    if said := summary.bound:
        limit = limit_words(summary.traffic, summary.fused, summary.eager)
        sentence = f"{said} ({limit})"
        lines += fitted(sentence, MOST_WIDE).split("\n") if width is None else [sentence]
    return lines


def kernel_rows(summary: Summary) -> list[tuple[str, ...]]:
    """Return the table of the kernels; without times where nothing that was timed is one."""
    timed = not summary.models
    rows: list[tuple[str, ...]] = [("kernel", "target", "time", "moves", "rate", "what")]
    for kernel in summary.kernels:
        what = ", ".join(part for part in (kernel.summary, kernel.lines) if part)
        name = kernel.name + ("" if kernel.state == "generated" else f" ({kernel.state})")
        time = words.duration(kernel.time.median) if kernel.time else "–"
        rate = words.rate(kernel.moved, kernel.time.median) if kernel.time else ""
        rows.append((name, kernel.target, time, words.size(kernel.moved), rate, what))
    return rows if timed else [(row[0], row[1], row[3], row[5]) for row in rows]


def _folded(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield what a page folds away: a word and a text each."""
    if summary.eager and summary.fused:
        times = f"eager {words.spread(summary.eager)}, fused {words.spread(summary.fused)}"
        yield "times", f"{times}: {summary.fused.method}. {summary.device}."
    more = f"%fuse_report {summary.name} --show"
    if summary.fusions:
        made = words.count(sum(each.fused for each in summary.fusions), "fusion")
        refused = sum(not each.fused for each in summary.fusions)
        rest = f", {refused} not made" if refused else ""
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
        "breaks": [f"{located(b.reason, b.where, summary)}" for b in summary.breaks],
        "externs": [f"{located(e.name, e.where, summary)}: {e.reason}" for e in summary.externs],
        "fallbacks": list(summary.fallbacks),
        "notes": list(summary.notes),
        "stages_s": dict(summary.stages),
    }


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows of text in columns, all but the last one padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


# --- HTML ------------------------------------------------------------------------------------


def summary_html(summary: Summary, picture: str = "") -> str:
    """Write a result as static HTML.

    Args:
        summary: The result.
        picture: Safe HTML of its plot, which goes in: frontends that show HTML leave PNGs out.
    """
    from markupsafe import Markup

    return _rendered(
        "result.html.j2",
        s=summary,
        where=lambda place: words.where(place, summary.filename),
        sources=_listings(summary),
        opened=_opened(summary),
        card=f"fuselab-{zlib.crc32(f'{summary.name}{time.time_ns()}'.encode()):08x}",
        bars=bars(summary.traffic, 340) if summary.traffic else [],
        saved=saved(summary.traffic) if summary.traffic else "",
        said_of=said_of,
        limit=limit_words(summary.traffic, summary.fused, summary.eager) if summary.traffic else "",
        explained=Markup(explained(_shown_words(summary))),
        externs=list(Counter(summary.externs).items()),
        rows=kernel_rows(summary),
        picture=Markup(picture),
        most_rows=MOST_ROWS,
    )


def _shown_words(summary: Summary) -> list[str]:
    """Return what a result says whose words may need an explanation."""
    texts = [kernel.summary for kernel in summary.kernels] + [d.reason for d in summary.fusions]
    said = {
        "kernel": summary.kernels,
        "extern call": summary.externs,
        "fusion": summary.fusions,
        "graph break": summary.breaks,
        "guard": summary.guards,
        "recompile": summary.recompiles,
    }
    return [*texts, summary.bound, "eager", *(word for word, there in said.items() if there)]


def kernel_html(kernel: KernelView, filename: str = "") -> str:
    """Return one kernel as a result has it: its body, the rest folded.

    Args:
        kernel: What to show.
        filename: The cell's; lines of other files are named with theirs.
    """
    listing = kernel_listing(kernel, filename)
    return _rendered("kernel.html.j2", listing=listing, name=kernel.name)


def _listings(summary: Summary) -> dict[str, KernelListing]:
    """Return the kernels' listings by name; together no more than ``MOST_LINES``."""
    left, found = MOST_LINES, {}
    for kernel in summary.reading:
        # Of each at least its beginning: the rest is a click or a name away.
        listing = kernel_listing(kernel, summary.filename, max(left, HEAD_LINES))
        found[kernel.name] = listing
        pieces = (listing.head, listing.body, listing.tail)
        left -= sum(piece.count for piece in pieces if piece is not None)
    return found


def _opened(summary: Summary) -> dict[tuple[str, int], list[tuple[str, Listing]]]:
    """Return the kernel lines of each line of the cell, by kernel."""
    shown = {
        (line.file, line.number): list(line.at.items())[:MOST_OPENED]
        for line in summary.lines
        if line.at
    }
    names = {name for found in shown.values() for name, _ in found}
    texts = {k.name: highlight(k.source, k.target) for k in summary.kernels if k.name in names}
    return {
        place: [(name, lines_listing(texts[name], at)) for name, at in found if name in texts]
        for place, found in shown.items()
    }


def edit_html(more: str = "", **values: Any) -> str:
    """Write the outcome of an edit as static HTML.

    Args:
        more: Safe HTML at its end: a plot.
        **values: What the template shows.
    """
    from markupsafe import Markup

    return _rendered("edit.html.j2", more=Markup(more), **values)


def tuning_html(
    run: TuningRun,
    rows: Sequence[Mapping[str, Any]],
    note: str,
    eager: str = "",
    more: str = "",
) -> str:
    """Write a tuning run as static HTML.

    Args:
        run: The search.
        rows: Its configurations.
        note: The outcome in a line.
        eager: What the search measured of eager.
        more: Safe HTML at its end: what each tunable did, a plot.
    """
    from markupsafe import Markup

    return _rendered(
        "tuning.html.j2", run=run, rows=rows, note=note, eager=eager, more=Markup(more)
    )


def kernels_html(head: Sequence[str], rows: Sequence[Sequence[str]], more: str = "") -> str:
    """Write a plain table as static HTML, a line below it."""
    return _rendered("table.html.j2", head=head, rows=rows, more=more)


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
    environment.globals.update(style=Style, theme=THEME, words=words, compile_line=compile_line)
    return environment


def prepare() -> None:
    """Read what the first result would otherwise wait for: templates and colors."""
    for name in ("result.html.j2", "edit.html.j2"):
        _environment().get_template(name)
    highlight("x;", default_target(CPU).name)


def _rendered(template: str, **values: Any) -> str:
    return str(_environment().get_template(template).render(**values))
