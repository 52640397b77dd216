"""What the hardware counted of each kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fuselab.display import words
from fuselab.display.pages.page import Page, indented, static_table

if TYPE_CHECKING:
    from fusec.timing.counters import Counted

HEAD = ("kernel", "counted", "an execution")


def count_cell(cell: Any) -> list[Counted]:
    """Count each kernel of a cell; where something stands in for a GPU there is nothing to."""
    from fusec.timing.counters import count_kernels

    if cell.simulated:
        return []
    return [each for graph in cell.graphs for each in count_kernels(graph)]


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
        shown = words.size(int(value)) if label.startswith("bytes") else words.digits(value)
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
    return lines + list(dict.fromkeys(each.missing for each in found if each.missing))


def counters_page(cell: Any) -> Page:
    """Count, and return the static page about it."""
    found = count_cell(cell)
    rows, said = counter_rows(found), notes(found)
    title = f"{cell.name}: what the hardware counted"
    text = "\n".join([title, *(indented([HEAD, *rows]) if rows else []), *(f"  {s}" for s in said)])
    table = static_table(HEAD, rows, 3) if rows else ""
    return Page(text, f"<b>{title}</b>{table}" + "".join(f"<div>{s}</div>" for s in said))
