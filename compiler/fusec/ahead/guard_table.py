"""Guards as a table that a person and another process can read.

A *place* is a step from another place: an attribute, an item, the type of what is there; the first
two are the frame's local names and its global names.  A *row* asks something of a place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

JSON = Any
LOCALS, GLOBALS = 0, 1


@dataclass(frozen=True)
class GuardPlace:
    """Where a guard looks.

    Attributes:
        parent: The number of the place that it is reached from; -1 for the first two.
        step: How: ``name``, ``global``, ``attribute``, ``item``, ``dict``, ``type`` ...
        key: Of which name, item or position; None where the step has none.
        text: The whole way, as torch writes it.
    """

    parent: int
    step: str
    key: JSON
    text: str


@dataclass(frozen=True)
class GuardRow:
    """What is asked of a place.

    Attributes:
        place: The place's number.
        kind: ``tensor``, ``type``, ``same``, ``constant``, ``length``, ``contains``,
            ``attribute``, ``relation``, ``state``, ``default device``, ``modes`` or ``hooks``.
        expected: What has to be there, as JSON; of a relation its text.
        text: The same in torch's words, with the user's line where torch knows it.
    """

    place: int
    kind: str
    expected: JSON
    text: str


@dataclass(frozen=True)
class GuardTable:
    """All guards of some compiled code.

    Attributes:
        places: In an order in which each comes after its parent.
        rows: What is asked of them.
        unaliased: The places of tensors that have to be different objects.
    """

    places: tuple[GuardPlace, ...]
    rows: tuple[GuardRow, ...]
    unaliased: tuple[int, ...] = ()

    def data(self) -> JSON:
        """Return it as JSON."""
        return {
            "places": [[p.parent, p.step, p.key, p.text] for p in self.places],
            "rows": [[r.place, r.kind, r.expected, r.text] for r in self.rows],
            "unaliased": list(self.unaliased),
        }

    @classmethod
    def from_data(cls, data: JSON) -> GuardTable:
        """Return what ``data`` returned.

        Raises:
            ValueError: It is not in order.
        """
        places = tuple(GuardPlace(*each) for each in data["places"])
        for number, place in enumerate(places):
            if not -1 <= place.parent < number or (place.parent < 0 and number > GLOBALS):
                raise ValueError(f"place {number} comes before what it is reached from")
        rows = tuple(GuardRow(*each) for each in data["rows"])
        unaliased = tuple(data["unaliased"])
        for number in (*(row.place for row in rows), *unaliased):
            if not 0 <= number < len(places):
                raise ValueError(f"there is no place {number}")
        return cls(places, rows, unaliased)

    def arguments(self) -> Iterator[tuple[str, JSON]]:
        """Yield the tensors among the arguments: name, and what is asked of them."""
        for row in self.rows:
            place = self.places[row.place]
            if row.kind == "tensor" and place.parent == LOCALS:
                yield str(place.key), row.expected

    def summary(self) -> str:
        """Return in a few words what it was made for: ``x float32 4 x 8``."""
        words = [f"{name} {tensor_text(expected)}" for name, expected in self.arguments()]
        inner = [
            f"{self.places[row.place].text} {tensor_text(row.expected)}"
            for row in self.rows
            if row.kind == "tensor" and self._is_of_arguments(row.place)
        ]
        return ", ".join(words or inner[:4]) or "a call without tensors"

    def _is_of_arguments(self, number: int) -> bool:
        place = self.places[number]
        while place.parent > GLOBALS:
            place = self.places[place.parent]
        return place.parent == LOCALS and place.key in ("args", "kwargs")

    def __str__(self) -> str:
        return "\n".join(format_rows(self))


def format_rows(table: GuardTable) -> Iterable[str]:
    """Yield a line for each row: where, what."""
    for row in table.rows:
        where = table.places[row.place].text
        expected = tensor_text(row.expected) if row.kind == "tensor" else row.expected
        yield f"{where}: {row.kind} {expected}"


def tensor_text(expected: JSON) -> str:
    """Return a tensor's type and sizes in words."""
    sizes = " x ".join("any" if size is None else str(size) for size in expected["shape"])
    gradient = ", requires grad" if expected["requires_grad"] else ""
    return f"{expected['dtype']} {sizes or 'one number'}{gradient}"


__all__ = [
    "GLOBALS",
    "LOCALS",
    "GuardPlace",
    "GuardRow",
    "GuardTable",
    "format_rows",
    "tensor_text",
]
