"""What writers of one kind of statement ask of the block that it stands in (``block.Block``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fusec.ir.index import Expr
from fusec.ir.node import Node, Scan
from fusec.report import SourceLine
from fusec.targets.triton.plan.tiling import Dim
from fusec.targets.triton.text.expressions import Text
from fusec.targets.triton.text.kernel_writer import KernelWriter


class BlockText(Protocol):
    """Statements of a kernel, and the texts of the values that they compute.

    Attributes:
        kernel: What they are part of.
        known: Value to its text.
        pending: Value that is written where it is used to the lines that it computes.
        carries: Scan to what the earlier steps of its loop have left.
    """

    kernel: KernelWriter
    known: dict[Node, Text]
    pending: dict[Node, tuple[SourceLine | None, ...]]
    carries: dict[Scan, tuple[str, ...]]

    def value(self, node: Node) -> Text:
        """Return the text of a value that is known."""

    def text(self, node: Node) -> Text:
        """Return the text that computes a value."""

    def index(self, expr: Expr, wide: bool = False) -> str:
        """Return the text of an index expression."""

    def ordered(self, dims: frozenset[Dim]) -> list[Dim]:
        """Return dimensions in the order of the tile."""

    def within(self, renamed: Mapping[Dim, str]) -> BlockText:
        """Return a block that knows what this one does, with other names for some indices."""


__all__ = ["BlockText"]
