"""Rows of a table of guards in words: what is asked, and what was there instead."""

from __future__ import annotations

import re
from typing import Any

from fusec.ahead.guard_table import GuardRow, tensor_text
from fusec.capture.guards.described import readable_name
from fusec.compiled.references import JSON

_SIZE = re.compile(r"([\w.\[\]']+)\.(size|stride)\(\)\[(\d+)\]")
# What is on a tensor's own, beside what `tensor_text` says; each in words.
_FACTS = {
    "strides": "strides",
    "device": "on",
    "keys": "of the dispatch keys",
    "class": "of the class",
}
_STATES = {
    "grad_mode": "gradients",
    "autocast_state": "autocast",
    "num_threads": "threads",
    "default_dtype": "default type",
    "deterministic_algorithms": "deterministic algorithms",
}


def asked(row: GuardRow, place: str, found: JSON) -> str:
    """Return what a row asks for.

    Args:
        row: The row.
        place: Where it looks, as torch writes it.
        found: What is there, which does not fit.
    """
    name, expected = readable_name(place), row.expected
    match row.kind:
        case "relation":
            return readable_expression(expected)
        case "state":
            return f"torch's state: {_of_states(expected, found, expected)}"
        case "tensor":
            return f"{name} is {_tensor(expected, found)}"
        case "length":
            return f"{name} has {expected} items"
        case "contains":
            return f"{name} has {'the' if expected['there'] else 'no'} key {expected['key']!r}"
        case "attribute":
            return f"{name} has no attribute {expected}"
        case "type":
            return f"{name} is a {_plain(expected)}"
        case "hooks" | "global hooks" | "module hooks":
            return row.text
        case "modes":
            return "no mode for torch's functions is on"
        case "default device":
            return "no default device is set"
    return f"{name} is {_plain(expected)}"


def seen(row: GuardRow, found: JSON) -> str:
    """Return what was there."""
    if isinstance(found, dict) and "nothing" in found:
        return f"nothing ({found['nothing']})"
    if row.kind == "tensor":
        return _tensor(found, row.expected)
    if row.kind == "state":
        return _of_states(found, found, row.expected)
    if row.kind == "contains":
        return "it is there" if found["there"] else "it is not there"
    return _plain(found)


def readable_expression(text: str) -> str:
    """Return a relation as a user would write it: ``x.shape[0] % 2 == 0``."""

    def place(match: re.Match[str]) -> str:
        what = "shape" if match[2] == "size" else match[2] + "()"
        return f"{match[1]}.{what}[{match[3]}]"

    plain = re.sub(r"own\(([^(]*?), '(\w+)'\)", r"\1.\2", text)
    plain = re.sub(r"[LG]\['(\w+)'\]", r"\1", plain)
    return _SIZE.sub(place, plain)


def _of_states(shown: JSON, found: JSON, expected: JSON) -> str:
    """Return what differs between two states of torch, as it is in one of them."""
    differ = [name for name, value in expected.items() if found.get(name, value) != value]
    return ", ".join(f"{_STATES.get(name, name)} {_state(shown[name])}" for name in differ)


def _state(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict) and "enabled" in value:
        return "on" if any(value["enabled"]) else "off"
    return str(value)


def _tensor(shown: JSON, other: JSON) -> str:
    """Return a tensor in words, with what another one has otherwise."""
    if not isinstance(shown, dict) or "shape" not in shown:
        return _plain(shown)
    words = tensor_text(shown)
    if isinstance(other, dict) and "shape" in other:
        same = tensor_text(other) == words
        for fact, text in _FACTS.items():
            if shown[fact] != other[fact] and (same or fact != "strides"):
                words += f", {text} {shown[fact]}"
    return words


def _plain(data: JSON) -> str:
    if isinstance(data, dict) and len(data) == 1:
        ((_, inner),) = data.items()
        return str(inner)
    return str(data)


__all__ = ["asked", "readable_expression", "seen"]
