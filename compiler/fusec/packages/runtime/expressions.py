"""Sizes as expressions: whole numbers, names of sizes, and ``+ * // %`` of them, as JSON.

``["*", "s0", 64]`` is 64 for each of ``s0``. A name stands for a size that a call brings.
Conditions are comparisons of two such expressions, with ``and``, ``or`` and ``not`` over them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Union

from .errors import DamagedPackage

Expression = Union[int, str, list["Expression"]]  # noqa: UP007
_ARITHMETIC = ("+", "*", "//", "%", "max", "min")
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_LOGIC = ("and", "or", "not")


def check(value: object, names: Collection[str], place: str, depth: int = 0) -> Expression:
    """Return an expression that was read.

    Args:
        value: As it was read.
        names: Of the sizes.
        place: For messages.
        depth: How deep it lies within another.

    Raises:
        DamagedPackage: It is none.
    """
    if type(value) is int:
        return value
    if isinstance(value, str) and value in names:
        return value
    if isinstance(value, list) and len(value) >= 2 and depth < 40:
        operator = value[0]
        fits = operator in _ARITHMETIC or operator in (*_COMPARISONS, *_LOGIC)
        pair = operator in ("//", "%", *_COMPARISONS)
        if fits and len(value) == (3 if pair else 2 if operator == "not" else len(value)):
            for each in value[1:]:
                check(each, names, place, depth + 1)
            return value
    raise DamagedPackage(f"{place}: {str(value)[:60]} is not a size")


def evaluate(value: Expression, sizes: Mapping[str, int]) -> int:
    """Return the value of an expression; of a condition 0 or 1.

    Raises:
        ZeroDivisionError: It divides by a size that is zero.
    """
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return sizes[value]
    operator, *given = value
    found = [evaluate(each, sizes) for each in given]
    return _apply(str(operator), found)


def _apply(operator: str, found: Sequence[int]) -> int:
    if operator == "+":
        return sum(found)
    if operator == "*":
        total = 1
        for each in found:
            total *= each
        return total
    if operator in ("max", "min"):
        return max(found) if operator == "max" else min(found)
    if operator in ("and", "or", "not"):
        if operator == "not":
            return int(not found[0])
        return int(all(found) if operator == "and" else any(found))
    left, right = found
    if operator == "//":
        return left // right
    if operator == "%":
        return left % right
    return int(_COMPARE[operator](left, right))


_COMPARE = {
    "==": int.__eq__,
    "!=": int.__ne__,
    "<": int.__lt__,
    "<=": int.__le__,
    ">": int.__gt__,
    ">=": int.__ge__,
}


def text(value: Expression, names: Mapping[str, str] | None = None) -> str:
    """Return an expression as people write it, its sizes by other names where there are such."""
    if isinstance(value, (int, str)):
        return (names or {}).get(str(value), str(value))
    operator, *given = value
    parts = [text(each, names) for each in given]
    if operator in ("max", "min"):
        return f"{operator}({', '.join(parts)})"
    if operator == "not":
        return f"not {parts[0]}"
    inner = f" {operator} ".join(parts)
    return f"({inner})" if operator in ("+", "//", "%") else inner


__all__ = ["Expression", "check", "evaluate", "text"]
