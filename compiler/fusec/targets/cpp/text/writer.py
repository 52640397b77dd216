"""Lines of a C++ kernel file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fusec.codegen.common.writer import INDENT, LineWriter
from fusec.report import SourceLine

WIDTH = 100


class Writer(LineWriter):
    """Collects the lines of a file, or of a part of it."""

    def __init__(self, depth: int = 0) -> None:
        super().__init__(WIDTH, depth)

    def line(self, text: str = "", source: SourceLine | None = None) -> None:
        """Write a line; above the first of those that compute one line of the user's, name it.

        Args:
            text: Without indentation.
            source: The user's line that it computes.
        """
        if self.changes(source):
            self.add(f"// {source}"[: self.room], (source,))
        for part in wrap(text, self.room):
            self.add(part, (source,))

    def lines_of(self, texts: Iterable[str]) -> None:
        """Write several lines."""
        for text in texts:
            self.add(text)

    @contextmanager
    def block(
        self, head: str, source: SourceLine | None = None, *, end: str = "}"
    ) -> Iterator[None]:
        """Write ``head {``, what the block writes, and ``end``."""
        self.line(f"{head} {{".lstrip(), source)
        outer, self._source = self._source, None
        with self.indented():
            yield
        self._source = outer
        self.add(end)

    def directive(self, text: str) -> None:
        """Write a ``#pragma`` at the current indentation."""
        for part in wrap(f"#pragma {text}", self.room, " \\"):
            self.add(part)


def wrap(text: str, width: int, mark: str = "") -> list[str]:
    """Break a long line at spaces; what follows is indented, what is broken ends in ``mark``."""
    indent = "// " if text.startswith("//") else INDENT  # a comment goes on as one
    parts = []
    while len(text) > width:
        cut = text.rfind(" ", len(INDENT) * 2, width - len(mark))
        if cut < 0:
            break
        parts.append(text[:cut] + mark)
        text = indent + text[cut + 1 :]
    return [*parts, text]
