"""Lines of a Triton file."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from fusec.codegen.common.writer import LineWriter
from fusec.report import SourceLine

WIDTH = 96  # a function's body is one level deeper in the file than in its own writer


class Writer(LineWriter):
    """Collects lines at an indentation, and remembers where each came from."""

    def __init__(self) -> None:
        super().__init__(WIDTH)

    def line(self, text: str = "", sources: Iterable[SourceLine | None] = ()) -> None:
        """Append a line; ``sources`` are the user's lines that it computes."""
        known = tuple(sources)
        for part in wrapped(text, self.room):
            self.add(part, known)

    def block(self, text: str) -> None:
        """Append ready-made lines, such as a helper function."""
        for line in text.strip("\n").splitlines():
            self.line(line)

    def mark(self, source: SourceLine | None, *, moves: bool = False) -> None:
        """Say in a comment which of the user's lines comes now, where that changes.

        Args:
            source: The line.
            moves: Whether what comes only reads or writes memory; see ``changes``.
        """
        if self.changes(source, moves=moves):
            self.line(f"# {source}")


def wrapped(text: str, width: int) -> list[str]:
    """Return ``text``, an argument a line of its longest call where it is too long for one."""
    if len(text) <= width or "#" in text or '"""' in text:
        return [text]
    opening, closing, cuts = longest_call(text)
    if closing - opening < width // 4:
        return [text]
    bare = text.lstrip()
    if bare != text:
        margin = text[: len(text) - len(bare)]
        return [margin + line for line in wrapped(bare, width - len(margin))]
    edges = [opening, *cuts, closing]
    items = [text[a + 1 : b].strip() for a, b in pairwise(edges)]
    comma = "," if cuts else ""
    body = [f"    {line}" for item in items for line in wrapped(item + comma, width - 4)]
    return [text[: opening + 1], *body, text[closing:]]


def longest_call(text: str) -> tuple[int, int, list[int]]:
    """Return where the longest outermost bracket opens, closes, and has its commas."""
    depth, opening = 0, 0
    cuts: list[int] = []
    best: tuple[int, int, list[int]] = (0, 0, [])
    for position, character in enumerate(text):
        if character in "([{":
            if depth == 0:
                opening, cuts = position, []
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0 and position - opening > best[1] - best[0]:
                best = (opening, position, cuts)
        elif character == "," and depth == 1:
            cuts.append(position)
    return best
