"""Shapes of maths with a cheaper form, taken where half precision hides the difference.

``1 + erf(z)`` and ``1 + tanh(z)``, the heart of both GELUs, are each a polynomial or a quotient of
one exponential; so computed, they also keep the digits that the addition cancels where ``z`` is
far below zero.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from fusec.codegen.triton.relaxed import relaxed_nodes
from fusec.ir.body import Body
from fusec.ir.node import Const, Node, Op, op

ONE_PLUS = {"erf": "one_plus_erf", "tanh": "one_plus_tanh"}


def use_patterns(body: Body) -> Body:
    """Return ``body`` with ``1 + erf`` and ``1 + tanh`` as single operations, where they may be."""
    relaxed = relaxed_nodes(body)
    nodes = body.nodes()
    uses = Counter(arg for node in nodes for arg in node.args)
    done: dict[Node, Node] = {}
    for node in nodes:
        function = one_plus(node, uses) if node in relaxed else None
        if function is not None:
            done[node] = op(ONE_PLUS[function.name], (done[function.args[0]],), node.dtype)
            done[node].source = node.source
        else:
            args = tuple(done[arg] for arg in node.args)
            # positions and indices are never relaxed, so that no expression changes
            done[node] = node if args == node.args else node.rebuild(args, lambda expr: expr)
            done[node].source = node.source
    stores = tuple(replace(store, value=done[store.value]) for store in body.stores)
    return replace(body, stores=stores)


def one_plus(node: Node, uses: Counter[Node]) -> Op | None:
    """Return the ``erf`` or ``tanh`` in ``1 + erf(z)``, used for nothing else."""
    if not (isinstance(node, Op) and node.name == "add"):
        return None
    for function, one in (node.args, node.args[::-1]):
        known = isinstance(function, Op) and function.name in ONE_PLUS and uses[function] == 1
        if known and isinstance(one, Const) and one.value == 1:
            assert isinstance(function, Op)
            return function
    return None
