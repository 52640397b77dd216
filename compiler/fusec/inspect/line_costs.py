"""What each of the user's lines costs in a kernel: the bytes that it moves and what it computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusec.codegen.common.operation_count import operations_of
from fusec.codegen.common.traffic import NO_SIZES, Sizes, read_bytes, written_bytes
from fusec.ir.body import Body, Buffer, axis_sizes, is_shared
from fusec.ir.index import Symbol
from fusec.ir.interpret import size_values
from fusec.ir.program import Extern
from fusec.ir.shapes import counted
from fusec.ir.walk import free_axes
from fusec.kernel import Kernel
from fusec.report import SourceLine
from fusec.timing.limits import step_bytes


@dataclass(frozen=True)
class LineCost:
    """What a kernel does for one line.

    Attributes:
        bytes: Of the inputs that the line is the first to read, and of the results that it writes.
        operations: Arithmetic operations, an expensive function as several.
    """

    bytes: int = 0
    operations: int = 0


def graph_line_costs(graph: Any) -> dict[int, dict[SourceLine, LineCost]]:
    """Return ``line_costs`` of a graph's kernels by their ``id``, at the sizes of its latest call.

    Args:
        graph: A ``CompiledGraph``.
    """
    found = {}
    for part in graph.parts:
        sizes, buffers = latest_sizes(part), part.state.scheduled.buffers
        for kernel in part.kernels.values():
            found[id(kernel)] = line_costs(kernel, sizes, buffers)
    return found


def graph_call_bytes(graph: Any) -> dict[SourceLine, int]:
    """Return the bytes that the calls of ATen of each line moved in a graph's latest call.

    Args:
        graph: A ``CompiledGraph``.
    """
    found: dict[SourceLine, int] = defaultdict(int)
    for part in graph.parts:
        program = part.state.scheduled
        if part.last_inputs is None:
            continue
        sizes = size_values(program, part.last_inputs)
        for step in program.steps:
            if isinstance(step, Extern) and not step.is_plumbing and step.where is not None:
                found[step.where] += step_bytes(program, step, sizes)
    return dict(found)


def latest_sizes(part: Any) -> dict[Symbol, int]:
    """Return the values that a part's symbolic sizes had in its latest call; none before one."""
    program = part.state.scheduled
    known = bool(program.sizes) and part.last_inputs is not None
    return size_values(program, part.last_inputs) if known else {}


def line_costs(
    kernel: Kernel, sizes: Sizes = NO_SIZES, buffers: Mapping[str, Buffer] | None = None
) -> dict[SourceLine, LineCost]:
    """Return what each line costs in a kernel, in the order of the lines.

    The bytes are those of ``read_bytes`` and ``written_bytes``, given to the lines.

    Args:
        kernel: Of a graph.
        sizes: The values of its symbolic sizes; without them nothing is returned.
        buffers: Of its graph's program, where it has symbolic sizes.
    """
    source = kernel.generated
    body: Any = kernel.body
    if not isinstance(body, Body):  # somebody made a kernel without one
        return {}
    reading, writing = source.read_bytes, source.written_bytes
    if min(reading, writing) < 0 and sizes and buffers is not None:
        reading = read_bytes(body, buffers, sizes)
        writing = written_bytes(body, buffers, sizes)
    if min(reading, writing) < 0:
        return {}
    read = _scaled(_reads(body, sizes), reading)
    written = _scaled(_writes(body, sizes), writing)
    work: dict[SourceLine, int] = defaultdict(int)
    for node, count in operations_of(body, sizes):
        if count is None:
            return {}
        if node.source is not None:
            work[node.source] += count
    lines = sorted({*read, *written, *work}, key=lambda line: (line.file, line.line))
    return {
        line: LineCost(read.get(line, 0) + written.get(line, 0), work.get(line, 0))
        for line in lines
    }


def _reads(body: Body, sizes: Sizes) -> dict[SourceLine, int]:
    """Return about how many bytes each line is the first to read."""
    free = free_axes(body.computed)
    found: dict[str, tuple[SourceLine, int]] = {}
    for load in body.loads():
        if load.source is None or is_shared(load):
            continue
        points = counted(axis_sizes(tuple(free[load])), sizes) or 0
        line, known = found.get(load.buffer, (load.source, 0))
        found[load.buffer] = line, max(known, points * load.dtype.itemsize)
    return _by_line(list(found.values()))


def _writes(body: Body, sizes: Sizes) -> dict[SourceLine, int]:
    """Return about how many bytes each line writes."""
    found = []
    for store in body.stores:
        axes = {s for expr in store.index for s in expr.symbols() if s.kind == "axis"}
        points = counted(axis_sizes(tuple(axes)), sizes) or 0
        if store.source is not None:
            found.append((store.source, points * store.value.dtype.itemsize))
    return _by_line(found)


def _by_line(found: list[tuple[SourceLine, int]]) -> dict[SourceLine, int]:
    total: dict[SourceLine, int] = defaultdict(int)
    for line, count in found:
        total[line] += count
    return total


def _scaled(found: dict[SourceLine, int], total: int) -> dict[SourceLine, int]:
    """Return shares of ``total``: what is read twice, or in part, is counted once."""
    known = sum(found.values())
    return {line: round(total * count / known) for line, count in found.items()} if known else {}


__all__ = ["LineCost", "graph_call_bytes", "graph_line_costs", "latest_sizes", "line_costs"]
