"""How near kernels come to what the machine can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusec.devices import where_computed
from fusec.timing.limits import MeasuredLimits, machine
from fuselab.display import words
from fuselab.display.bounds import limit_words
from fuselab.display.pages.counters import NO_GPU
from fuselab.display.pages.page import Page, indented, static_table
from fuselab.display.plots.machine import RooflinePoint

ABOVE = (
    "above: the kernel's data stays in a cache, or this machine was slower when its best was timed"
)
HEAD = ("kernel", "memory traffic", "of a copy", "operations", "of a product")


def roofline_points(cell: Any) -> list[RooflinePoint]:
    """Return every kernel of a cell whose time and traffic are known, the longest first."""
    found = []
    for name, kernel in cell.kernels.items():
        timing = cell.kernel_times.get(name)
        source = kernel.generated
        if timing is None or min(source.read_bytes, source.written_bytes) < 0:
            continue
        moved = source.read_bytes + source.written_bytes
        found.append(RooflinePoint(name, source.operations, moved, timing.median))
    return sorted(found, key=lambda point: -point.seconds)


def roofline_rows(points: list[RooflinePoint], found: MeasuredLimits) -> list[tuple[str, ...]]:
    """Return a row a kernel: its rates, and what share of the machine's they are."""
    rows: list[tuple[str, ...]] = []
    for point in points:
        rate, work = point.bytes / point.seconds, max(point.operations, 0) / point.seconds
        rows.append(
            (
                point.name,
                f"{words.digits(rate / 1e9)} GB/s",
                f"{_share(rate, found.memory)} memory, {_share(rate, found.cache)} cache",
                _operations(work),
                _share(work, found.operations).removesuffix(" of"),
            )
        )
    return rows


def _operations(rate: float) -> str:
    """Write operations a second: ``194 Gop/s``, ``51.7 Top/s``."""
    if rate >= 1e12:
        return f"{words.digits(rate / 1e12)} Top/s"
    return f"{words.digits(rate / 1e9)} Gop/s"


def _share(value: float, best: float) -> str:
    """Say what part of the machine's best it is; more than that is no part of it."""
    return f"{words.share(value / best)} of" if value <= best else "above"


def above_note(rows: Sequence[Sequence[str]]) -> str:
    """Say what ``above`` means; empty where no row has it."""
    return ABOVE if any("above" in cell for row in rows for cell in row[1:]) else ""


def limits_page(cell: Any) -> Page:
    """Measure the machine and return the static page about the limits of a cell."""
    if getattr(cell, "simulated", False):
        said = f"{cell.name}: its limit is not known: {NO_GPU}"
        return Page(said, f"<b>{said}</b>")
    arguments = [a.device for k in cell.kernels.values() for a in k.signature.arguments]
    found = machine(where_computed(arguments))
    cell.measure_limit()
    rows = roofline_rows(roofline_points(cell), found)
    title = f"{cell.name}: the limit is not known: a graph did not run, or runs in eager"
    if cell.traffic is not None and cell.traffic.limit > 0:
        takes = f"takes {words.duration(cell.fused.median)}; " if cell.fused is not None else ""
        title = f"{cell.name}: {takes}{limit_words(cell.traffic, cell.fused, cell.eager)}"
    machine_line = (
        f"memory {words.digits(found.memory / 1e9)} GB/s, "
        f"cache {words.digits(found.cache / 1e9)} GB/s, "
        f"products {_operations(found.operations)}: {found.method}"
    )
    notes = [note for note in (machine_line, above_note(rows)) if note]
    text = "\n".join([title, *indented([HEAD, *rows]), *(f"  {note}" for note in notes)])
    html = "".join(f"<div>{note}</div>" for note in notes)
    return Page(text, f"<b>{title}</b>{static_table(HEAD, rows, len(HEAD))}{html}")
