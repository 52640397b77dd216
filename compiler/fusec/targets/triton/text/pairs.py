"""Loads, and stores, of every other element, two of which take neighbors: one takes both.

The windows of a pooling, the real and imaginary parts of what is stored in turns, the halves of an
interleaved rotary embedding: each thread would fetch single elements with a stride of two.  Fetched
together they are one stretch of memory, in accesses of 16 bytes, and no thread has to hand anything
to another: average pooling took 48 us and takes 38.

Where the windows of a pooling overlap, one element of three has no partner.  It is loaded with the
one before it, which nobody uses, so that it too is a part of a stretch (max pooling 57 us, and in
pairs 45).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Const, Load, Node, Reduce, indirect_nodes, walk
from fusec.targets.triton.plan.tiling import Dim, index_guards
from fusec.targets.triton.text import expressions as ex
from fusec.targets.triton.text.expressions import Text
from fusec.targets.triton.text.names import rounds_for_memory, wish_for

if TYPE_CHECKING:
    from fusec.targets.triton.text.block import Block

Access = TypeVar("Access", Load, Store)

TWICE = "twice"  # the index that runs over both elements of every pair


@dataclass(frozen=True)
class Pair:
    """Two loads of one buffer, the second of which takes the element after the first's.

    Attributes:
        first: The load of the lower address; None where nothing uses that element.
        second: The other one.
        rest: The offset of the first without the part that the paired axis has in it.
    """

    first: Load | None
    second: Load
    rest: Expr

    @property
    def loads(self) -> tuple[Load, ...]:
        """The loads that are used."""
        return tuple(load for load in (self.first, self.second) if load is not None)


@dataclass(frozen=True)
class StorePair:
    """Two stores to one buffer, the second of which writes the element after the first's.

    Attributes:
        first: The store to the lower address.
        second: The other one.
        rest: The offset of the first without the part that the paired axis has in it.
    """

    first: Store
    second: Store
    rest: Expr


def pairs_along(
    body: Body, buffers: Mapping[str, Buffer], axis: Symbol, free: Mapping[Node, frozenset[Symbol]]
) -> tuple[Pair, ...]:
    """Return the pairs of loads along ``axis``; none unless all strided loads are in some pair.

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
        if step != 2 or (load.mask is not None and not _about_places(load.mask, axis, free)):
            return ()
        key = (load.buffer, load.mask, load.other)
        waiting.setdefault(key, []).append((load, offset - 2 * Expr.of(axis)))
    found: list[Pair] = []
    alone: list[tuple[Load, Expr]] = []
    for loads in waiting.values():
        both, rest = neighbors(loads)
        found += [Pair(*each) for each in both]
        alone += rest
    if not found or not all(_is_odd(place) for _, place in alone):
        return ()
    return (*found, *(Pair(None, load, place - 1) for load, place in alone))


def store_pairs_along(
    body: Body, buffers: Mapping[str, Buffer], axis: Symbol
) -> tuple[StorePair, ...]:
    """Return the pairs of stores along ``axis``; none unless all stores are in some pair."""
    waiting: dict[str, list[tuple[Store, Expr]]] = {}
    for store in body.stores:
        offset = buffers[store.buffer].offset(store.index)
        if not offset.is_affine_in(axis) or offset.coefficient(axis).constant != 2:
            return ()
        if store.mode != "set" or indirect_nodes(store.index):
            return ()
        waiting.setdefault(store.buffer, []).append((store, offset - 2 * Expr.of(axis)))
    found: list[StorePair] = []
    for stores in waiting.values():
        both, alone = neighbors(stores)
        if alone:
            return ()
        found += [StorePair(*each) for each in both]
    return tuple(found)


def neighbors(
    accesses: Sequence[tuple[Access, Expr]],
) -> tuple[list[tuple[Access, Access, Expr]], list[tuple[Access, Expr]]]:
    """Return the pairs of accesses one element apart, and the accesses without a partner.

    Args:
        accesses: Each with its place, but for what all of them have in common.

    Returns:
        The lower one of each pair, the other one and the place of the lower; the others as given.
    """
    pairs: list[tuple[Access, Access, Expr]] = []
    alone: list[tuple[Access, Expr]] = []
    waiting = list(accesses)
    while waiting:
        access, place = waiting.pop(0)
        for other, beside in waiting:
            apart = (beside - place).constant
            if apart in (1, -1):
                waiting.remove((other, beside))
                up = apart == 1
                pairs.append((access, other, place) if up else (other, access, beside))
                break
        else:
            alone.append((access, place))
    return pairs, alone


def _is_odd(offset: Expr) -> bool:
    """Whether an offset is odd wherever it is: the element before it is in memory as well."""
    return ((offset - 1) % 2).constant == 0


def _about_places(mask: Node, axis: Symbol, free: Mapping[Node, frozenset[Symbol]]) -> bool:
    """Whether a mask depends on ``axis``, if at all, by the index itself."""
    return not any(isinstance(n, Load | Reduce) and axis in free[n] for n in walk((mask,)))


