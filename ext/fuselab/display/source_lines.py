"""The user's own lines with what each costs: as text, and as rows for the static card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fuselab.display import words

# From nothing to all of the time, on the white of the card; text on each reads at 7:1 or more.
_WHITE, _FULL = (255, 255, 255), (246, 178, 107)


@dataclass(frozen=True)
class LineView:
    """A line of the user's, and what became of it.

    Attributes:
        file: The file it is in; empty for the cell itself.
        number: As the gutter shows it.
        text: The line.
        time: Its share of the cell's time, 0 to 1; -1 where nobody knows.
        bytes: What it moves, by kernels and calls of ATen; -1 where it computes nothing.
        share: Its share of all bytes, 0 to 1.
        externs: What runs as ATen's own kernels, by name.
        at: The lines of each kernel that compute it.
        part: Its share of the time in words; those of all lines add up to 100 %.
    """

    file: str
    number: int
    text: str
    time: float = -1.0
    bytes: int = -1
    share: float = 0.0
    externs: tuple[str, ...] = ()
    at: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    part: str = ""

    @property
    def works(self) -> bool:
        """Whether anything runs for it."""
        return bool(self.at or self.externs or self.bytes > 0 or self.time > 0)

    @property
    def mark(self) -> str:
        """The class of what is of this line: hovering one lights the others."""
        return words.line_class(self.file, self.number)

    @property
    def weight(self) -> float:
        """What its color says: its share of the time, or of the bytes where times are not known."""
        return self.time if self.time >= 0 else self.share

    @property
    def color(self) -> str:
        """Its background, the darker the more it costs."""
        return cost_color(self.weight)

    @property
    def costs(self) -> str:
        """Its shares in words: ``62% of the time, 8.0 MiB``."""
        parts = []
        if self.time >= 0 and self.works:
            parts.append(f"{self.part or words.share(self.time)} of the time")
        if self.bytes > 0:
            parts.append(words.size(self.bytes))
        return ", ".join(parts)


def cost_color(share: float) -> str:
    """Return the background of a share, the darker the more it is."""
    part = min(max(share, 0.0), 1.0) ** 0.7  # small shares can be told apart
    mixed = (round(w + (f - w) * part) for w, f in zip(_WHITE, _FULL, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def source_text(lines: Sequence[LineView]) -> list[str]:
    """Return the lines that do something as rows of text, the cost at the left."""
    rows = [line for line in lines if line.works]
    if not rows:
        return []
    costs = _aligned([line.costs for line in rows])
    places = [str(line.number) for line in rows]
    wide, narrow = max(map(len, costs)), max(map(len, places))
    found, file = [], ""
    for cost, place, line in zip(costs, places, rows, strict=True):
        if line.file != file:
            file = line.file
            found.append(f"{'':{wide}}  in {words.file_title(file)}:")
        found.append(f"{cost:>{wide}}  {place:>{narrow}}  {line.text}".rstrip())
    return found


def _aligned(costs: Sequence[str]) -> list[str]:
    """Return the costs with times below times, and bytes below bytes."""
    pairs = [cost.partition(", ") for cost in costs]
    left = max(len(first) for first, _, _ in pairs)
    right = max(len(second) for _, _, second in pairs)
    return [f"{a:>{left}}{comma:2}{b:<{right}}" if right else a for a, comma, b in pairs]


__all__ = ["LineView", "cost_color", "source_text"]
