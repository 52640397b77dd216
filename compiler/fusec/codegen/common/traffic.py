"""The bytes that a kernel must move: what all targets say of it, counted once."""

from __future__ import annotations

from collections.abc import Mapping

from fusec.ir.body import Body, Buffer, Store, axis_sizes
from fusec.ir.index import Symbol
from fusec.ir.node import Node
from fusec.ir.shapes import counted
from fusec.ir.walk import free_axes

Sizes = Mapping[Symbol, int]
NO_SIZES: Sizes = {}


def read_bytes(body: Body, buffers: Mapping[str, Buffer], sizes: Sizes = NO_SIZES) -> int:
    """Return the bytes that must be read, each element of an input once; -1 if symbolic.

    Of a table that elements are gathered from, those that the loops can reach: at most one for
    each point.

    Args:
        body: Of the kernel.
        buffers: By name.
        sizes: The values of symbolic sizes, where they are known.
    """
    return _bytes(body.reads(), body, buffers, sizes)


def written_bytes(body: Body, buffers: Mapping[str, Buffer], sizes: Sizes = NO_SIZES) -> int:
    """Return the bytes that must be written, likewise; -1 if symbolic."""
    return _bytes(body.writes(), body, buffers, sizes)


def _bytes(names: tuple[str, ...], body: Body, buffers: Mapping[str, Buffer], sizes: Sizes) -> int:
    free = free_axes(body.computed)
    counts = [_touched(buffers[name], body, free, sizes) for name in names]
    return -1 if any(count < 0 for count in counts) else sum(counts)


def _touched(
    buffer: Buffer, body: Body, free: Mapping[Node, frozenset[Symbol]], sizes: Sizes
) -> int:
    """Return the bytes of the elements of a buffer that the loops can reach at most."""
    along = [free[load] for load in body.loads() if load.buffer == buffer.name]
    along += [_places(store, free) for store in body.stores if store.buffer == buffer.name]
    points = [counted(axis_sizes(tuple(axes)), sizes) for axes in along]
    elements = counted(buffer.shape, sizes)
    if elements is None or None in points:
        return -1
    return min(elements, sum(count or 0 for count in points)) * buffer.dtype.itemsize


def _places(store: Store, free: Mapping[Node, frozenset[Symbol]]) -> frozenset[Symbol]:
    """Return the loops that decide where a store writes."""
    found: set[Symbol] = set()
    for symbol in (s for expr in store.index for s in expr.symbols()):
        if isinstance(symbol.payload, Node):
            found |= free[symbol.payload]
        elif symbol.kind == "axis":
            found.add(symbol)
    return frozenset(found)


__all__ = ["read_bytes", "written_bytes"]
