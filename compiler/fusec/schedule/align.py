"""Aligning two computations: one iteration space for both, if there is one.

``merge(first, second)`` moves the loops of one computation onto those of the other and replaces
what it loads of the other's results by the values themselves.  It answers with the merged body, or
with the reason why none exists.  Everything here is about legality; whether it pays is for
``choices``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusec.ir import ops
from fusec.ir.body import Body, Store, axis_sizes
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node, Reduce, Scan
from fusec.ir.shapes import flatten, product, unflatten
from fusec.ir.walk import free_axes, rewrite, walk


@dataclass(frozen=True)
class Refusal:
    """Why two computations have no common kernel."""

    reason: str


Mapped = Mapping[Symbol, Expr]


def merge(first: Body, second: Body, *, onto_first: bool = False) -> Body | Refusal:
    """Return one body that does what ``first`` and then ``second`` do.

    ``second`` may read what ``first`` writes, never the other way round.

    Args:
        first: What runs first.
        second: What runs after it.
        onto_first: Whether the loops have to be those of ``first``.
    """
    refusal: Refusal | None = None
    for target, moving in ((second, first), (first, second)):
        if onto_first and target is second:
            continue
        space = _common_space(target, moving, first, second)
        if isinstance(space, Refusal):
            refusal = refusal or space
            continue
        axes, reduce_axes, mapping = space
        if not _keeps_order(moving, mapping):
            refusal = Refusal("a running value needs the dimension that it runs along as one loop")
            continue
        moved = moving.moved(axes, reduce_axes, mapping)
        placed = Body(axes, reduce_axes, target.stores)
        producer, consumer = (moved, placed) if moving is first else (placed, moved)
        joined = _join(producer, consumer, axes, reduce_axes)
        if not isinstance(joined, Refusal):
            return joined
        refusal = joined
    assert refusal is not None
    return refusal


def _keeps_order(moving: Body, mapping: Mapped) -> bool:
    """Whether every axis that a scan runs along goes onto one axis, forward."""
    places = (mapping.get(node.axis, Expr.of(node.axis)) for node in moving.scans())
    return all(place.constant == 0 or _lone_symbol(place) is not None for place in places)


def _common_space(
    target: Body, moving: Body, first: Body, second: Body
) -> tuple[tuple[Symbol, ...], tuple[Symbol, ...], dict[Symbol, Expr]] | Refusal:
    """Return axes, reduce_axes and where ``moving``'s axes go, all in terms of ``target``."""
    solved = _match_accesses(target, moving, first, second)
    outer_t, inner_t = target.axes, target.reduce_axes
    if moving.reduce_axes and not inner_t:
        split = _split_pointwise(target, moving, solved)
        if isinstance(split, Refusal):
            return split
        outer_t, inner_t = split
    mapping: dict[Symbol, Expr] = {}
    if not moving.reduce_axes and inner_t:
        # a pointwise body next to a reduction: its axes cover rows and their elements, or rows
        whole = outer_t + inner_t
        turn = _may_turn(target, moving)
        refusal = _complete(mapping, moving.axes, whole, solved, turn=turn)
        if refusal is not None:
            mapping = {}
            refusal = _complete(mapping, moving.axes, outer_t, solved)
        if refusal is not None:
            return refusal
        return outer_t, inner_t, mapping
    refusal = _complete(mapping, moving.axes, outer_t, solved)
    if refusal is not None:
        return refusal
    refusal = _complete(mapping, moving.reduce_axes, inner_t, solved)
    if refusal is not None:
        return Refusal(f"they reduce over different dimensions ({refusal.reason})")
    return outer_t, inner_t, mapping


