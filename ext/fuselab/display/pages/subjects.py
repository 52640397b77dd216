"""The pages of a cell by subject: read, traced or timed under the cell's lock.

What imports the compiler is imported when it is asked for: the magics know this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fusec.devices import is_gpu
from fusec.errors import FusecError
from fusec.report import Timing

if TYPE_CHECKING:
    from fusec.inspect.trace import Trace
    from fuselab.display.pages.page import Page


def fusion_of(cell: Any) -> Page:
    """Return the page about a cell's fusion."""
    from fusec.inspect.whatif import part_view
    from fuselab.display.pages import fusion

    with cell.lock:
        parts = [(name, part_view(part)) for name, _, part in fusion.parts_of(cell)]
    return fusion.fusion_page(parts, cell.rules)


def stages_of(cell: Any) -> Page:
    """Return the page about a cell's stages."""
    from fuselab.display.pages import stages

    with cell.lock:
        return stages.stages_page(cell)


def guards_of(cell: Any) -> Page:
    """Return the page about a cell's breaks, guards and compilations."""
    from fuselab.display.pages import guards

    with cell.lock:
        return guards.guards_page(cell)


def trace_cell(cell: Any) -> list[tuple[str, Trace | str]]:
    """Trace every part of a cell; where that cannot be, say why."""
    from fusec.inspect.numerics import trace_part
    from fuselab.display.pages import fusion

    found: list[tuple[str, Trace | str]] = []
    with cell.lock:
        for name, _, part in fusion.parts_of(cell):
            try:
                found.append((name, trace_part(part)))
            except FusecError as error:
                found.append((name, str(error)))
    return found


def numerics_of(cell: Any) -> Page:
    """Return the page about a cell's numbers."""
    from fuselab.display.pages import numerics

    return numerics.numerics_page(cell.name, cell.verdict, trace_cell(cell))


def limits_of(cell: Any) -> Page:
    """Return the page about what the machine could do, and how near the kernels come."""
    from fuselab.display.pages import limits

    with cell.lock:
        return limits.limits_page(cell)


def counters_of(cell: Any) -> Page:
    """Return the page about what the hardware counts while a cell's kernels run."""
    from fuselab.display.pages import counters

    with cell.lock:
        return counters.counters_page(cell)


def timings_of(cell: Any) -> Page:
    """Time every step of a cell and return the page about its times."""
    from fuselab.display.pages import timings

    with cell.lock:
        if cell.fused is None:
            cell.measure()
        cell.measure_steps()
        return timings.timings_page(cell)


def time_interleaved(cells: Mapping[str, Any], seconds: float) -> dict[str, Timing]:
    """Time the compiled graphs of several cells against each other, interleaved.

    Raises:
        NoInputs: One has not run with its inputs kept.
    """
    from fusec.timing.measure import interleave

    calls = {}
    device = "cpu"
    for name, cell in cells.items():
        replays = [graph.replay() for graph in cell.latest_graphs]
        calls[name] = lambda replays=replays: [run() for run in replays]
        for graph in cell.latest_graphs:
            for kernel in graph.kernels:
                device = next((a.device for a in kernel.signature.arguments), device)
    return interleave(calls, seconds=seconds, device=device, flush_l2=is_gpu(device))


def compare_cells(first: Any, second: Any, seconds: float) -> Page:
    """Time two cells against each other and return the page about them."""
    from fuselab.display.pages import compare

    times, why = {}, ""
    try:
        times = time_interleaved({c.name: c for c in (first, second)}, seconds)
    except FusecError as error:
        why = str(error)
    return compare.cells_page(first, second, times, why)
