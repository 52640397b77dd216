"""Lines of generated text, and which of the user's lines each of them computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fusec.report import SourceLine

INDENT = "    "


@dataclass(frozen=True)
class Line:
    """A line of the file.

    Attributes:
        text: As it is written, indented.
        sources: The user's lines that it computes.
    """

    text: str
    sources: tuple[SourceLine, ...] = ()


class LineWriter:
    """Collects the lines of a file, or of a part of it; a language's writer knows its statements.

    Args:
        width: How long a line may be.
        depth: How many levels its first lines are indented.
    """

    def __init__(self, width: int, depth: int = 0) -> None:
        self.lines: list[Line] = []
        self.width = width
        self.depth = depth
        self._source: SourceLine | None = None  # which the last comment named

    @property
    def room(self) -> int:
        """How long a line may be at the current indentation."""
        return self.width - len(INDENT) * self.depth

    def add(self, text: str, sources: Iterable[SourceLine | None] = ()) -> None:
        """Write a line as it is, indented."""
        known = tuple(dict.fromkeys(s for s in sources if s is not None))
        if text.startswith("//") and text.rstrip().endswith("\\"):
            text += " ..."  # the user's line goes on; in C++ the comment would, into the next line
        self.lines.append(Line(INDENT * self.depth + text if text else "", known))

    def include(self, other: LineWriter, depth: int) -> None:
        """Write all lines of another writer, so many levels deeper than they are there."""
        margin = INDENT * depth
        for line in other.lines:
            self.lines.append(Line(margin + line.text if line.text else "", line.sources))

    def changes(self, source: SourceLine | None, *, moves: bool) -> bool:
        """Whether a comment is to name the user's line now: where another one begins.

        Args:
            source: The user's line.
            moves: Whether the statement only reads or writes memory: that is no beginning, but for
                the first of all.
        """
        if source is None or source == self._source or (moves and self._source is not None):
            return False
        self._source = source
        return True

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Write the lines of the block one level deeper."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @property
    def text(self) -> str:
        """All lines so far."""
        return "\n".join(line.text for line in self.lines) + "\n"

    @property
    def origins(self) -> dict[int, tuple[SourceLine, ...]]:
        """Line number, from 1, to the user's lines."""
        return {n: line.sources for n, line in enumerate(self.lines, 1) if line.sources}


__all__ = ["INDENT", "Line", "LineWriter"]
