"""Lines as on a board: the cell's line stands where it changes, not in every block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fusec.report import SourceLine
from fusec.targets.cpp.text.writer import Writer


class Board(Writer):
    """Collects the lines of a kernel."""

    @contextmanager
    def block(
        self, head: str, source: SourceLine | None = None, *, end: str = "}"
    ) -> Iterator[None]:
        """Write ``head {``, what the block writes, and ``end``."""
        self.line(f"{head} {{".lstrip(), source)
        self.depth += 1
        yield
        self.depth -= 1
        self.add(end)


__all__ = ["Board"]
