"""The marks of loops that take four vectors side by side; ``plan/interleave.py`` decides."""

from __future__ import annotations

from fusec.targets.cpp.text.scope import Scope
from fusec.targets.cpp.text.writer import Writer


class Marks:
    """The marks of one loop.

    Args:
        scope: Around the loop.
        kind: Their type; empty where there are none.
        count: How many elements the loop has at most.
    """

    def __init__(self, scope: Scope, kind: str, count: str) -> None:
        self.kernel = scope.kernel
        self.kind = kind
        self.count = count
        self.name = scope.name("marks") if kind else ""

    def declare(self, writer: Writer) -> None:
        """Write what precedes the loop and its directives."""
        if self.kind:
            writer.line(f"alignas(64) {self.kind} {self.name}[{self.count}];")

    def set(self, writer: Writer, place: str) -> None:
        """Write the mark of the loop's element at ``place``."""
        if self.kind:
            writer.line(f"{self.name}[{place}] = 0;")

    def end(self, writer: Writer) -> None:
        """Write what follows the loop."""
        if self.kind:
            self.kernel.use("interleave")
            writer.line(f"interleave({self.name});")


__all__ = ["Marks"]
