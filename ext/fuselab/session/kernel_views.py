"""How a result shows a kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fuselab.display import words
from fuselab.display.summary import KernelView

if TYPE_CHECKING:
    from fusec.inspect.line_costs import LineCost
    from fusec.kernel import Kernel
    from fusec.report import SourceLine, Timing
    from fusec.timing.line_counts import LineCounts

Costs = Mapping[str, Mapping["SourceLine", "LineCost"]]


def kernel_views(cell: Any, costs: Costs) -> tuple[KernelView, ...]:
    """Return the kernels that a cell's latest run used as a result shows them.

    Args:
        cell: A ``FusedCell``.
        costs: What each line costs in each kernel.
    """
    from fusec.inspect.line_costs import latest_sizes  # imports the compiler

    sizes: dict[int, dict[str, int]] = {}
    for part in (part for graph in cell.latest_graphs for part in graph.parts):
        named = {symbol.name: value for symbol, value in latest_sizes(part).items()}
        sizes |= {id(kernel): named for kernel in part.kernels.values()}
    return tuple(
        kernel_view(
            name,
            kernel,
            filename=cell.filename,
            time=cell.kernel_times.get(name),
            costs=costs[name],
            sizes=sizes.get(id(kernel), {}),
            counts=cell.line_counts.get(name),
        )
        for name, kernel in cell.latest_kernels.items()
    )


def kernel_view(
    name: str,
    kernel: Kernel,
    *,
    filename: str,
    time: Timing | None,
    costs: Mapping[SourceLine, LineCost],
    sizes: Mapping[str, int],
    counts: LineCounts | None = None,
) -> KernelView:
    """Return a kernel as a result shows it.

    Args:
        name: What the cell calls it.
        kernel: Its text in use is shown.
        filename: Of the cell: whose lines are named.
        time: The kernel's alone, where it was timed.
        costs: What each line costs in it, at the sizes of the latest call.
        sizes: The values of symbolic sizes in that call, by name.
        counts: What was seen of the lines of some text of the kernel's.
    """
    generated = kernel.generated
    places = {place for lines in generated.origins.values() for place in lines} or set(costs)
    known = generated.read_bytes >= 0 and generated.written_bytes >= 0
    moved = sum(cost.bytes for cost in costs.values())
    return KernelView(
        name=name,
        target=kernel.target,
        state=kernel.state,
        summary=_with_sizes(generated.summary, sizes),
        lines=words.all_lines_of(places, filename),
        moved=generated.read_bytes + generated.written_bytes if known else moved or -1,
        time=time,
        source=kernel.source,
        # A tuned text has other numbers in the same lines; an edited one has other lines.
        origins=generated.origins if kernel.state != "edited" else {},
        counts=counts if counts is not None and counts.text == kernel.source else None,
    )


def _with_sizes(summary: str, sizes: Mapping[str, int]) -> str:
    """Say how large the symbolic sizes were that a summary names: ``rows of s0 (s0 = 512)``."""
    named = [name for name in sizes if re.search(rf"\b{re.escape(name)}\b", summary)]
    said = ", ".join(f"{name} = {sizes[name]}" for name in named)
    return f"{summary} (now {said})" if said else summary


__all__ = ["kernel_view", "kernel_views"]
