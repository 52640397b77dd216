"""What the checks of plain Python tasks share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fuselab.judge.calls import call_text, short

READABLE = 160  # letters of a call: of what is longer, the shortest is shown


def same(one: Any, other: Any) -> bool:
    """Whether two values that JSON can hold are equal, numbers within rounding."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def first_wrong(
    name: str,
    calls: list[list[Any]],
    results: list[Any],
    right: Callable[..., Any],
    why: Callable[..., str] | None = None,
    text_of: Callable[[str, list[Any]], str] = call_text,
) -> str:
    """Return in words which result is wrong first; empty if none is.

    Where that call takes more than a line or two to write, it is the shortest of those that are
    wrong: what is read should be tried again by hand. It does not say what would be right: that is
    the student's to find.

    Args:
        name: The function's.
        calls: The arguments.
        results: What came of them.
        right: What should have.
        why: Given a call's arguments and its result, says what to look at, or nothing; optional.
        text_of: Writes a call.
    """
    found: tuple[str, list[Any], Any, Any] | None = None
    for call, result in zip(calls, results, strict=True):
        wanted = right(*call)
        if same(result, wanted):
            continue
        text = text_of(name, call)
        if found is None or len(text) < len(found[0]):
            found = text, call, result, wanted
        if len(found[0]) <= READABLE:
            break
    if found is None:
        return ""
    text, call, result, wanted = found
    text += f" gives {short(result)}, which is not right"
    if isinstance(wanted, list) and isinstance(result, list) and len(wanted) == len(result):
        places = [n for n in range(len(wanted)) if not same(result[n], wanted[n])]
        text += f" (see value {places[0] + 1} of {len(wanted)})"
    elif _kind(wanted) != _kind(result):
        text += f": {_kind(wanted)} is asked for"
    more = why(*call, result) if why else ""
    return text + (f"; {more}" if more else "")


def _kind(value: object) -> str:
    names = {
        "list": "a tuple or list",
        "dict": "a dictionary",
        "str": "a text",
        "bool": "True or False",
        "int": "a number",
        "float": "a number",
        "NoneType": "None",
    }
    name = type(value).__name__
    return names.get(name, f"a {name}")


__all__ = ["call_text", "first_wrong", "same", "short"]
