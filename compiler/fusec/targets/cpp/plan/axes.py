"""The axes of a body before anything is decided: those of one turn left out, several in one split.

A picture's patches, each made one row, have elements at ``i // 256``, ``i // 16 % 16`` and
``i % 16`` along that row.  Divided for each element, that is no vector code; as three loops the
innermost one runs over sixteen neighbors.
"""

from __future__ import annotations

from itertools import pairwise

from fusec.ir.body import Body
from fusec.ir.index import Atom, Expr, FloorDiv, Mod, Symbol
from fusec.ir.node import IndexValue, Reduce
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, extent


def without_unit_axes(body: Body) -> Body:
    """Return a body without the axes that have one position, which are then 0.

    What rows and columns share keeps its axes; so does what reduces over nothing else.
    """
    if body.sums or body.companions:
        return body
    axes = tuple(axis for axis in body.axes if extent(axis) != 1)
    reduced = tuple(axis for axis in body.reduce_axes if extent(axis) != 1)
    over = [node.axes for node in body.nodes() if isinstance(node, Reduce)]
    if body.reduce_axes and not (reduced and all(set(each) & set(reduced) for each in over)):
        reduced = body.reduce_axes
    dropped = {*body.axes, *body.reduce_axes} - {*axes, *reduced}
    if not dropped:
        return body
    return body.moved(axes, reduced, dict.fromkeys(dropped, Expr.of(0)))


def split_last_axis(facts: Facts) -> Body | None:
    """Return a body without reductions whose last axis is several; None where it is just one."""
    body = facts.body
    if not body.axes or body.sums or body.companions:
        return None
    last = body.axes[-1]
    size, steps = extent(last), _steps(facts, last)
    if size is None or not steps or steps[0] < choices.LEAST_SPLIT:
        return None
    if any(large % small for small, large in pairwise([*steps, size])):
        return None
    lengths = [large // small for small, large in pairwise([1, *steps, size])]
    parts = [Symbol(last.name, "axis", Expr.of(length)) for length in reversed(lengths)]
    place = Expr.of(0)
    for part, step in zip(parts, [*reversed(steps), 1], strict=True):
        place = place + Expr.of(part) * step
    moved = body.moved((*body.axes[:-1], *parts), body.reduce_axes, {last: place})
    return moved if _is_plain(facts, moved, parts[-1]) else None


def _steps(facts: Facts, axis: Symbol) -> list[int]:
    """Return the steps at which places along ``axis`` change otherwise; none if it has no parts."""
    found: set[int] = set()
    for node in facts.nodes:
        if isinstance(node, IndexValue) and axis in node.expr.symbols():
            return []  # positions may be compared, and loops cut there
    offsets = [facts.buffers[load.buffer].offset(load.index) for load in facts.body.loads()]
    offsets += [facts.buffers[store.buffer].offset(store.index) for store in facts.body.stores]
    for offset in offsets:
        for atom in offset.atoms():
            if isinstance(atom, Symbol) or axis not in Expr({(atom,): 1}).symbols():
                continue
            steps = _steps_of(atom, axis)
            if not steps:
                return []
            found |= steps
    return sorted(found)


def _steps_of(atom: FloorDiv | Mod, axis: Symbol) -> set[int]:
    """Return where ``axis // k``, ``axis % k`` or ``axis // k % n`` begin anew; or nothing."""
    step = atom.divisor.constant
    if step is None:
        return set()
    if atom.numerator == Expr.of(axis):
        return {step}
    inner: Atom | None = atom.numerator.single_atom
    if isinstance(atom, Mod) and isinstance(inner, FloorDiv) and inner.numerator == Expr.of(axis):
        first = inner.divisor.constant
        return set() if first is None else {first, first * step}
    return set()


def _is_plain(facts: Facts, body: Body, inner: Symbol) -> bool:
    """Whether all of a body lies side by side along ``inner``, or is the same there."""
    places = [(load.buffer, load.index) for load in body.loads()]
    places += [(store.buffer, store.index) for store in body.stores]
    for buffer, index in places:
        offset = facts.buffers[buffer].offset(index)
        if not offset.is_affine_in(inner) or offset.coefficient(inner).constant not in (0, 1):
            return False
        if any(symbol.kind == "indirect" for symbol in offset.symbols()):
            return False
    return True


__all__ = ["split_last_axis", "without_unit_axes"]
