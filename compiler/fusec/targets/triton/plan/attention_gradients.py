"""The gradients of attention taken apart, and the heuristics of their kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Const, Dot, Load, Node, Op, Reduce, const
from fusec.ir.program import Settings
from fusec.ir.walk import walk
from fusec.targets.triton.plan.choice import Choice, known, power_of_two
from fusec.targets.triton.plan.choices_attention import (
    Listed,
    fitted,
    make_knobs,
    parts_of_mask,
    size_of,
)


@dataclass(frozen=True)
class Total:
    """A gradient: a sum of products over the loop.

    Attributes:
        store: Where it goes.
        root: What is multiplied, in float32.
        product: The product.
        factor: What the sum is times.
        column: The loop along its rows.
    """

    store: Store
    root: Node
    product: Dot
    factor: float
    column: Symbol

    @property
    def operand(self) -> Load:
        """What it is multiplied by."""
        right = self.product.args[1]
        assert isinstance(right, Load)
        return right


@dataclass(frozen=True)
class Gradients:
    """A body that computes gradients of attention, taken apart.

    Attributes:
        batch: Its loop, None where there is one batch.
        head: Likewise.
        own: The loop whose rows a program has: over queries, or over keys.
        over: The loop that gradients are summed over.
        member: The heads that are summed over as well, or None.
        score: The product of query and key.
        of_weight: The product of the result's gradient and value.
        totals: The gradients.
        kept: Which scores are kept, where there are blocks.
        mask: The same within blocks that are kept in part; None for all.
        partial: Blocks that are kept in part.
        full: Blocks that are kept whole.
        by_keys: Whether a program has keys.
        common: Where what a row's weights have in common goes; None where it is read.
        row_sum: The sum over the row that it comes from.
        captured: What is added to the gradients of captured tensors, in a kernel that has no
            other ones.
    """

    batch: Symbol | None
    head: Symbol | None
    own: Symbol
    over: Symbol
    member: Symbol | None
    score: Dot
    of_weight: Dot
    totals: tuple[Total, ...]
    kept: Node | None
    mask: Node | None
    partial: Listed | None
    full: Listed | None
    by_keys: bool
    common: Store | None = None
    row_sum: Reduce | None = None
    captured: tuple[Store, ...] = ()

    @property
    def pairs(self) -> Expr:
        """The number of heads of all batches."""
        return size_of(self.batch) * size_of(self.head)

    @property
    def operands(self) -> tuple[Load, Load, Load, Load]:
        """What is read of the queries, keys, the result's gradient and the values."""
        loads = tuple(n for product in (self.score, self.of_weight) for n in product.args)
        query, key, gradient, value = loads
        assert isinstance(query, Load)
        assert isinstance(key, Load)
        assert isinstance(gradient, Load)
        assert isinstance(value, Load)
        return query, key, gradient, value

    @property
    def quick(self) -> bool:
        """Whether all is rounded to half precision, which hides the scores' last bits."""
        return self.score.args[0].dtype.itemsize == 2

    def roots(self, masked: bool) -> tuple[Node, ...]:
        """Return what is multiplied, within blocks that are kept in part or whole."""
        roots = tuple(total.root for total in self.totals)
        roots += tuple(store.value for store in self.captured)
        if self.kept is None:
            return roots
        kept = self.mask if masked and self.mask is not None else const(True, self.kept.dtype)

        done: dict[Node, Node] = {}
        for node in walk(roots, Reduce):
            args = tuple(done.get(arg, arg) for arg in node.args)
            same = node is not self.kept and (isinstance(node, Reduce) or args == node.args)
            if not same:
                new = kept if node is self.kept else node.rebuild(args, lambda expr: expr)
                done[node] = ops.decided(new) or new
                done[node].source = node.source
        return tuple(done.get(root, root) for root in roots)


def given_of(
    found: Gradients, roots: Sequence[Node], scored: Sequence[Node], differentiated: set[Node]
) -> tuple[Node, ...]:
    """Return what of the scores is needed once their weights' gradients are there.

    Args:
        found: The gradients.
        roots: What is multiplied.
        scored: What is computed of scores alone.
        differentiated: What needs the weights' gradients.
    """
    asked = {arg for node in differentiated for arg in node.args}
    weights = [root for root in roots if root not in differentiated]
    return (*weights, *(n for n in scored if n in asked and n not in weights))


def stepped_numbers(found: Gradients, buffers: Mapping[str, Buffer]) -> list[Load]:
    """Return the loads of one number a row of a step: four bytes each, one behind the other."""
    loads: dict[Load, None] = {}
    for masked in (False, True):
        for node in walk(found.roots(masked), Reduce):
            if not isinstance(node, Load) or node.dtype.itemsize != 4:
                continue
            *outer, last = node.index
            axes = {s for e in outer for s in e.symbols()}
            behind = buffers[node.buffer].strides[-1] == 1
            if last == Expr.of(found.over) and behind and not axes & {found.own, found.over}:
                loads[node] = None
    return list(loads)


def is_gradient(body: Body) -> bool:
    """Whether a body with several products is a gradient of attention, not attention itself."""
    return not any(isinstance(node, Reduce) and node.kind == "max" for node in body.nodes())


