"""How near kernels come to what the machine can do."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusec.devices import where_computed
from fusec.timing.limits import MeasuredLimits, copy_time, machine
from fuselab.display import words
from fuselab.display.bounds import Traffic, limit_words, part_of_a_copy
from fuselab.display.pages.counters import NO_GPU
from fuselab.display.pages.page import Page, indented, static_table
from fuselab.display.plots.machine import RooflinePoint

if TYPE_CHECKING:
    from fusec.inspect.line_costs import LineCost

ABOVE = "above: this machine was slower when its best was timed"
NO_ROWS = (
    "No table of its kernels: their times are not known, or how much they move and compute is not"
)
COPIES = "of a copy: of one of as many bytes, which stay in a cache where the kernel's do"
HEAD = ("kernel", "memory traffic", "of a copy", "operations", "of a product")


def symbolic_costs(cell: Any) -> dict[str, LineCost]:
    """Return what kernels of symbolic sizes moved and computed at the sizes of the latest call."""
    from fusec.inspect.line_costs import LineCost, graph_line_costs  # imports the compiler

    found: dict[int, dict[Any, LineCost]] = {}
    for graph in getattr(cell, "latest_graphs", ()):
        found |= graph_line_costs(graph)
    costs = {}
    for name, kernel in cell.kernels.items():
        lines = found.get(id(kernel), {}).values()
        if lines and not _is_known(kernel):
            counts = sum(line.bytes for line in lines), sum(line.operations for line in lines)
            costs[name] = LineCost(*counts)
    return costs


def _is_known(kernel: Any) -> bool:
    """Whether a kernel moves as much at each call."""
    return bool(min(kernel.generated.read_bytes, kernel.generated.written_bytes) >= 0)


def roofline_points(cell: Any, symbolic: Mapping[str, LineCost]) -> list[RooflinePoint]:
    """Return every kernel of a cell whose time and traffic are known, the longest first.

    Args:
        cell: A cell, or what is known of one.
        symbolic: As ``symbolic_costs`` found them.
    """
    found = []
    for name, kernel in cell.kernels.items():
        timing = cell.kernel_times.get(name)
        if timing is None:
            continue
        source, cost = kernel.generated, symbolic.get(name)
        if _is_known(kernel):
            moved = source.read_bytes + source.written_bytes
            found.append(RooflinePoint(name, source.operations, moved, timing.median))
        elif cost is not None and cost.bytes > 0:
            found.append(RooflinePoint(name, cost.operations, cost.bytes, timing.median))
    return sorted(found, key=lambda point: -point.seconds)


def copies_of(
    points: Sequence[RooflinePoint], device: str, traffic: Traffic | None = None
) -> dict[int, float]:
    """Return the seconds of a copy of as many bytes as each kernel moves, by those bytes.

    What a cell's limit is: a copy through memory says nothing of data that stay in a cache.

    Args:
        points: The kernels.
        device: Where the copies run.
        traffic: The cell's: its copy is known, and stands in its limit.
    """
    known = {traffic.least: traffic.copy} if traffic is not None and traffic.copy > 0 else {}
    counts = {point.bytes for point in points}
    return {count: known.get(count) or _copy_seconds(count, device) for count in counts}


@functools.lru_cache(maxsize=256)
def _copy_seconds(count: int, device: str) -> float:
    return copy_time(count, device).median


def roofline_rows(
    points: Sequence[RooflinePoint], found: MeasuredLimits, copies: Mapping[int, float]
) -> list[tuple[str, ...]]:
    """Return a row a kernel: its rates, and what share of the machine's they are.

    Args:
        points: The kernels.
        found: What the machine can do.
        copies: As ``copies_of`` measured them; a kernel that has none has no share.
    """
    rows: list[tuple[str, ...]] = []
    for point in points:
        rate, work = point.bytes / point.seconds, max(point.operations, 0) / point.seconds
        copy = copies.get(point.bytes)
        rows.append(
            (
                point.name,
                f"{words.digits(rate / 1e9)} GB/s",
                "" if copy is None else part_of_a_copy(copy, point.seconds),
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
    cell.know_limit()
    points = roofline_points(cell, symbolic_costs(cell))
    rows = roofline_rows(points, found, copies_of(points, found.device, cell.traffic))
    title = f"{cell.name}: the limit is not known: a graph did not run, or runs in eager"
    if cell.traffic is not None and cell.traffic.limit > 0:
        takes = f"takes {words.duration(cell.fused.median)}; " if cell.fused is not None else ""
        title = f"{cell.name}: {takes}{limit_words(cell.traffic, cell.fused, cell.eager)}"
    machine_line = (
        f"memory {words.digits(found.memory / 1e9)} GB/s, "
        f"cache {words.digits(found.cache / 1e9)} GB/s, "
        f"products {_operations(found.operations)}: {found.method}"
    )
    notes = [note for note in (machine_line, COPIES if rows else NO_ROWS, above_note(rows)) if note]
    listed = indented([HEAD, *rows]) if rows else []
    text = "\n".join([title, *listed, *(f"  {note}" for note in notes)])
    html = static_table(HEAD, rows, len(HEAD)) if rows else ""
    html += "".join(f"<div>{note}</div>" for note in notes)
    return Page(text, f"<b>{title}</b>{html}")