def _computed(load: Load, axis: Symbol, free: Mapping[Node, frozenset[Symbol]]) -> bool:
    """Whether a run-time integer says where along ``axis`` an element is."""
    payloads = [s.payload for e in load.index for s in e.symbols()]
    return any(isinstance(p, Node) and axis in free[p] for p in payloads)


def write_pair(block: Block, pair: Pair) -> None:
    """Write the load of two neighbors, unless ``block`` knows them already."""
    kernel, load = block.kernel, pair.second
    if load in block.known:
        return
    (col,) = (d for d in kernel.tile.dims if d.place == kernel.tile.rank - 1)
    dims = kernel.expr_dims(pair.rest) | {col}
    base = f"{kernel.parameters[load.buffer]}_ptr"
    if pair.rest.constant != 0:
        base = f"{base} + {block.index(pair.rest)}"
    conditions = [d.mask for d in block.ordered(dims - {col}) if d.mask]
    conditions.append(f"{TWICE}_inside")
    masks = [load.mask] if load.mask is not None else []
    for condition in masks + index_guards(load.index):
        along = kernel.node_dims(condition)
        text = _of_both(block, condition, col) if col in along else block.value(condition)
        conditions.append(text.within(ex.AND + 1))
        dims = dims | along
    address = f"{base} + {TWICE}"
    shape = kernel.tile.shape(dims)
    if any(d.place >= 0 for d in dims - kernel.expr_dims(pair.rest) - {col}):
        address = f"tl.broadcast_to({address}, {_doubled(shape, col.block)})"
    other = f", other={ex.number(load.other, load.dtype).source}" if masks else ""
    where = " & ".join(dict.fromkeys(conditions))
    for each in pair.loads:
        wish = wish_for(each, kernel.favorite, kernel.parameters)
        name = kernel.names.get(each) or kernel.name(wish)
        kernel.names[each], block.known[each] = name, Text(name)
    names = [kernel.names[each] for each in pair.loads]
    whole = kernel.name(f"{TWICE}_{names[0]}")
    sources = tuple(each.source for each in pair.loads)
    kernel.writer.mark(pair.loads[0].source)
    kernel.writer.line(f"{whole} = tl.load({address}, {where}{other})", sources)
    split = f"tl.split(tl.reshape({whole}, {shape[:-1]}, 2]))"
    unused = "_, " if pair.first is None else ""
    kernel.writer.line(f"{unused}{', '.join(names)} = {split}", sources)


def write_store_pair(block: Block, pair: StorePair) -> None:
    """Write two stores as one of both elements in turns."""
    kernel = block.kernel
    (col,) = (d for d in kernel.tile.dims if d.place == kernel.tile.rank - 1)
    dims = frozenset(d for d in kernel.tile.dims if d.place >= 0)
    base = f"{kernel.parameters[pair.first.buffer]}_ptr"
    if pair.rest.constant != 0:
        base = f"{base} + {block.index(pair.rest)}"
    nodes = [store.value for store in (pair.first, pair.second)]
    plain = [n.args[0] if rounds_for_memory(n) and n not in kernel.names else n for n in nodes]
    if plain[0].dtype == plain[1].dtype:
        nodes = plain  # the store rounds
    values = []
    for node in nodes:
        value = ex.typed(block.value(node), node.dtype).source
        if dims - kernel.node_dims(node):
            value = f"tl.broadcast_to({value}, {kernel.tile.shape(dims)})"
        values.append(value)
    conditions = [d.mask for d in block.ordered(dims - {col}) if d.mask]
    conditions.append(f"{TWICE}_inside")
    sources = [
        s
        for store in (pair.first, pair.second)
        for s in (store.source, *block.pending.get(store.value, ()))
    ]
    kernel.writer.mark(pair.first.source)
    address = f"{base} + {TWICE}"
    if dims - kernel.expr_dims(pair.rest) - {col}:
        address = f"tl.broadcast_to({address}, {_doubled(kernel.tile.shape(dims), col.block)})"
    kernel.writer.line(
        f"tl.store({address}, tl.interleave({', '.join(values)}), {' & '.join(conditions)})",
        tuple(dict.fromkeys(sources)),
    )


def _of_both(block: Block, condition: Node, col: Dim) -> Text:
    """Return a condition on the index of pairs, for both elements of each.

    Written over ``twice``, so that Triton sees that it holds for a pair or does not, and loads no
    element by itself.
    """
    if isinstance(condition, Const) or col not in block.kernel.node_dims(condition):
        return block.value(condition)
    inner = type(block)(block.kernel, block)
    inner.renamed = {col: f"({TWICE} // 2)"}
    if not block.kernel.compares_positions(condition):
        inner.known.update({arg: _of_both(block, arg, col) for arg in condition.args})
    return inner.text(condition)


def _doubled(shape: str, block: str) -> str:
    """Return the shape of a tile that has both elements of each pair."""
    return shape.replace(block, f"2 * {block}")


__all__ = [
    "TWICE",
    "Pair",
    "StorePair",
    "pairs_along",
    "store_pairs_along",
    "write_pair",
    "write_store_pair",
]
