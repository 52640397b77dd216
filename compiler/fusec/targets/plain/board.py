"""Lines as on a board: what is said of one stands behind it, where there is room."""

from __future__ import annotations

from fusec.codegen.common.writer import INDENT
from fusec.report import SourceLine
from fusec.targets.cpp.text.writer import WIDTH, Writer


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


__all__ = ["Board"]
