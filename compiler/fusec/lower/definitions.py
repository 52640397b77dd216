"""What earlier steps of a graph compute, in place of a load of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusec.ir.body import Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node
from fusec.ir.program import Compute, Extern, Step
from fusec.ir.walk import rewrite, walk


class Definitions:
    """The results that are computed element by element, each by the formula of its elements.

    Fusion would do the same later; this is for rules of operators that have to know what they are
    given: whether places follow from nothing but positions, and which.

    Args:
        steps: Emitted so far.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._stores: dict[str, Store | None] = {}
        mutated = {n for step in steps if isinstance(step, Extern) for n in step.mutates}
        for step in steps:
            for name in step.writes():
                store = None if name in self._stores or name in mutated else _only_store(step)
                if store is not None and _reads(store.value) & mutated:
                    store = None  # it may have read what is no longer there
                self._stores[name] = store
        self._expanded: dict[Node, Node] = {}

    def expanded(self, node: Node) -> Node:
        """Return a node with all loads of such results replaced, down to what it follows from."""
        return self._expand(node, lambda value: True)

    def expanded_where_cheap(self, node: Node) -> Node:
        """Return a node with those loads replaced that follow from positions and one load."""
        return self._expand(node, _is_cheap)

    def _expand(self, node: Node, accepts: Callable[[Node], bool]) -> Node:
        def replace(each: Node) -> Node | None:
            formula = self._formula(each) if isinstance(each, Load) else None
            if formula is None:
                return None
            value = self._expand(formula, accepts)
            return value if accepts(value) else None

        return rewrite((node,), {}, replace)[0]

    def _formula(self, load: Load) -> Node | None:
        store = self._stores.get(load.buffer)
        if store is None or load.mask is not None:
            return None
        moves: dict[Symbol, Expr] = {}
        for stored, wanted in zip(store.index, load.index, strict=True):
            (symbol,) = stored.symbols()
            moves[symbol] = wanted
        return rewrite((store.value,), moves)[0]


def _only_store(step: Step) -> Store | None:
    """Return the store of a step that computes one tensor, element by element; None of others."""
    if not isinstance(step, Compute) or len(step.body.stores) != 1:
        return None
    (store,) = step.body.stores
    axes = tuple(Expr.of(axis) for axis in step.body.axes)
    plain = not step.body.has_reduction and not step.body.products and store.mode == "set"
    return store if plain and store.index == axes else None


def _is_cheap(value: Node) -> bool:
    """Whether a formula may be computed several times: it reads one element at most."""
    return sum(isinstance(node, Load) for node in walk((value,))) <= 1


def _reads(value: Node) -> set[str]:
    return {node.buffer for node in walk((value,)) if isinstance(node, Load)}


__all__ = ["Definitions"]
