"""Splitting loops where a condition on a loop variable changes.

``cat``, ``pad``, ``stack``, ``flip`` and slices that are written leave comparisons of positions in
a body: this element comes from the first tensor as long as ``i < 1024``.  A loop over all of them
would test every element and mask every read; two loops, up to 1024 and from there on, need
neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fusec.ir import ops
from fusec.ir.body import Body, Buffer
from fusec.ir.checks import is_check
from fusec.ir.index import Expr, Symbol, is_nonnegative
from fusec.ir.node import Const, IndexValue, Load, Node, Op, Reduce, Scan
from fusec.ir.scalars import SCALARS
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import extent

_FIRST_AFTER = {"lt": 0, "ge": 0, "le": 1, "gt": 1}


def split_ranges(body: Body, axes: Collection[Symbol]) -> list[Body]:
    """Return bodies, over parts of the loops, that together do what ``body`` does.

    Args:
        body: What to split; its outer points are independent.
        axes: The outer loops that may be split.
    """
    done: list[Body] = []
    waiting = [(body, frozenset(axes))]
    while waiting:
        current, loops = waiting.pop()
        points = len(done) + len(waiting) + 2
        found = _split_point(current, loops) if points <= choices.MAX_RANGES else None
        if found is None:
            done.append(current)
            continue
        axis, point = found
        for part in (_part(current, axis, point, None), _part(current, axis, Expr.of(0), point)):
            new = (a for a in part.axes if a not in current.axes)
            waiting.append((part, (loops - {axis}).union(new)))
    return done


def _split_point(body: Body, loops: Collection[Symbol]) -> tuple[Symbol, Expr] | None:
    """Return an axis and the first position at which a comparison has its other outcome."""
    for node in body.nodes():
        if not isinstance(node, Op) or node.name not in _FIRST_AFTER:
            continue
        left, right = node.args
        if not isinstance(left, IndexValue):
            continue
        limit = _value(right)
        axes = [s for s in left.expr.symbols() if s.kind != "size"]
        if limit is None or len(axes) != 1 or axes[0] not in loops:
            continue
        axis = axes[0]
        if not left.expr.is_affine_in(axis) or left.expr.coefficient(axis) != 1:
            continue
        assert axis.size is not None
        point = limit - (left.expr - Expr.of(axis)) + _FIRST_AFTER[node.name]
        # inside the loop for certain, so that neither part can have a negative length
        if is_nonnegative(point - 1) and is_nonnegative(axis.size - point - 1):
            return axis, point
    return None


def fill_out(body: Body, parts: Sequence[Body], buffers: Mapping[str, Buffer]) -> list[Body]:
    """Return the parts of the innermost loop, the longest over all of it where that pays.

    The windows of an image's 32 columns are 1 at the edge and 31 others: a vector and fifteen
    single ones.  All of them as if there were no edge are two vectors; they come first, and what
    is right for the edge is written over it.

    Args:
        body: What was split.
        parts: What it was split into, along its last axis, in order.
        buffers: Every buffer that it names.
    """
    sizes = [extent(part.axes[-1]) for part in parts]
    whole = body.axes[-1].size if body.axes else None
    if len(parts) < 2 or None in sizes or whole is None or whole.constant is None:
        return list(parts)
    total, longest = whole.constant, max(size for size in sizes if size is not None)
    if total - longest > choices.ENDS or choices.turns(total) >= choices.turns(longest):
        return list(parts)
    which = sizes.index(longest)
    main = parts[which]
    own, begin = main.axes[-1], sum(size for size in sizes[:which] if size is not None)
    axis = Symbol(own.name, "axis", whole)
    places = {own: Expr.of(axis) - begin}
    wide = main.moved((*main.axes[:-1], axis), main.reduce_axes, places)
    # Parts that come after it read what was there before: an update of a slice keeps the rest so.
    written = {store.buffer for store in wide.stores}
    if any(load.buffer in written for part in parts for load in part.loads()):
        return list(parts)
    if not _may_repeat(wide, buffers):
        return list(parts)
    return [wide, *parts[:which], *parts[which + 1 :]]


def _may_repeat(body: Body, buffers: Mapping[str, Buffer]) -> bool:
    """Whether points may be computed that are none of the result's: they harm nobody.

    All that is read lies in its buffer, and no operation stops the program, as an integer's
    division by zero does.
    """
    if any(store.mode != "set" for store in body.stores):
        return False
    for node in body.nodes():
        if isinstance(node, Scan | Reduce):
            return False
        if isinstance(node, Op) and (is_check(node) or node.name in _TRAPS):
            return False
        if isinstance(node, Load):
            buffer = buffers[node.buffer]
            offset = buffer.offset(node.index)
            last = buffer.offset(tuple(size - 1 for size in buffer.shape))
            inside = is_nonnegative(offset) and is_nonnegative(last - offset)
            if not inside or any(s.kind == "indirect" for s in offset.symbols()):
                return False
    return True


_TRAPS = frozenset(name for name, scalar in SCALARS.items() if scalar.traps)


def _value(node: Node) -> Expr | None:
    if isinstance(node, Const) and not isinstance(node.value, float):
        return Expr.of(int(node.value))
    if isinstance(node, IndexValue) and all(s.kind == "size" for s in node.expr.symbols()):
        return node.expr
    return None


def _part(body: Body, axis: Symbol, begin: Expr, end: Expr | None) -> Body:
    """Return the body over ``begin <= axis < end`` (to the end if None), conditions decided."""
    assert axis.size is not None
    size = (axis.size if end is None else end) - begin
    own = Symbol(axis.name, "axis", size)
    axes = tuple(own if a is axis else a for a in body.axes)
    return body.moved(axes, body.reduce_axes, {axis: Expr.of(own) + begin}, ops.decided)
