"""What goes through arrays, a block at a time: conversions of halves, random words, streams.

Inside of a vector loop the compiler has no instruction for float16, and a dozen integer operations
each way cost more than most kernels.  So what a block reads is converted into an array of float
before its loop, and what it writes from one after it.  bfloat16 is a shift to read, and stays in
the loop; to write, it takes nine operations, or one instruction that the compiler does not use.
Random words come 64 from 16 Philox numbers, of which an element by itself would compute one
for each word.  What is written past the caches is written in whole lines (see ``nontemporal.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

from fusec.ir.body import Store
from fusec.ir.index import Symbol
from fusec.ir.node import Cast, Const, IndexValue, Load, Node, Op
from fusec.ir.ops import RANDOM_WORD
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, extent
from fusec.targets.cpp.plan.nontemporal import is_streamed, runs_along


@dataclass(frozen=True)
class Staging:
    """What of a loop goes through arrays.

    Attributes:
        loads: Each load of halves, and the casts to float that are all its uses.
        stores: Stores of halves that are cast for them alone.
        random: Random words of consecutive positions.
        streams: Stores past the caches; among them may be some of ``stores``.
    """

    loads: tuple[tuple[Load, tuple[Cast, ...]], ...] = ()
    stores: tuple[Store, ...] = ()
    random: tuple[Op, ...] = ()
    streams: tuple[Store, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores or self.random or self.streams)

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """The types of halves that are converted."""
        loads = {load.dtype for load, _ in self.loads}
        return frozenset(loads | {store.value.dtype for store in self.stores})

    @property
    def streamed(self) -> frozenset[str]:
        """The buffers that are written past the caches."""
        return frozenset(store.buffer for store in self.streams)


def staged(
    facts: Facts,
    axis: Symbol,
    nodes: Iterable[Node],
    stores: Sequence[Store],
    read: Collection[torch.dtype] = (torch.float16,),
) -> Staging:
    """Return what a loop along ``axis`` over ``nodes`` and ``stores`` may have by the block.

    Args:
        facts: What decisions go by.
        axis: What the loop runs along.
        nodes: What is computed in it.
        stores: What it stores.
        read: The types of halves that are converted before it.
    """
    streams = tuple(store for store in stores if is_streamed(facts, store, axis))
    if not facts.allows("staging"):
        return Staging(streams=streams)
    loads, random = [], []
    for node in nodes:
        if isinstance(node, Op) and node.name == RANDOM_WORD and _is_stream(facts, node, axis):
            random.append(node)
        if not isinstance(node, Load) or node.mask is not None or node.buffer in facts.updated:
            continue
        users = facts.users.get(node, [])
        casts = [u for u in users if isinstance(u, Cast) and u.dtype == torch.float32]
        halves = facts.buffers[node.buffer].dtype in read
        if halves and len(casts) == len(users) and runs_along(facts, node, axis):
            loads.append((node, tuple(casts)))
    values = [store.value for store in facts.body.stores]
    written = [
        store
        for store in stores
        if store.mode == "set"
        and store.buffer not in facts.updated
        and isinstance(store.value, Cast)
        and store.value.args[0].dtype == torch.float32
        and values.count(store.value) == 1
        and not facts.users.get(store.value)
        and store.value.dtype in (torch.float16, torch.bfloat16)
        and runs_along(facts, store, axis)
    ]
    return Staging(tuple(loads), tuple(written), tuple(random), streams)


def staged_row(
    facts: Facts,
    axis: Symbol,
    nodes: Iterable[Node],
    stores: Sequence[Store],
    read: Collection[torch.dtype] = (torch.float16,),
) -> Staging:
    """Return which halves of a short row are converted before and after the loop over it.

    Args:
        facts: What decisions go by.
        axis: What it runs along, whole.
        nodes: What is computed in it.
        stores: What it stores.
        read: As for ``staged``.
    """
    found = staged(facts, axis, nodes, stores, read)
    staging, size = Staging(found.loads, found.stores), extent(axis)
    if size is None or not choices.worth_staging(size, staging.dtypes):
        return Staging()
    return staging


def _is_stream(facts: Facts, node: Op, axis: Symbol) -> bool:
    """Whether the random words of a loop along ``axis`` are those of consecutive positions."""
    seed, position, stream = node.args
    return (
        isinstance(position, IndexValue)
        and isinstance(stream, Const)
        and axis not in facts.free[seed]
        and not any(s.kind == "indirect" for s in position.expr.symbols())
        and position.expr.is_affine_in(axis)
        and position.expr.coefficient(axis) == 1
    )


__all__ = ["Staging", "staged", "staged_row"]
