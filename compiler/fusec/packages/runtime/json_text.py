"""JSON as packages have it: one canonical form, read strictly, with a path in every complaint."""

from __future__ import annotations

import json
from typing import Any

from .errors import DamagedPackage

LARGEST = 1 << 62  # of a number: sizes and offsets in bytes stay below it
_DEEPEST = 64


def canonical(value: object) -> bytes:
    """Return the one text that a value has."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, indent=1, sort_keys=True)
    return text.encode("ascii") + b"\n"


def parse(data: bytes, name: str) -> Any:
    """Read a text that ``canonical`` wrote.

    Args:
        data: The text.
        name: Of the member, for messages.

    Raises:
        DamagedPackage: It is another text.
    """
    try:
        value = json.loads(data.decode("ascii"))
        same = canonical(value) == data
    except (ValueError, RecursionError, OverflowError) as error:
        raise DamagedPackage(f"{name} cannot be read: {type(error).__name__}") from None
    if not same:  # keys twice, numbers that are none, spaces of its own
        raise DamagedPackage(f"{name} is not as it was written")
    _bounded(value, name, 0)
    return value


def _bounded(value: object, name: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise DamagedPackage(f"{name} is nested too deeply")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise DamagedPackage(f"{name} has a number beyond all sizes")
    inner = value.values() if isinstance(value, dict) else value
    if isinstance(inner, (list, type({}.values()))):
        for each in inner:
            _bounded(each, name, depth + 1)


class Reader:
    """A JSON object whose parts are asked for by name and kind.

    Args:
        value: What is read.
        place: Where it is, for messages: ``programs/0.json: steps 3``.
    """

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, dict):
            raise DamagedPackage(f"{place} is not an object")
        self._value: dict[str, Any] = value
        self.place = place

    def _get(self, name: str, kinds: type | tuple[type, ...]) -> Any:
        found = self._value.get(name)
        if not isinstance(found, kinds) or (isinstance(found, bool) and kinds is int):
            raise DamagedPackage(f"{self.place}: {name} is missing, or of another kind")
        return found

    def has(self, name: str) -> bool:
        """Whether there is something of that name that is not null."""
        return self._value.get(name) is not None

    def texts_by_name(self, name: str) -> dict[str, str]:
        """Return an object of texts."""
        inner = self._get(name, dict)
        return {each: Reader(inner, f"{self.place}: {name}").text(each) for each in inner}

    def whole(self) -> dict[str, Any]:
        """Return the object itself."""
        return self._value

    def raw(self, name: str) -> Any:
        """Return what is there, whatever it is; None where nothing is."""
        return self._value.get(name)

    def text(self, name: str) -> str:
        """Return a text."""
        found: str = self._get(name, str)
        return found

    def number(self, name: str, low: int = 0, high: int = LARGEST) -> int:
        """Return a whole number within bounds, both included."""
        found: int = self._get(name, int)
        if not low <= found <= high:
            raise DamagedPackage(f"{self.place}: {name} is {found}")
        return found

    def items(self, name: str) -> list[Any]:
        """Return a list."""
        found: list[Any] = self._get(name, list)
        return found

    def readers(self, name: str) -> list[Reader]:
        """Return a list of objects."""
        found = self.items(name)
        return [Reader(each, f"{self.place}: {name} {i}") for i, each in enumerate(found)]

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        found = self.items(name)
        if not all(isinstance(each, str) for each in found):
            raise DamagedPackage(f"{self.place}: {name} has something other than text")
        return tuple(found)

    def numbers(self, name: str, high: int = LARGEST) -> tuple[int, ...]:
        """Return a list of whole numbers from 0 to below ``high``."""
        found = self.items(name)
        if not all(type(each) is int and 0 <= each < high for each in found):
            raise DamagedPackage(f"{self.place}: {name} has a number that means nothing")
        return tuple(found)


__all__ = ["LARGEST", "Reader", "canonical", "parse"]
