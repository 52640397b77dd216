"""Lines of generated text, each with the user's lines that it computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fusec.report import SourceLine


class Writer:
    """Collects lines at an indentation, and remembers where each came from."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.origins: dict[int, tuple[SourceLine, ...]] = {}
        self.depth = 0
        self._source: SourceLine | None = None

    def line(self, text: str = "", sources: Iterable[SourceLine | None] = ()) -> None:
        """Append a line; ``sources`` are the user's lines that it computes."""
        self.lines.append("    " * self.depth + text if text else "")
        known = tuple(dict.fromkeys(s for s in sources if s is not None))
        if known:
            self.origins[len(self.lines)] = known

    def block(self, text: str) -> None:
        """Append ready-made lines, such as a helper function."""
        for line in text.strip("\n").splitlines():
            self.line(line)

    def mark(self, source: SourceLine | None) -> None:
        """Say in a comment which of the user's lines comes now, where that changes."""
        if source is not None and source != self._source:
            self.line(f"# {source}")
            self._source = source

    def forget_source(self) -> None:
        """Let the next statement name its line again: a new part of the kernel begins."""
        self._source = None

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
        return "\n".join(self.lines) + "\n"