def match_gradients(body: Body) -> Gradients:
    """Return the parts of a body as ``lower/attention/backward.py`` made it."""
    captured = tuple(store for store in body.stores if store.mode == "add")
    if captured:
        return _match_captured(body, captured)
    rows = [store for store in body.stores if not _multiplies(store.value)]
    totals = tuple(_total(store) for store in body.stores if store not in rows)
    sums = [n for store in rows for n in walk((store.value,), Reduce) if isinstance(n, Reduce)]
    outer = [total.product for total in totals]
    score, of_weight = _inner_products(body, outer)
    *members, over = outer[0].axes
    *others, own = body.axes
    batch, head = (axis if axis.size != 1 else None for axis in others)
    kept = _kept(body)
    partial, full, mask = parts_of_mask(kept)
    by_keys = own in {s for e in score.args[1].exprs() for s in e.symbols()}
    return Gradients(
        batch,
        head,
        own,
        over,
        members[0] if members else None,
        score,
        of_weight,
        totals,
        kept,
        mask,
        partial,
        full,
        by_keys,
        rows[0] if rows else None,
        sums[0] if sums else None,
    )


def _match_captured(body: Body, captured: tuple[Store, ...]) -> Gradients:
    """Return the parts of a body that adds to the gradients of captured tensors."""
    score, of_weight = _inner_products(body, [])
    *others, own, over = body.axes
    batch, head = (axis if axis.size != 1 else None for axis in others)
    kept = _kept(body)
    partial, full, mask = parts_of_mask(kept)
    return Gradients(
        *(batch, head, own, over, None, score, of_weight, (), kept, mask, partial, full, False),
        captured=captured,
    )


def _kept(body: Body) -> Node | None:
    """Return which scores are kept, where there are blocks."""
    conditions = [n.args[0] for n in body.nodes() if isinstance(n, Op) and n.name == "where"]
    return next((c for c in conditions if _has_list(c)), None)


def _multiplies(node: Node) -> bool:
    return any(isinstance(n, Dot) for n in walk((node,)))


def _has_list(node: Node) -> bool:
    return any(isinstance(n, Reduce) and n.kind == "any" for n in walk((node,), Dot))


def _inner_products(body: Body, outer: list[Dot]) -> tuple[Dot, Dot]:
    """Return the product of query and key, and that of gradient and value."""
    inner = [p for p in body.products if p not in outer]
    weight = next(n for n in body.nodes() if isinstance(n, Op) and n.name == "exp2")
    (score,) = (p for p in inner if p in walk((weight,)))
    (of_weight,) = (p for p in inner if p is not score)
    return score, of_weight


def _total(store: Store) -> Total:
    value, factor = store.value, 1.0
    if isinstance(value, Cast):
        value = value.args[0]
    if isinstance(value, Op):
        number = value.args[1]
        assert isinstance(number, Const)
        value, factor = value.args[0], float(number.value)
    assert isinstance(value, Dot)
    root = value.args[0]
    root = root.args[0] if isinstance(root, Cast) else root
    (column,) = store.index[-1].symbols()
    return Total(store, root, value, factor, column)


def choose_gradients(
    found: Gradients, buffers: Mapping[str, Buffer], settings: Settings = ()
) -> Choice:
    """Decide the tunables of a gradient's kernel.

    Args:
        found: The gradients.
        buffers: By name.
        settings: Values of tunables, where a measurement knows better than the rules.
    """
    depth = max(known(size_of(each.axes[0])) for each in (found.score, found.of_weight))
    own, over, warps, stages = _tile(found, depth)
    row = depth * found.score.args[0].dtype.itemsize
    own, over, stages = fitted(own, over, stages, 2 * row, row)
    own = min(own, max(power_of_two(known(size_of(found.own))), 16))
    over = min(over, max(power_of_two(known(size_of(found.over))), 16))
    sizes = (
        {"BLOCK_M": over, "BLOCK_N": own} if found.by_keys else {"BLOCK_M": own, "BLOCK_N": over}
    )
    values = {**sizes, "GROUP_H": 8, "NUM_WARPS": warps, "NUM_STAGES": stages} | dict(settings)
    blocks = [each for each in (found.partial, found.full) if each is not None]
    rows = [b.columns if found.by_keys else b.rows for b in blocks]
    columns = [b.rows if found.by_keys else b.columns for b in blocks]
    return Choice("attention", (), knobs=make_knobs(values, rows, columns))


def _tile(found: Gradients, depth: int) -> tuple[int, int, int, int]:
    """Return own rows, rows of a step, warps and stages: what fits into registers."""
    if not found.quick:
        return (32, 32, 4, 1)
    if depth <= 64:
        return (64, 128, 4, 2) if found.by_keys else (64, 64, 4, 3)
    if depth <= 128:
        return (128, 64, 8, 3)
    return (64, 32, 8, 1)


__all__ = [
    "Gradients",
    "Total",
    "choose_gradients",
    "given_of",
    "is_gradient",
    "match_gradients",
    "stepped_numbers",
]
