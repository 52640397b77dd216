"""Decisions of heuristics over many sizes, as text that is compared with a golden file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from support.paths import GOLDEN

TEXTS = GOLDEN / "decisions"


def compare(name: str, lines: Iterable[str]) -> None:
    """Compare lines with a golden file."""
    text = "\n".join(lines) + "\n"
    path = TEXTS / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "renew with UPDATE_GOLDEN=1 if the change is meant"


@cache
def parts_of(name: str) -> dict[str, list[str]]:
    """Return the parts of a golden file: lines that are indented, by the line above them."""
    path = TEXTS / f"{name}.txt"
    parts: dict[str, list[str]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("  "):
            parts[next(reversed(parts))].append(line[2:])
        else:
            parts[line.removesuffix(":")] = []
    return parts


def compare_part(name: str, part: str, lines: Iterable[str]) -> None:
    """Compare lines with a part of a golden file."""
    parts, found = parts_of(name), list(lines)  # in which a renewed part stays
    if os.environ.get("UPDATE_GOLDEN"):
        parts[part] = found
        text = "".join(f"{each}:\n" + "".join(f"  {x}\n" for x in parts[each]) for each in parts)
        (TEXTS / f"{name}.txt").write_text(text)
    assert found == parts.get(part), "renew with UPDATE_GOLDEN=1 if the change is meant"


def runs(function: Callable[[Any], object], values: Sequence[Any]) -> str:
    """Return what a function yields over ordered values, equal neighbors together."""
    parts: list[tuple[object, object, object]] = []
    for value in values:
        result = function(value)
        if parts and parts[-1][2] == result:
            parts[-1] = (parts[-1][0], value, result)
        else:
            parts.append((value, value, result))
    spans = ((f"{a}" if a == b else f"{a} to {b}", result) for a, b, result in parts)
    return "; ".join(f"{span}: {result}" for span, result in spans)
