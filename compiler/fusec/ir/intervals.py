"""What intervals of arguments make of an operation's result; ``bounds`` asks, ``scalars`` lists.

Each rule takes the least and the largest value of each argument, exact and finite, and returns
those of the result before it is rounded; None where it does not know.
"""

from __future__ import annotations

import math

Interval = tuple[float, float]


def added(a: Interval, b: Interval) -> Interval:
    """``a + b``."""
    return a[0] + b[0], a[1] + b[1]


def subtracted(a: Interval, b: Interval) -> Interval:
    """``a - b``."""
    return a[0] - b[1], a[1] - b[0]


def multiplied(a: Interval, b: Interval) -> Interval:
    """``a * b``."""
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def divided(a: Interval, b: Interval) -> Interval | None:
    """``a / b``."""
    if b[0] != b[1] or b[0] == 0:
        return None
    corners = (a[0] / b[0], a[1] / b[0])
    return min(corners), max(corners)


def floor_divided(a: Interval, b: Interval) -> Interval | None:
    """``a / b``, rounded down."""
    if b[0] != b[1] or b[0] <= 0:
        return None
    return a[0] // b[0], a[1] // b[0]


def cut_divided(a: Interval, b: Interval) -> Interval | None:
    """``a / b``, rounded to zero."""
    if b[0] != b[1] or b[0] <= 0:
        return None
    return math.trunc(a[0] / b[0]), math.trunc(a[1] / b[0])


def rest(a: Interval, b: Interval) -> Interval | None:
    """What is left of ``a`` over ``b``, with the sign of ``b``."""
    if b[0] != b[1] or b[0] <= 0:
        return None
    return 0, min(b[0], a[1]) if a[0] >= 0 else b[0]


def negated(a: Interval) -> Interval:
    """``-a``."""
    return -a[1], -a[0]


def absolute(a: Interval) -> Interval:
    """``|a|``."""
    return max(a[0], -a[1], 0), max(abs(a[0]), abs(a[1]))


def larger(a: Interval, b: Interval) -> Interval:
    """The larger of two."""
    return max(a[0], b[0]), max(a[1], b[1])


def smaller(a: Interval, b: Interval) -> Interval:
    """The smaller of two."""
    return min(a[0], b[0]), min(a[1], b[1])


def either(a: Interval, b: Interval) -> Interval:
    """One of two."""
    return min(a[0], b[0]), max(a[1], b[1])


def floored(a: Interval) -> Interval:
    """``a``, rounded down."""
    return math.floor(a[0]), math.floor(a[1])


def ceiled(a: Interval) -> Interval:
    """``a``, rounded up."""
    return math.ceil(a[0]), math.ceil(a[1])


def truncated(a: Interval) -> Interval:
    """``a``, rounded to zero."""
    return math.trunc(a[0]), math.trunc(a[1])


def rounded(a: Interval) -> Interval:
    """``a``, rounded to the nearest."""
    return round(a[0]), round(a[1])


def common_bits(a: Interval, b: Interval) -> Interval | None:
    """``a & b``."""
    least = [x for x in (a, b) if x[0] >= 0]
    return (0, min(x[1] for x in least)) if least else None


def shifted_right(a: Interval, b: Interval) -> Interval | None:
    """``a >> b``."""
    if b[0] != b[1] or not 0 <= b[0] < 64:
        return None
    return int(a[0]) >> int(b[0]), int(a[1]) >> int(b[0])
