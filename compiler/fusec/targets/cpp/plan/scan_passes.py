"""Passes with scans: one element after the other, but only what has to be.

What is costly before and after a scan is done by vector loops of its own, a block of the row at a
time: the block's arguments into an array, then the scan through it, then what is made of the
results.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from fusec.codegen.common.c_language import HALVES
from fusec.codegen.common.reduction_passes import ReductionPass
from fusec.ir.body import Store
from fusec.ir.index import Symbol
from fusec.ir.node import Cast, Load, Node, Op, Reduce, Scan
from fusec.ir.scalars import cost_of
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.cache_blocks import in_blocks, is_position
from fusec.targets.cpp.plan.facts import Facts

REALS = (torch.float32, torch.float64)


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
    items: list[Reduce] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    kept: list[Node] = field(default_factory=list)


def plan_stretches(
    facts: Facts,
    nodes: Sequence[Node],
    stores: Sequence[Store],
    items: Sequence[Reduce],
    known: Collection[Node],
    *,
    isolated: bool = False,
) -> list[Stretch]:
    """Return the loops of a pass, in order; one without vectors where nothing would be gained.

    Args:
        facts: What decisions go by.
        nodes: What the pass computes for an element, arguments first.
        stores: Its stores.
        items: Its reductions.
        known: The values that are there already.
        isolated: Whether nothing else is done in the loops of the scans in any case.
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
        own_items = [item for item in items if everything or depth.get(item.args[0], 0) == level]
        own_stores = [
            store
            for store in stores
            # what is updated is written when all of the block has been read
            if everything
            or (last if store.buffer in facts.updated else depth.get(store.value, 0)) == level
        ]
        scans = [n for n in nodes if isinstance(n, Scan) and n in depth]
        scans = [n for n in scans if everything or depth[n] == level + 1]
        work = sum(_cost(node) for node in here if not isinstance(node, Scan))
        ordered = everything or any(is_position(item) for item in own_items)
        vector = (isolated or work >= choices.SCAN_BLOCK_COST) and not ordered
        if vector or not stretches or stretches[-1].vector:
            stretches.append(Stretch(vector))
        current = stretches[-1]
        current.stores += own_stores
        current.items += own_items
        current.roots += [store.value for store in own_stores]
        current.roots += [item.args[0] for item in own_items]
        if scans and vector:
            current.roots += [scan.args[0] for scan in scans]
            stretches.append(Stretch(False))
        stretches[-1].roots += scans
    _share(facts, stretches, known)
    return stretches


def _depths(nodes: Sequence[Node]) -> dict[Node, int]:
    """Return how many scans lie below each node, one behind the other."""
    depth: dict[Node, int] = {}
    for node in nodes:
        below = max((depth.get(arg, 0) for arg in node.args), default=0)
        depth[node] = below + 1 if isinstance(node, Scan) else below
    return depth


def _share(facts: Facts, stretches: Sequence[Stretch], known: Collection[Node]) -> None:
    """Decide what each loop computes, and what it keeps for the later ones."""
    arrays: set[Node] = set()
    for number, stretch in enumerate(stretches):
        there = {*known, *arrays}
        stretch.nodes = facts.closure(stretch.roots, there)
        later = [root for other in stretches[number + 1 :] for root in other.roots]
        needed = set(facts.closure(later, there))
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
    return cost_of(node.name) if isinstance(node, Op) else 0


def running_stretches(
    facts: Facts,
    step: ReductionPass,
    running: Sequence[Scan],
    axis: Symbol,
    known: Collection[Node],
) -> list[Stretch]:
    """Return the loops of a block of a pass; empty where its scans cannot go by vectors.

    Args:
        facts: What decisions go by.
        step: The pass.
        running: Its scans.
        axis: The innermost loop.
        known: The values that are there already.
    """
    if step.reductions or not facts.may_thread or not in_blocks(axis, step.inside):
        return []
    sums = all(node.kind == "sum" and node.dtype in REALS for node in running)
    given = [node.args[0] for node in running]
    if not sums or any(isinstance(n, Scan) or n.dtype not in REALS for n in given):
        return []
    stretches = plan_stretches(facts, step.inside, step.stores, (), known, isolated=True)
    alone = all(s.vector or all(isinstance(n, Scan) for n in s.nodes) for s in stretches)
    kept = {node for stretch in stretches for node in stretch.kept}
    # what is the same all along a row is in no array
    alone = alone and all(n in kept or is_direct(facts, n, axis) for n in given)
    return stretches if alone and len(stretches) > 1 else []


def is_direct(facts: Facts, node: Node, axis: Symbol) -> bool:
    """Whether a scan can take its values from where they lie in memory."""
    if not isinstance(node, Load) or node.mask is not None or node.buffer in facts.updated:
        return False
    if not all(isinstance(user, Scan) for user in facts.users.get(node, [])):
        return False
    if any(store.value is node for store in facts.body.stores):
        return False
    offset = facts.buffers[node.buffer].offset(node.index)
    return (
        not any(s.kind == "indirect" for s in offset.symbols())
        and offset.is_affine_in(axis)
        and offset.coefficient(axis) == 1
    )


__all__ = ["Stretch", "is_direct", "plan_stretches", "running_stretches"]
