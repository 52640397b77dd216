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
from typing import TypeVar

from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node, Reduce, indirect_nodes
from fusec.ir.walk import walk

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
            distance = (beside - place).constant
            if distance in (1, -1):
                waiting.remove((other, beside))
                up = distance == 1
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


__all__ = ["TWICE", "Pair", "StorePair", "neighbors", "pairs_along", "store_pairs_along"]
