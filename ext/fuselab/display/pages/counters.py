"""What the hardware counted of each kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from fusec.errors import FusecError
from fuselab.display import words
from fuselab.display.line_counts import counted_text, details_of, said_of, share_of
from fuselab.display.pages.page import Page, indented, static_table
from fuselab.display.render import kernel_html

if TYPE_CHECKING:
    from fusec.timing.counters import Counted
    from fusec.timing.line_counts import LineCounts

HEAD = ("kernel", "counted", "an execution")
LINES = ("line", "time", "more", "its text")
MOST_KERNELS = 4  # whose lines are looked at: each is built once more for it
MOST_LINES = 8  # in the table above a kernel
WRITTEN = "bytes written to memory"  # what Nsight Compute's count is called
NO_GPU = "no GPU is here, and what this machine does says nothing of one"


def count_cell(cell: Any) -> list[Counted]:
    """Count each kernel of a cell; where something stands in for a GPU there is nothing to."""
    from fusec.timing.counters import count_kernels

    if cell.simulated:
        return []
    return list(count_kernels(*cell.latest_graphs))


def count_lines_of(cell: Any, name: str) -> LineCounts:
    """See at which lines a kernel of a cell is while it runs; the cell keeps that for its result.

    Args:
        cell: A ``FusedCell`` or what stands for it; its lock is held.
        name: What the cell calls the kernel.
    """
    from fusec.timing.counters import count_lines
    from fusec.timing.line_counts import LineCounts

    kernel = cell.kernels[name]
    if getattr(cell, "simulated", False):
        return LineCounts(kernel.source, missing=NO_GPU)
    graph = next((g for g in cell.graphs if any(k is kernel for k in g.kernels)), None)
    if graph is None:
        return LineCounts(kernel.source, missing="no compiled graph has it")
    try:
        found = count_lines(graph, kernel.name)
    except FusecError as error:
        found = LineCounts(kernel.source, missing=str(error))
    if hasattr(cell, "line_counts"):
        cell.line_counts[name] = found
    return found


def line_rows(counts: LineCounts) -> list[tuple[str, ...]]:
    """Return the lines that take most of the time, the first the most."""
    texts = dict(enumerate(counts.text.splitlines(), 1))
    most = sorted(counts.lines.items(), key=lambda item: -item[1].share)[:MOST_LINES]
    return [
        (str(n), share_of(line), details_of(line).partition(", ")[2], texts.get(n, "").strip())
        for n, line in most
        if share_of(line)
    ]


def counter_rows(found: Sequence[Counted]) -> list[tuple[str, ...]]:
    """Return a row for each count of each kernel."""
    rows: list[tuple[str, ...]] = []
    for each in found:
        name = each.name
        for label, value in described(each):
            rows.append((name, label, value))
            name = ""
    return rows


def described(each: Counted) -> list[tuple[str, str]]:
    """Return what was counted in the words of a person, with what follows from it."""
    events = dict(each.events)
    share = each.vector_share
    events.pop("scalar", None), events.pop("vector", None)
    found = []
    for label, value in events.items():
        shown = words.size(int(value)) if label.startswith("bytes") else words.many(value)
        cycles = events.get("cycles", 0)
        if label == "instructions" and cycles:
            shown += f", {words.digits(value / cycles)} a cycle"
        found.append((label, shown))
    if share is not None:
        found.append(("vector instructions of those on floats", words.share(share)))
    return found


def notes(found: Sequence[Counted]) -> list[str]:
    """Say how it was counted, and what could not be, once each."""
    if not found:
        return ["nothing was counted: no kernel runs on hardware of this machine"]
    fewest, most = min(each.calls for each in found), max(each.calls for each in found)
    calls = words.count(most, "execution")
    calls = calls if fewest == most else f"{fewest} to {calls}"
    lines = [f"counted in {calls} of each kernel alone, on its inputs of the latest call"]
    if any(each.calls > 1 for each in found):
        lines[0] += ", on one thread"
    if any(WRITTEN in each.events for each in found):
        lines.append("what a kernel writes may stay in the L2 for a while: memory gets it later")
    return lines + list(dict.fromkeys(each.missing for each in found if each.missing))


def counters_page(cell: Any) -> Page:
    """Count, and return the static page about it: each kernel, then its lines."""
    found = count_cell(cell)
    rows, said = counter_rows(found), notes(found)
    title = f"{cell.name}: what the hardware counted"
    lines = [title, *(indented([HEAD, *rows]) if rows else []), *(f"  {s}" for s in said)]
    html = [f"<b>{escape(title)}</b>", static_table(HEAD, rows, 3) if rows else ""]
    html += [f"<div>{escape(s)}</div>" for s in said]
    views = {view.name: view for view in cell.summary().reading} if found else {}
    for name in list(views)[:MOST_KERNELS]:
        counts = count_lines_of(cell, name)
        lines += ["", f"{name}: {said_of(counts)}"]
        html.append(f"<div><b>{escape(name)}</b> {escape(said_of(counts))}</div>")
        if not counts.missing:
            view = replace(views[name], counts=counts)
            lines += counted_text(counts, view.target)
            rows = [
                r if any(row[2] for row in line_rows(counts)) else (*r[:2], r[3])
                for r in line_rows(counts)
            ]
            head = LINES if rows and len(rows[0]) == len(LINES) else (*LINES[:2], LINES[3])
            html.append(static_table(head, rows, len(head)))
            html.append(kernel_html(view, cell.filename))
    if len(views) > MOST_KERNELS:
        rest = f"lines of {len(views) - MOST_KERNELS} more kernels: the panel's Profile shows one"
        lines += ["", rest]
        html.append(f"<div>{escape(rest)}</div>")
    return Page("\n".join(lines), "".join(html))
