"""Lines as on a board: the cell's line stands where it changes, not in every block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fusec.report import SourceLine
from fusec.targets.cpp.text.writer import INDENT, WIDTH, Writer


class Board(Writer):
    """Collects the lines of a kernel."""

    def remarked(self, text: str, remark: str, source: SourceLine | None) -> None:
        """Write a line with a remark behind it, or before it where that is too long for one."""
        whole = f"{text} // {remark}"
        if len(INDENT) * self.depth + len(whole) <= WIDTH:
            self.line(whole, source)
        else:
            self.line(f"// {remark}", source)
            self.line(text, source)

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


__all__ = ["Board"]
