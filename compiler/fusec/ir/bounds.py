"""What values can be: an interval for each node, from the loops' bounds and the types.

Indices that are computed (the source of an interpolated pixel, a clamped offset, a bucket) lie
in a range that follows from the loops.  Where the range decides a comparison, the wrapping of
negative indices, the checks, the masks and the halves of a ``where`` that depend on it go away
while the body is recorded.

Float intervals say besides that a value is neither NaN nor infinite.  Every float operation widens
its interval by more than it can round, however the compiler contracts operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from fusec.ir.checks import is_check
from fusec.ir.index import is_nonnegative, lower_bound, upper_bound
from fusec.ir.intervals import Interval, either
from fusec.ir.node import Cast, Const, IndexValue, Node, Op, Reduce, current_recorder, known_value
from fusec.ir.scalars import SCALARS

_DEPTH = 40  # operations that are looked through
_EXACT = 1 << 53  # integers beyond this are not exact here
_SLACK = {torch.float64: 2.0**-50, torch.float32: 2.0**-21}  # four units in the last place
_TINY = 1e-30
_OTHERS = {"interleave": either}  # of two tensors, for which there is no scalar operation


def bounds(node: Node, depth: int = _DEPTH) -> Interval | None:
    """Return the least and the largest value that a node can have; None where nothing is known.

    A float with an interval is never NaN and never infinite.
    """
    known = current_recorder().bounds
    if node in known:
        return known[node]
    if depth == 0:
        return None
    found = _bounds(node, depth - 1)
    if node.dtype.is_floating_point or node.dtype.is_complex:
        found = found if node.dtype in _SLACK else None
    else:
        own = _of_type(node.dtype)
        if found is None or found[0] < own[0] or found[1] > own[1]:
            found = own  # it may have wrapped round
        if max(abs(found[0]), abs(found[1])) > _EXACT:
            found = None
    known[node] = found
    return found


def decide(name: str, x: Node, y: Node) -> bool | None:
    """Return the outcome of a comparison where it is the same for all values; else None."""
    outcome = _ORDERED.get(name)
    if outcome is None:
        return None
    a, b = bounds(x), bounds(y)
    return None if a is None or b is None else outcome(a, b)


def _three(true: bool, false: bool) -> bool | None:
    return True if true else False if false else None


_ORDERED: dict[str, Callable[[Interval, Interval], bool | None]] = {
    "lt": lambda a, b: _three(a[1] < b[0], a[0] >= b[1]),
    "le": lambda a, b: _three(a[1] <= b[0], a[0] > b[1]),
    "gt": lambda a, b: _three(a[0] > b[1], a[1] <= b[0]),
    "ge": lambda a, b: _three(a[0] >= b[1], a[1] < b[0]),
    "eq": lambda a, b: _three(a[0] == a[1] == b[0] == b[1], a[1] < b[0] or a[0] > b[1]),
    "ne": lambda a, b: _three(a[1] < b[0] or a[0] > b[1], a[0] == a[1] == b[0] == b[1]),
}


def _of_type(dtype: torch.dtype) -> Interval:
    if dtype == torch.bool:
        return 0, 1
    info = torch.iinfo(dtype)
    return info.min, info.max


def _bounds(node: Node, depth: int) -> Interval | None:
    if isinstance(node, Const):
        value = known_value(node)
        return (value, value) if math.isfinite(value) else None
    if isinstance(node, IndexValue):
        low, high = lower_bound(node.expr), upper_bound(node.expr)
        found = None if low is None or high is None else (low, high)
        return _widened(node.dtype, found) if node.dtype.is_floating_point else found
    if isinstance(node, Cast):
        return _of_cast(node, depth)
    if isinstance(node, Reduce):
        some = all(axis.size is not None and is_nonnegative(axis.size - 1) for axis in node.axes)
        return bounds(node.args[0], depth) if some and node.kind in ("max", "min") else None
    if isinstance(node, Op):
        return _of_operation(node, depth)
    return None


def _of_cast(node: Cast, depth: int) -> Interval | None:
    given = bounds(node.args[0], depth)
    if given is None or node.bitcast or node.dtype == torch.bool:
        return None
    if node.dtype.is_floating_point:
        return _widened(node.dtype, given)
    return math.trunc(given[0]), math.trunc(given[1])


def _of_operation(node: Op, depth: int) -> Interval | None:
    if is_check(node):
        return bounds(node.args[1], depth)
    if node.name == "where":
        return _of_where(node, depth)
    scalar = SCALARS.get(node.name)
    rule = _OTHERS.get(node.name) if scalar is None else scalar.interval
    if rule is None:
        return None
    given = []
    for arg in node.args:
        found = bounds(arg, depth)
        if found is None:
            return None
        given.append(found)
    result = rule(*given)
    return _widened(node.dtype, result) if node.dtype.is_floating_point else result


def _widened(dtype: torch.dtype, found: Interval | None) -> Interval | None:
    if found is None or dtype not in _SLACK:
        return None
    largest = max(abs(found[0]), abs(found[1]))
    if largest > 1e30:  # far from what overflows
        return None
    slack = largest * _SLACK[dtype] + _TINY
    # what cannot be negative stays so: rounding keeps signs
    low = found[0] if found[0] == 0 else found[0] - slack
    high = found[1] if found[1] == 0 else found[1] + slack
    return low, high


def _of_where(node: Op, depth: int) -> Interval | None:
    condition, x, y = node.args
    first = _refined(bounds(x, depth), condition, x, holds=True)
    if first is None:
        return None
    second = _refined(bounds(y, depth), condition, y, holds=False)
    if second is None:
        return None
    return min(first[0], second[0]), max(first[1], second[1])


_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def _refined(
    found: Interval | None, condition: Node, value: Node, *, holds: bool
) -> Interval | None:
    """Return what is left of an interval where a condition holds, or does not.

    Of a value of which nothing is known it is what lies between constants on both sides; NaN is
    neither less nor larger than any, and no condition that holds.
    """
    if found is None and not holds:
        return None
    low, high = found or (-math.inf, math.inf)
    low, high = _limited((low, high), condition, value, holds=holds)
    if not (math.isfinite(low) and math.isfinite(high)):
        return _of_number_cast(condition, value) if isinstance(value, Cast) else None
    # a half that is never taken has no values: any will do
    return (low, high) if low <= high else found


def _of_number_cast(condition: Node, value: Cast) -> Interval | None:
    """Return the whole numbers that a number of which nothing is known becomes where it is asked.

    A processor may make anything of what does not fit; what is between two limits does.
    """
    (number,) = value.args
    if value.bitcast or number.dtype not in _SLACK or value.dtype != torch.int64:
        return None
    low, high = _limited((-math.inf, math.inf), condition, number, holds=True)
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        return None
    if max(-low, high) > _EXACT:
        return None
    return math.trunc(low), math.trunc(high)


def _conjuncts(condition: Node, depth: int = _DEPTH) -> Iterator[Op]:
    """Yield the comparisons that all hold where a condition does."""
    if not isinstance(condition, Op) or depth == 0:
        return
    if condition.name == "logical_and":
        for part in condition.args:
            yield from _conjuncts(part, depth - 1)
    elif condition.name in _OPPOSITE:
        yield condition


def _limited(found: Interval, condition: Node, value: Node, *, holds: bool) -> Interval:
    """Return what comparisons of a value with constants leave of an interval."""
    low, high = found
    compared = list(_conjuncts(condition))
    if not holds:
        compared = [each for each in compared if each is condition]  # of several, one may hold
    for each in compared:
        left, right = each.args
        if left is not value or not isinstance(right, Const):
            continue
        name = each.name if holds else _OPPOSITE[each.name]
        limit = known_value(right)  # NaN is neither less nor larger: it changes nothing
        if math.isnan(limit):
            continue
        if name in ("lt", "gt"):  # the next number of a double lies between two of any type
            away = math.inf if name == "gt" else -math.inf
            whole = not value.dtype.is_floating_point
            limit = limit + math.copysign(1, away) if whole else math.nextafter(limit, away)
        if name in ("lt", "le"):
            high = min(high, limit)
        else:
            low = max(low, limit)
    return low, high


__all__ = ["Interval", "bounds", "decide"]
