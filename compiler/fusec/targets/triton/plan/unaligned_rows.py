"""Rows of half precision that begin anywhere, read by 16 bytes all the same.

Triton loads several elements by one instruction only where it can prove that they begin at a
multiple of their bytes, and that a mask is the same for all of them.  Rows of 50257 elements begin
at any element and end in the middle of such a group, so that each element is loaded by itself:
maxima and sums of exponentials of 4096 such rows took 249 us, of rows of 50264 99.

Steps along such a row begin at the last multiple of 16 bytes before it, and load whole groups of 16
bytes.  What lies before the row's first element or behind its last one in the same group is loaded
too, and replaced; it is in the same 16 bytes as an element of the row, and so no address is touched
that might not be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fusec.codegen.common.identities import SQUARES
from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr
from fusec.ir.node import Load, Reduce, Scan
from fusec.targets.triton.plan.choice import known
from fusec.targets.triton.plan.tiling import Tile, payloads

ACCESS = 16  # bytes
MOST_BYTES = 2  # of an element: wider ones fill the memory's bandwidth one by one
# What is read beside the row by every program, and lies in a cache, may be this much.
_BESIDE = 8
_COUNTS_POSITIONS = frozenset((SQUARES, "argmax", "argmin"))


@dataclass(frozen=True)
class OddRow:
    """The one tensor that a loop over rows reads, and where a row of it begins.

    Attributes:
        buffer: Its name.
        begin: The offset of a row's first element.
        group: The elements of 16 bytes.
    """

    buffer: str
    begin: Expr
    group: int

    def is_read_by(self, load: Load, buffers: Mapping[str, Buffer], tile: Tile) -> bool:
        """Whether a load reads an element of the row."""
        assert tile.inner is not None
        offset = buffers[load.buffer].offset(load.index)
        return load.buffer == self.buffer and offset == self.begin + Expr.of(tile.inner.symbol)


def odd_row(tile: Tile, buffers: Mapping[str, Buffer]) -> OddRow | None:
    """Return the tensor whose rows begin anywhere, where a loop reads it and little else."""
    inner = tile.inner
    if inner is None or tile.rank != 1 or tile.walk is not None or not inner.mask:
        return None
    body = tile.body
    if any(isinstance(n, Scan) for n in body.nodes()) or any(
        isinstance(n, Reduce) and n.kind in _COUNTS_POSITIONS for n in body.nodes()
    ):
        return None
    found: set[tuple[str, Expr]] = set()
    beside = 0
    for load in body.loads():
        offset = buffers[load.buffer].offset(load.index)
        if inner.symbol not in offset.symbols() and not payloads(load.index):
            continue
        plain = (
            load.mask is None
            and not payloads(load.index)
            and offset.is_affine_in(inner.symbol)
            and offset.coefficient(inner.symbol) == 1
        )
        begin = offset - Expr.of(inner.symbol)
        if plain and _is_odd(begin, inner.size, buffers[load.buffer]):
            found.add((load.buffer, begin))
        elif inner.symbol in offset.symbols():
            beside += _bytes(buffers[load.buffer])
    if len(found) != 1:
        return None
    ((name, begin),) = found
    if _writes_along(body, tile) or beside * _BESIDE > _bytes(buffers[name]):
        return None
    return OddRow(name, begin, ACCESS // buffers[name].dtype.itemsize)


def _is_odd(begin: Expr, size: Expr, buffer: Buffer) -> bool:
    """Whether rows begin or end within 16 bytes."""
    group = ACCESS // buffer.dtype.itemsize
    numbers = [*begin.terms.values(), size.constant]
    return (
        buffer.dtype.itemsize <= MOST_BYTES
        and buffer.dtype != torch.bool
        and size.constant is not None
        and any(number is None or number % group for number in numbers)
    )


def _writes_along(body: Body, tile: Tile) -> bool:
    assert tile.inner is not None
    return any(tile.inner.symbol in e.symbols() for store in body.stores for e in store.index)


def _bytes(buffer: Buffer) -> int:
    return known(buffer.elements) * buffer.dtype.itemsize


__all__ = ["ACCESS", "OddRow", "odd_row"]
