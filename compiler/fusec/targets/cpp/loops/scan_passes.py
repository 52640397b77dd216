"""Passes with scans: one element after the other, but only what has to be.

What is costly before and after a scan is done by vector loops of its own, a block of the row at a
time: the block's arguments into an array, then the scan through it, then what is made of the
results.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from fusec.ir.body import Store
from fusec.ir.node import Cast, Node, Op, Scan
from fusec.ir.ops import EXPENSIVE
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.text.dtypes import HALVES
from fusec.targets.cpp.text.reductions import Accumulator
from fusec.targets.cpp.text.scope import Kernel


@dataclass
class Stretch:
    """One loop over a block.

    Attributes:
        vector: Whether it is a vector loop; scans are in the others.
        roots: What it computes.
        stores: The stores that it does.
        items: The reductions that take values in it.
        nodes: All that it computes, in order.
        kept: Of these, what later loops read from arrays.
    """

    vector: bool
    roots: list[Node] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    items: list[Accumulator] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    kept: list[Node] = field(default_factory=list)


def plan_stretches(
    kernel: Kernel,
    nodes: Sequence[Node],
    stores: Sequence[Store],
    items: Sequence[Accumulator],
    known: Collection[Node],
    *,
    apart: bool = False,
) -> list[Stretch]:
    """Return the loops of a pass, in order; one without vectors where nothing would be gained.

    Args:
        kernel: The kernel.
        nodes: What the pass computes for an element, arguments first.
        stores: Its stores.
        items: What its reductions add to.
        known: The values that are there already.
        apart: Whether nothing else is done in the loops of the scans in any case.
    """
    depth = _depths([node for node in nodes if node not in known])
    last = max(depth.values(), default=0)
    places = {s for store in stores for e in store.index for s in e.symbols()}
    computed = any(s.kind == "indirect" for s in places)  # with the values stored there
    levels = range(1) if computed else range(last + 1)
    stretches: list[Stretch] = []
    for level in levels:
        everything = len(levels) == 1
        here = [n for n in nodes if n in depth and (everything or depth[n] == level)]
        own_items = [
            item for item in items if everything or depth.get(item.node.args[0], 0) == level
        ]
        own_stores = [
            store
            for store in stores
            # what is updated is written when all of the block has been read
            if everything
            or (last if store.buffer in kernel.updated else depth.get(store.value, 0)) == level
        ]
        scans = [n for n in nodes if isinstance(n, Scan) and n in depth]
        scans = [n for n in scans if everything or depth[n] == level + 1]
        work = sum(_cost(node) for node in here if not isinstance(node, Scan))
        ordered = everything or any(item.is_index for item in own_items)
        vector = (apart or work >= choices.SCAN_BLOCK_COST) and not ordered
        if vector or not stretches or stretches[-1].vector:
            stretches.append(Stretch(vector))
        current = stretches[-1]
        current.stores += own_stores
        current.items += own_items
        current.roots += [store.value for store in own_stores]
        current.roots += [item.node.args[0] for item in own_items]
        if scans and vector:
            current.roots += [scan.args[0] for scan in scans]
            stretches.append(Stretch(False))
        stretches[-1].roots += scans
    _share(kernel, stretches, known)
    return stretches


def _depths(nodes: Sequence[Node]) -> dict[Node, int]:
    """Return how many scans lie below each node, one behind the other."""
    depth: dict[Node, int] = {}
    for node in nodes:
        below = max((depth.get(arg, 0) for arg in node.args), default=0)
        depth[node] = below + 1 if isinstance(node, Scan) else below
    return depth


def _share(kernel: Kernel, stretches: Sequence[Stretch], known: Collection[Node]) -> None:
    """Decide what each loop computes, and what it keeps for the later ones."""
    arrays: set[Node] = set()
    for number, stretch in enumerate(stretches):
        there = {*known, *arrays}
        stretch.nodes = kernel.closure(stretch.roots, there)
        later = [root for other in stretches[number + 1 :] for root in other.roots]
        needed = set(kernel.closure(later, there))
        stretch.kept = [
            node
            for node in stretch.nodes
            if node in needed
            and (
                isinstance(node, Scan)
                or (stretch.vector and node in stretch.roots)
                or _cost(node) >= choices.KEEP_COST
            )
        ]
        arrays.update(stretch.kept)


def _cost(node: Node) -> int:
    if isinstance(node, Cast) and (node.dtype in HALVES or node.args[0].dtype in HALVES):
        return choices.HALF_COST
    return EXPENSIVE.get(node.name, 1) if isinstance(node, Op) else 0


__all__ = ["Stretch", "plan_stretches"]