def _match_accesses(target: Body, moving: Body, first: Body, second: Body) -> dict[Symbol, Expr]:
    """Return where axes of ``moving`` must go for common buffers to be accessed alike."""
    solved: dict[Symbol, Expr] = {}
    own = set(moving.axes) | set(moving.reduce_axes)
    turn = _may_turn(target, moving)
    for left, right in _access_pairs(target, moving, first):
        trial: dict[Symbol, Expr] = {}
        for mine, theirs in zip(right, left, strict=True):
            symbol = _lone_symbol(mine)
            place = theirs
            if symbol is None and turn:
                symbol = _turned_symbol(mine)
                if symbol is not None and symbol.size is not None:
                    place = symbol.size - 1 - theirs
            if symbol is not None and symbol in own:
                trial.setdefault(symbol, place)
        for symbol, place in trial.items():
            if any(s.kind == "indirect" for s in place.symbols()):
                continue
            solved.setdefault(symbol, place)
    return solved


def _access_pairs(
    target: Body, moving: Body, first: Body
) -> list[tuple[tuple[Expr, ...], tuple[Expr, ...]]]:
    """Return pairs (target's index, moving's index) of one buffer: dependencies before reads."""
    target_loads: dict[str, tuple[Expr, ...]] = {}
    for load in target.loads():
        target_loads.setdefault(load.buffer, load.index)
    moving_loads: dict[str, tuple[Expr, ...]] = {}
    for load in moving.loads():
        moving_loads.setdefault(load.buffer, load.index)
    pairs = []
    if moving is first:
        for store in moving.stores:
            if store.buffer in target_loads:
                pairs.append((target_loads[store.buffer], store.index))
    else:
        for store in target.stores:
            if store.buffer in moving_loads:
                pairs.append((store.index, moving_loads[store.buffer]))
    pairs += [
        (target_loads[name], index) for name, index in moving_loads.items() if name in target_loads
    ]
    return pairs


def _lone_symbol(expr: Expr) -> Symbol | None:
    if len(expr.terms) != 1:
        return None
    ((monomial, c),) = expr.terms.items()
    if c == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
        return monomial[0]
    return None


def _may_turn(target: Body, moving: Body) -> bool:
    """Whether ``moving`` may run over its elements backward.

    What comes before or after a scan may: the gradient of a running sum is one from the other end.
    """
    return not moving.reduce_axes and bool(target.scans())


def _turned_symbol(expr: Expr) -> Symbol | None:
    """Return the axis of which ``expr`` is the position counted from the end."""
    for symbol in expr.symbols():
        turned = None if symbol.size is None else symbol.size - 1 - Expr.of(symbol)
        if symbol.kind == "axis" and expr == turned:
            return symbol
    return None


def _split_pointwise(
    target: Body, moving: Body, solved: Mapped
) -> tuple[tuple[Symbol, ...], tuple[Symbol, ...]] | Refusal:
    """Divide a pointwise body's axes into the rows and the elements of a reduction."""
    rows: set[Symbol] = set()
    for axis in moving.axes:
        if axis in solved:
            rows |= solved[axis].symbols()
    elements: set[Symbol] = set()
    for axis in moving.reduce_axes:
        if axis in solved:
            elements |= solved[axis].symbols()
    if rows & elements:
        return Refusal("rows and elements of the reduction are mixed in one dimension")
    rest = [a for a in target.axes if a not in rows and a not in elements]
    sizes = product(axis_sizes(moving.axes))
    row_axes = tuple(a for a in target.axes if a in rows)
    if product(axis_sizes(row_axes)) == sizes:
        inner = tuple(a for a in target.axes if a not in rows)
        outer = row_axes
    elif elements:
        inner = tuple(a for a in target.axes if a in elements)
        outer = tuple(a for a in target.axes if a not in elements)
    else:
        count = product(axis_sizes(moving.reduce_axes))
        inner_list: list[Symbol] = []
        while rest and product(axis_sizes(tuple(inner_list))) != count:
            inner_list.insert(0, rest.pop())
        inner = tuple(inner_list)
        outer = tuple(a for a in target.axes if a not in inner)
    if product(axis_sizes(outer)) != sizes:
        return Refusal(
            f"one runs over {_text(target.axes)}, the other over {_text(moving.axes)} rows of "
            f"{_text(moving.reduce_axes)}"
        )
    if not inner or all(a.size == 1 for a in inner):
        return outer + inner, moving.reduce_axes  # only rows: keep the reduction's own axes
    return outer, inner


