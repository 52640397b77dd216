"""Reads that step through memory the wrong way, done a tile at a time.

Where the vector loop runs along one axis and a tensor is contiguous along another, every element
of a vector would come from a cache line of its own.  So a square tile of that tensor is read along
its own rows first and turned over into a small array; the loops over the tile then read the array.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, extent, is_even


@dataclass(frozen=True)
class Turned:
    """Loads to do through a tile.

    Attributes:
        across: The axis along which they are contiguous.
        steps: Each load, and its step in memory along the vector axis.
        rows: How many positions of ``across`` a tile has.
        columns: How many of the vector axis.
        even: Whether a row of a tile is taken to be of full blocks.
    """

    across: Symbol
    steps: tuple[tuple[Load, Expr], ...]
    rows: int
    columns: int
    even: bool


def turned_loads(facts: Facts, last: Symbol) -> Turned | None:
    """Return the loads that should go through a tile, for a vector loop along ``last``."""
    found: dict[Symbol, list[tuple[Load, Expr]]] = {}
    for load in facts.body.loads():
        if load.buffer in facts.updated or load.mask is not None:
            continue
        offset = facts.buffers[load.buffer].offset(load.index)
        if any(s.kind == "indirect" for s in offset.symbols()) or not offset.is_affine_in(last):
            continue
        step = offset.coefficient(last)
        if step in (0, 1):
            continue
        for axis in facts.body.axes:
            if offset.is_affine_in(axis) and offset.coefficient(axis) == 1:
                found.setdefault(axis, []).append((load, step))
    if not found:
        return None
    across = max(found, key=lambda axis: len(found[axis]))
    for axis in (across, last):
        size = extent(axis)
        if size is not None and size < choices.MIN_TILE:
            return None
    load, step = found[across][0]
    itemsize = facts.buffers[load.buffer].dtype.itemsize
    rows, columns = choices.tile(itemsize, extent(last), step.constant)
    return Turned(across, tuple(found[across]), rows, columns, is_even(last))
