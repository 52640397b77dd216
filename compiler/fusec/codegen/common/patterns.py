"""Shapes of maths with a cheaper form.

``1 + erf(z)`` and ``1 + tanh(z)``, the heart of both GELUs, are each a polynomial or a quotient of
one exponential; so computed, they also keep the digits that the addition cancels where ``z`` is
far below zero.  GELU's derivative, ``(1 + erf(x / sqrt(2))) / 2 + x exp(-x^2 / 2) / sqrt(2 pi)``,
has the same exponential in both terms, and takes one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import torch

from fusec.ir.body import Body
from fusec.ir.node import Const, IndexValue, Load, Node, Op, op
from fusec.ir.scalars import SCALARS
from fusec.ir.walk import walk

Replacement = Callable[[Node, Mapping[Node, Node]], Node | None]

ONE_PLUS = {"erf": "one_plus_erf", "tanh": "one_plus_tanh"}
SLOPE = "gelu_slope"


def use_one_plus(body: Body, functions: Collection[str], may: Callable[[Node], bool]) -> Body:
    """Return ``body`` with ``1 + f(z)`` as single operations.

    Args:
        body: What to rewrite.
        functions: Which of ``ONE_PLUS`` there is a form for.
        may: Whether a sum may be rewritten.
    """
    uses = Counter(arg for node in body.nodes() for arg in node.args)

    def replaced(node: Node, done: Mapping[Node, Node]) -> Node | None:
        function = one_plus(node, uses) if may(node) else None
        if function is None or function.name not in functions:
            return None
        return op(ONE_PLUS[function.name], (done[function.args[0]],), node.dtype)

    return replace_values(body, replaced)


def use_slope(body: Body) -> Body:
    """Return ``body`` with derivatives of GELU in float32 as single operations.

    Args:
        body: One that has been through ``use_one_plus``.
    """
    if not any(isinstance(node, Op) and node.name == ONE_PLUS["erf"] for node in body.nodes()):
        return body
    uses = Counter(arg for node in body.nodes() for arg in node.args)
    fixed = index_nodes(body)

    def replaced(node: Node, done: Mapping[Node, Node]) -> Node | None:
        x = None if node in fixed else gelu_slope(node, uses)
        return None if x is None else op(SLOPE, (done[x],), node.dtype)

    return replace_values(body, replaced)


def half_form(name: str, *, coarse: bool = False) -> str:
    """Return the form of an operation that half precision does not tell from it; or nothing.

    Args:
        name: The operation, in float32.
        coarse: Whether it need be no more exact than eight bits are.
    """
    for form in (f"{name}_for_bfloat16", f"{name}_for_half")[not coarse :]:
        if form in SCALARS:
            return form
    return ""


def replace_values(body: Body, replaced: Replacement) -> Body:
    """Return ``body`` with values replaced, but for those that positions are computed from.

    Args:
        body: What to rewrite.
        replaced: Takes a node, arguments first, and what became of the nodes before it; returns
            what is to be in its place, or None to keep it.
    """
    done: dict[Node, Node] = {}
    for node in body.nodes():
        new = replaced(node, done)
        if new is None:
            args = tuple(done[arg] for arg in node.args)
            new = node if args == node.args else node.rebuild(args, lambda expr: expr)
        new.source = node.source
        done[node] = new
    stores = tuple(replace(store, value=done[store.value]) for store in body.stores)
    return replace(body, stores=stores, companions=tuple(done[each] for each in body.companions))


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


def gelu_slope(node: Node, uses: Counter[Node]) -> Node | None:
    """Return the ``x`` of GELU's derivative in float32, whose terms are used for nothing else."""
    if not (isinstance(node, Op) and node.name == "add" and node.dtype == torch.float32):
        return None
    for share, density in (node.args, node.args[::-1]):
        x = _only_factor(share, 0.5, ONE_PLUS["erf"], uses)
        x = None if x is None else _only_factor(x, math.sqrt(0.5))
        if x is None:
            continue
        factor, rest = _factors(density)
        if rest[x] != 1 or not _same_number(factor, 1 / math.sqrt(2 * math.pi)):
            continue
        rest[x] -= 1
        (power,) = (+rest).elements() if (+rest).total() == 1 else (None,)
        if power is None or not _is_function(power, "exp", uses):
            continue
        scale, squared = _factors(power.args[0])
        if squared == Counter({x: 2}) and scale == -0.5:
            return x
    return None


def _only_factor(
    node: Node, scale: float, function: str = "", uses: Counter[Node] | None = None
) -> Node | None:
    """Return what ``node`` is ``scale`` times; with a function, what that is of."""
    factor, rest = _factors(node)
    if rest.total() != 1 or not _same_number(factor, scale):
        return None
    (found,) = rest
    if not function:
        return found
    return found.args[0] if uses is not None and _is_function(found, function, uses) else None


def _is_function(node: Node, name: str, uses: Counter[Node]) -> bool:
    return isinstance(node, Op) and node.name == name and uses[node] == 1


def _same_number(value: float, wanted: float) -> bool:
    """Whether a number is another one, in float32 at least."""
    return math.isclose(value, wanted, rel_tol=1e-7)


def _factors(node: Node) -> tuple[float, Counter[Node]]:
    """Return the constant of a product and its other factors."""
    if isinstance(node, Const) and isinstance(node.value, int | float):
        return float(node.value), Counter()
    if not (isinstance(node, Op) and node.name == "mul"):
        return 1.0, Counter({node: 1})
    (first, these), (second, those) = map(_factors, node.args)
    return first * second, these + those


def index_nodes(body: Body) -> set[Node]:
    """Return the values that positions are computed from."""
    exprs = [e for store in body.stores for e in store.index]
    for node in body.nodes():
        if isinstance(node, Load):
            exprs += node.index
        elif isinstance(node, IndexValue):
            exprs.append(node.expr)
    payloads = (s.payload for e in exprs for s in e.symbols())
    return set(walk(tuple(p for p in payloads if isinstance(p, Node))))


__all__ = [
    "ONE_PLUS",
    "gelu_slope",
    "half_form",
    "index_nodes",
    "one_plus",
    "replace_values",
    "use_one_plus",
    "use_slope",
]
