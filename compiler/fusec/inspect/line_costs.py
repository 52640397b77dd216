"""What each of the user's lines costs in a kernel: the bytes that it moves and what it computes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fusec.codegen.common.operation_count import operations_of
from fusec.ir.body import Body, axis_sizes, is_shared
from fusec.ir.shapes import product
from fusec.ir.walk import free_axes
from fusec.kernel import Kernel
from fusec.report import SourceLine


@dataclass(frozen=True)
class LineCost:
    """What a kernel does for one line.

    Attributes:
        bytes: Of the inputs that the line is the first to read, and of the results that it writes.
        operations: Arithmetic operations, an expensive function as several.
    """

    bytes: int = 0
    operations: int = 0


def line_costs(kernel: Kernel) -> dict[SourceLine, LineCost]:
    """Return what each line costs in a kernel, in the order of the lines.

    The bytes are those of ``read_bytes`` and ``written_bytes``, given to the lines; where sizes are
    symbolic nothing is known, and nothing returned.
    """
    source = kernel.generated
    # A kernel that somebody made without a body, and one whose sizes are known at run time alone.
    if not isinstance(kernel.body, Body) or source.operations < 0:
        return {}
    if min(source.read_bytes, source.written_bytes) < 0:
        return {}
    read = _scaled(_reads(kernel.body), source.read_bytes)
    written = _scaled(_writes(kernel.body), source.written_bytes)
    work: dict[SourceLine, int] = defaultdict(int)
    for node, count in operations_of(kernel.body):
        if node.source is not None:
            work[node.source] += count or 0
    lines = sorted({*read, *written, *work}, key=lambda line: (line.file, line.line))
    return {
        line: LineCost(read.get(line, 0) + written.get(line, 0), work.get(line, 0))
        for line in lines
    }


def _reads(body: Body) -> dict[SourceLine, int]:
    """Return about how many bytes each line is the first to read."""
    free = free_axes(body.computed)
    found: dict[str, tuple[SourceLine, int]] = {}
    for load in body.loads():
        if load.source is None or is_shared(load):
            continue
        points = product(axis_sizes(tuple(free[load]))).constant or 0
        line, known = found.get(load.buffer, (load.source, 0))
        found[load.buffer] = line, max(known, points * load.dtype.itemsize)
    return _by_line(list(found.values()))


def _writes(body: Body) -> dict[SourceLine, int]:
    """Return about how many bytes each line writes."""
    found = []
    for store in body.stores:
        axes = {s for expr in store.index for s in expr.symbols() if s.kind == "axis"}
        points = product(axis_sizes(tuple(axes))).constant or 0
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


__all__ = ["LineCost", "line_costs"]