def _text(axes: tuple[Symbol, ...]) -> str:
    return " x ".join(str(a.size) for a in axes) or "1"


def _complete(
    mapping: dict[Symbol, Expr],
    axes: tuple[Symbol, ...],
    onto: tuple[Symbol, ...],
    solved: Mapped,
    *,
    turn: bool = False,
) -> Refusal | None:
    """Extend ``mapping`` so that ``axes`` cover ``onto`` one to one; or say why not.

    With ``turn`` an axis may run backward.
    """
    sizes, onto_sizes = axis_sizes(axes), axis_sizes(onto)
    if product(sizes) != product(onto_sizes):
        return Refusal(f"one runs over {_text(axes)}, the other over {_text(onto)}")
    if all(a in onto for a in axes):  # the very same loops
        mapping.update({a: Expr.of(a) for a in axes})
        return None
    allowed = set(onto)
    matched = {a: solved[a] for a in axes if a in solved and solved[a].symbols() <= allowed}
    if _is_bijection(matched, axes, onto, turn):
        # An axis of one element stays at it, wherever the other body reads what this one does.
        mapping.update({a: matched[a] if a.size != 1 else Expr.of(0) for a in axes})
        return None
    conflict = any(
        a in matched and a.size != 1 and matched[a] != expected
        for a, expected in zip(
            axes, unflatten(flatten(_exprs(onto), onto_sizes), sizes), strict=True
        )
    )
    if conflict:
        return Refusal("they visit the elements in an order that has no common loop")
    position = flatten(_exprs(onto), onto_sizes)
    mapping.update(zip(axes, unflatten(position, sizes), strict=True))
    return None


def _exprs(axes: tuple[Symbol, ...]) -> tuple[Expr, ...]:
    return tuple(Expr.of(a) for a in axes)


def _is_bijection(
    mapping: Mapped, axes: tuple[Symbol, ...], onto: tuple[Symbol, ...], turn: bool
) -> bool:
    """Whether ``mapping`` sends the non-trivial axes to all of ``onto``, each to one of its size.

    What it sends elsewhere is no permutation; a reshape agrees in the row-major position.
    """
    wide = [a for a in axes if a.size != 1]
    if any(a not in mapping for a in wide):
        return False
    places = [
        _lone_symbol(mapping[a]) or (_turned_symbol(mapping[a]) if turn else None) for a in wide
    ]
    same = all(p is not None and p.size == a.size for p, a in zip(places, wide, strict=True))
    return same and len(set(places)) == len(wide) == len([a for a in onto if a.size != 1])


def _join(
    producer: Body, consumer: Body, axes: tuple[Symbol, ...], reduce_axes: tuple[Symbol, ...]
) -> Body | Refusal:
    """Put ``consumer`` after ``producer`` in one space, its loads of the results replaced."""
    written = {store.buffer: store for store in producer.stores}
    if set(consumer.writes()) & (set(producer.reads()) | set(written)):
        # the later one overwrites what the earlier one reads: safe only at the same element
        refusal = _check_overwrites(producer, consumer)
        if refusal is not None:
            return refusal
    replaced = _without_loads(consumer, axes, reduce_axes, written)
    if isinstance(replaced, Refusal):
        return replaced
    joined = Body(axes, reduce_axes, producer.stores + replaced.stores)
    return _check_levels(joined) or joined


def _without_loads(
    consumer: Body,
    axes: tuple[Symbol, ...],
    reduce_axes: tuple[Symbol, ...],
    written: Mapping[str, Store],
) -> Body | Refusal:
    """Return a body over given loops, the values of stores in place of the loads of them."""
    failure: list[Refusal] = []

    def swap(node: Node) -> Node | None:
        if not isinstance(node, Load) or node.buffer not in written:
            return None
        value = _value_at(written[node.buffer], node)
        if isinstance(value, Refusal):
            failure.append(value)
            return None
        return value

    replaced = consumer.moved(axes, reduce_axes, {}, swap)
    return failure[0] if failure else replaced


