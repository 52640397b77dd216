"""Lines of generated text, each with the user's lines that it computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from fusec.report import SourceLine

WIDTH = 96  # a function's body is one level deeper in the file than in its own writer


class Writer:
    """Collects lines at an indentation, and remembers where each came from."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.origins: dict[int, tuple[SourceLine, ...]] = {}
        self.depth = 0
        self._source: SourceLine | None = None

    def line(self, text: str = "", sources: Iterable[SourceLine | None] = ()) -> None:
        """Append a line; ``sources`` are the user's lines that it computes."""
        known = tuple(dict.fromkeys(s for s in sources if s is not None))
        for part in wrapped(text, WIDTH - 4 * self.depth):
            self.lines.append("    " * self.depth + part if part else "")
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
