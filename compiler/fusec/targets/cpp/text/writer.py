"""Lines of a kernel file, and which of the user's lines each of them computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fusec.report import SourceLine

INDENT = "    "
WIDTH = 100
# What a line of code may go on with: what binds least comes first.
_OPERATORS = (
    ("__attribute__", "? ", ": "),
    ("| ", "& ", "== ", "!= ", "< ", "> ", "<= ", ">= "),
    ("+ ", "- "),
    ("* ", "/ "),
)


@dataclass(frozen=True)
class Line:
    """A line of the file.

    Attributes:
        text: As it is written, indented.
        sources: The user's lines that it computes.
    """

    text: str
    sources: tuple[SourceLine, ...] = ()


class Writer:
    """Collects the lines of a file, or of a part of it."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[Line] = []
        self.depth = depth
        self._source: SourceLine | None = None

    def line(self, text: str = "", source: SourceLine | None = None) -> None:
        """Write a line; where it computes another line of the user's than those before, name that.

        Args:
            text: Without indentation.
            source: The user's line that it computes.
        """
        if source is not None and source != self._source:
            self._write(f"// {source}"[: WIDTH - len(INDENT) * self.depth], (source,))
        if source is not None:
            self._source = source
        for part in wrap(text, WIDTH - len(INDENT) * self.depth):
            self._write(part, (source,) if source is not None else ())

    def lines_of(self, texts: Iterable[str]) -> None:
        """Write several lines."""
        for text in texts:
            self._write(text, ())

    @contextmanager
    def block(
        self, head: str, source: SourceLine | None = None, *, end: str = "}"
    ) -> Iterator[None]:
        """Write ``head {``, what the block writes, and ``end``."""
        self.line(f"{head} {{".lstrip(), source)
        self.depth += 1
        yield
        self.depth -= 1
        self._write(end, ())

    def directive(self, text: str) -> None:
        """Write a ``#pragma`` at the current indentation."""
        for part in wrap(f"#pragma {text}", WIDTH - len(INDENT) * self.depth, " \\"):
            self._write(part, ())

    def _write(self, text: str, sources: tuple[SourceLine, ...]) -> None:
        self.lines.append(Line(INDENT * self.depth + text if text else "", sources))

    @property
    def text(self) -> str:
        """The file."""
        return "\n".join(line.text for line in self.lines) + "\n"

    def origins(self) -> dict[int, tuple[SourceLine, ...]]:
        """Return line number, from 1, to the user's lines."""
        return {n: line.sources for n, line in enumerate(self.lines, 1) if line.sources}


def wrap(text: str, width: int, mark: str = "") -> list[str]:
    """Break a long line; what follows is indented, what is broken ends in ``mark``."""
    indent = "// " if text.startswith("//") else INDENT  # a comment goes on as one
    parts = []
    while len(text) > width:
        cut = _break(text, len(INDENT) * 2, width - len(mark))
        if cut < 0:
            break
        parts.append(text[:cut] + mark)
        text = indent + text[cut + 1 :]
    return [*parts, text]


def _break(text: str, first: int, width: int) -> int:
    """Return the space to break a line at; -1 if there is none.

    Code is broken where the fewest brackets are open, behind a comma or a semicolon or before the
    operator that binds least; all else at the last space.
    """
    last = text.rfind(" ", first, width + 1)
    if text.startswith(("//", "#")):
        return last
    depth, best, found = 0, -1, (0, 0)
    assigned = text.find(" = ", first, width - 1)
    for place, character in enumerate(text[: width + 1]):
        depth += (character in "([{") - (character in ")]}")
        if character != " " or place < first:
            continue
        signs = (n for n, each in enumerate(_OPERATORS, 1) if text.startswith(each, place + 1))
        binds = 0 if text[place - 1] in ",;" else next(signs, -1)
        if binds >= 0 and (best < 0 or (depth, binds) <= found):
            best, found = place, (depth, binds)
    if best < assigned + 2 and assigned > 0:
        return assigned + 2  # rather than within what is written to
    return best if best >= 0 else last