def _value_at(store: Store, load: Load) -> Node | Refusal:
    """Return the value that ``load`` of a stored buffer yields, without going through memory."""
    if store.updates or store.mode == "sum":
        return Refusal("its elements have their values only when all updates are done")
    value: Node | None = None
    if _same_place(store.index, load.index):
        value = store.value
    else:
        value = _reindexed(store, load)
        if value is None:
            return Refusal(
                "it reads other elements than the ones computed at the same point of the loop"
            )
    if load.mask is not None:
        value = ops.masked(load.mask, value, load.other)
    return value


def _same_place(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> bool:
    return left == right


def _reindexed(store: Store, load: Load) -> Node | None:
    """Return the stored expression at another index; None where that takes another reduction.

    A value such as ``x[i, j] - log_sum(x[i, :])`` may be moved along ``j``, which its reductions
    bind: the loss at one class needs no more of the row than its sums.
    """
    moves: dict[Symbol, Expr] = {}
    for stored, wanted in zip(store.index, load.index, strict=True):
        symbol = _lone_symbol(stored)
        if symbol is not None:
            if moves.setdefault(symbol, wanted) != wanted:
                return None
        elif stored.constant is None or stored != wanted:
            return None
    if not free_axes((store.value,))[store.value] <= set(moves):
        return None
    moves = {symbol: place for symbol, place in moves.items() if place != Expr.of(symbol)}
    outside = walk((store.value,), Reduce)  # outside of reductions
    if any(isinstance(n, Scan) for n in outside):
        return None
    if any(isinstance(n, Reduce) and not set(moves) <= set(n.axes) for n in outside):
        return None
    return rewrite((store.value,), moves, leaf=Reduce)[0]


def _on_axes_of(consumer: Body, producer: Body, store: Store) -> Body:
    """Return a pointwise consumer over the producer's own loops, where it reads point by point.

    A chain that grows link by link then stays as it is, and is not written anew for each of them.
    """
    loads = [load for load in consumer.loads() if load.buffer == store.buffer]
    same = consumer.sizes() == producer.sizes() and not consumer.reduce_axes
    if not same or len({load.index for load in loads}) != 1:
        return consumer
    mapping = dict(zip(consumer.axes, map(Expr.of, producer.axes), strict=True))
    if tuple(expr.substitute(mapping) for expr in loads[0].index) != store.index:
        return consumer
    return consumer.moved(producer.axes, (), mapping)


def _check_overwrites(producer: Body, consumer: Body) -> Refusal | None:
    for store in consumer.stores:
        for load in producer.loads():
            if load.buffer == store.buffer and load.index != store.index:
                return Refusal(f"{store.buffer} is overwritten while other elements are needed")
        if any(s.buffer == store.buffer for s in producer.stores):
            return Refusal(f"both write {store.buffer}")
    return None


def _check_levels(body: Body) -> Refusal | None:
    """Refuse what the passes over a row cannot express."""
    reduced = set(body.reduce_axes)
    for node in body.nodes():
        if isinstance(node, Reduce) and any(a.size != 1 for a in reduced - set(node.axes)):
            return Refusal("one reduces over only a part of what the other does")
        if isinstance(node, Scan) and any(a.size != 1 for a in reduced - {node.axis}):
            return Refusal("a running value goes along only a part of what the other runs over")
    return None


# A body of more values than this is moved only where that cannot be spared.
_LONG = 64


def inline_producer(consumer: Body, producer: Body, *, alone: bool) -> Body | Refusal:
    """Return ``consumer`` with the loads of a pointwise producer's result computed in place.

    Args:
        consumer: Reads the result.
        producer: Has one store.
        alone: Whether nobody else reads it, so that its loops may become the consumer's.
    """
    (store,) = producer.stores
    if alone and len(producer.nodes()) > _LONG:
        consumer = _on_axes_of(consumer, producer, store)
    return _without_loads(consumer, consumer.axes, consumer.reduce_axes, {store.buffer: store})
