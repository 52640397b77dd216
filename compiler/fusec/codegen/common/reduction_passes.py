"""Which pass over the reduced axes computes what: the analysis that both emitters share.

A body such as softmax needs several passes over a row: one for the maximum, one for the sum of
the exponentials, one that writes.  A value that depends on a reduced axis is *elementwise* and is
computed inside the loop over the row; a value that does not is a *row* value and is computed
between the loops.  ``plan_passes`` assigns each reduction, store and value to its pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.body import Body, Store
from fusec.ir.index import Symbol
from fusec.ir.node import Node, Reduce
from fusec.ir.walk import free_axes, walk


@dataclass(frozen=True)
class ReductionPass:
    """One loop over the reduced axes, and what happens before it.

    Attributes:
        before: Row values to compute before the loop, in order; they were not available in
            an earlier pass. Reductions are not among them.
        row_stores: Stores of row values that can be done before this loop.
        inside: Elementwise nodes to compute in the loop, in order, for the reductions and stores
            below; a node that two passes need is listed in both.
        reductions: Reductions whose argument is complete in this pass.
        stores: Elementwise stores done in this pass.
    """

    before: tuple[Node, ...]
    row_stores: tuple[Store, ...]
    inside: tuple[Node, ...]
    reductions: tuple[Reduce, ...]
    stores: tuple[Store, ...]

    @property
    def loops(self) -> bool:
        """Whether there is a loop at all in this pass."""
        return bool(self.reductions or self.stores)


@dataclass(frozen=True)
class PassPlan:
    """The passes of a body, and the level of every node.

    Attributes:
        passes: In order; the last may have no loop.
        elementwise: The nodes whose value depends on a reduced axis.
        ready: Node to the first pass that can compute it.
        free: Node to the axes that its value depends on.
    """

    passes: tuple[ReductionPass, ...]
    elementwise: frozenset[Node]
    ready: dict[Node, int]
    free: dict[Node, frozenset[Symbol]]


def plan_passes(body: Body) -> PassPlan:
    """Assign the nodes and stores of ``body`` to passes over its reduced axes."""
    reduced = frozenset(body.reduce_axes)
    nodes = body.nodes()
    free = free_axes(body.computed)
    elementwise = frozenset(node for node in nodes if free[node] & reduced)
    ready: dict[Node, int] = {}
    for node in nodes:
        latest = max((ready[arg] for arg in node.args), default=0)
        ready[node] = latest + 1 if isinstance(node, Reduce) else latest

    def is_elementwise(store: Store) -> bool:
        symbols = {s for e in store.index for s in e.symbols()}
        return store.value in elementwise or bool(symbols & reduced)

    count = max((ready[node] for node in nodes), default=0) + 1
    passes = []
    computed: set[Node] = set()
    for number in range(count):
        before = tuple(
            node
            for node in nodes
            if node not in elementwise
            and ready[node] == number
            and not isinstance(node, Reduce)
            and node not in computed
        )
        computed.update(before)
        reductions = tuple(
            node for node in nodes if isinstance(node, Reduce) and ready[node] == number + 1
        )
        stores = tuple(s for s in body.stores if is_elementwise(s) and ready[s.value] == number)
        row_stores = tuple(
            s for s in body.stores if not is_elementwise(s) and ready[s.value] == number
        )
        wanted = walk(tuple(r.args[0] for r in reductions) + tuple(s.value for s in stores))
        # what lies below an earlier reduction is not computed again
        inside = tuple(_live_elementwise(wanted, reductions, stores, elementwise))
        passes.append(ReductionPass(before, row_stores, inside, reductions, stores))
    return PassPlan(tuple(passes), elementwise, ready, free)


def _live_elementwise(
    wanted: list[Node],
    reductions: tuple[Reduce, ...],
    stores: tuple[Store, ...],
    elementwise: frozenset[Node],
) -> list[Node]:
    """Return the elementwise nodes of ``wanted`` that are reached without crossing a reduction."""
    live: set[Node] = set()
    stack = [r.args[0] for r in reductions] + [s.value for s in stores]
    while stack:
        node = stack.pop()
        if node in live or node not in elementwise:
            continue
        live.add(node)
        stack.extend(node.args)
    return [node for node in wanted if node in live]
