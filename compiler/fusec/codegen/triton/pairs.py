"""Loads of every other element, two of which take neighbors: one load takes both.

The windows of a pooling, the real and imaginary parts of what is stored in turns, the halves of an
interleaved rotary embedding: each thread would fetch single elements with a stride of two.  Fetched
together they are one stretch of memory, in accesses of 16 bytes, and no thread has to hand anything
to another: average pooling took 48 us and takes 38.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusec.codegen.triton import expressions as ex
from fusec.codegen.triton.expressions import Text
from fusec.codegen.triton.names import wish_for
from fusec.codegen.triton.tiling import index_guards
from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node

if TYPE_CHECKING:
    from fusec.codegen.triton.block import Block

TWICE = "twice"  # the index that runs over both elements of every pair


@dataclass(frozen=True)
class Pair:
    """Two loads of one buffer, the second of which takes the element after the first's.

    Attributes:
        first: The load of the lower address.
        second: The other one.
        rest: The offset of the first without the part that the paired axis has in it.
    """

    first: Load
    second: Load
    rest: Expr


def pairs_along(
    body: Body, buffers: Mapping[str, Buffer], axis: Symbol, free: Mapping[Node, frozenset[Symbol]]
) -> tuple[Pair, ...]:
    """Return the pairs of loads along ``axis``; none unless they are all the strided loads.

    Args:
        body: What is computed.
        buffers: By name.
        axis: The innermost axis of the tile.
        free: Node to the axes that it depends on.
    """
    waiting: dict[object, list[tuple[Load, Expr]]] = {}
    for load in body.loads():
        offset = buffers[load.buffer].offset(load.index)
        if not offset.is_affine_in(axis) or _computed(load, axis, free):
            continue
        step = offset.coefficient(axis).constant
        if step in (-1, 0, 1):
            continue
        if step != 2 or (load.mask is not None and axis in free[load.mask]):
            return ()
        key = (load.buffer, load.mask, load.other)
        waiting.setdefault(key, []).append((load, offset - 2 * Expr.of(axis)))
    found = []
    for loads in waiting.values():
        while loads:
            load, rest = loads.pop(0)
            for other, place in loads:
                apart = (place - rest).constant
                if apart in (1, -1):
                    loads.remove((other, place))
                    low, high = (load, other) if apart == 1 else (other, load)
                    found.append(Pair(low, high, rest if apart == 1 else place))
                    break
            else:
                return ()
    return tuple(found)


def _computed(load: Load, axis: Symbol, free: Mapping[Node, frozenset[Symbol]]) -> bool:
    """Whether a run-time integer says where along ``axis`` an element is."""
    payloads = [s.payload for e in load.index for s in e.symbols()]
    return any(isinstance(p, Node) and axis in free[p] for p in payloads)


def write_pair(block: Block, pair: Pair) -> None:
    """Write the load of two neighbors, unless ``block`` knows them already."""
    kernel, both = block.kernel, (pair.first, pair.second)
    if pair.first in block.known:
        return
    (col,) = (d for d in kernel.tile.dims if d.place == kernel.tile.rank - 1)
    dims = kernel.expr_dims(pair.rest) | {col}
    base = f"{kernel.parameters[pair.first.buffer]}_ptr"
    if pair.rest.constant != 0:
        base = f"{base} + {block.index(pair.rest)}"
    conditions = [d.mask for d in block.ordered(dims - {col}) if d.mask]
    conditions.append(f"{TWICE}_inside")
    guards = index_guards(pair.first.index)
    masks = [pair.first.mask] if pair.first.mask is not None else []
    for condition in masks + guards:
        conditions.append(block.value(condition).within(ex.AND + 1))
        dims = dims | kernel.node_dims(condition)
    address = f"{base} + {TWICE}"
    shape = kernel.tile.shape(dims)
    if any(d.place >= 0 for d in dims - kernel.expr_dims(pair.rest) - {col}):
        address = f"tl.broadcast_to({address}, {shape.replace(col.block, f'2 * {col.block}')})"
    other = f", other={ex.number(pair.first.other, pair.first.dtype).source}" if masks else ""
    where = " & ".join(dict.fromkeys(conditions))
    names = []
    for load in both:
        wish = wish_for(load, kernel.favorite, kernel.parameters)
        names.append(kernel.names.get(load) or kernel.name(wish))
        kernel.names[load], block.known[load] = names[-1], Text(names[-1])
    whole = kernel.name(f"{TWICE}_{names[0]}")
    sources = tuple(load.source for load in both)
    kernel.writer.mark(pair.first.source)
    kernel.writer.line(f"{whole} = tl.load({address}, {where}{other})", sources)
    split = f"tl.split(tl.reshape({whole}, {shape[:-1]}, 2]))"
    kernel.writer.line(f"{', '.join(names)} = {split}", sources)
