"""Lines of a C++ kernel file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fusec.codegen.common.writer import INDENT, LineWriter
from fusec.report import SourceLine

WIDTH = 100
# What a line of code may go on with: what binds least comes first.
_OPERATORS = (
    ("__attribute__", "? ", ": "),
    ("|| ",),
    ("&& ",),
    ("| ", "& ", "== ", "!= ", "< ", "> ", "<= ", ">= "),
    ("+ ", "- "),
    ("* ", "/ "),
)


class Writer(LineWriter):
    """Collects the lines of a file, or of a part of it."""

    def __init__(self, depth: int = 0) -> None:
        super().__init__(WIDTH, depth)

    def line(
        self, text: str = "", source: SourceLine | None = None, *, moves: bool = False
    ) -> None:
        """Write a line; where it computes another line of the user's than those before, name that.

        Args:
            text: Without indentation.
            source: The user's line that it computes.
            moves: Whether it only reads or writes memory; see ``changes``.
        """
        if self.changes(source, moves=moves):
            said = f"// {source}"
            cut = f"{said[: max(self.room, 8) - 4]} ..."
            self.add(said if len(said) <= self.room else cut, (source,))
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
        with self.indented():
            yield
        self.add(end)

    def directive(self, text: str) -> None:
        """Write a ``#pragma`` at the current indentation."""
        for part in wrap(f"#pragma {text}", self.room, " \\"):
            self.add(part)


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
