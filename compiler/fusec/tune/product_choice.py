"""What was found for one matrix product with its epilogue: BLAS, or a kernel and its settings."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.program import Settings


@dataclass(frozen=True)
class ProductChoice:
    """What was found for one product with its epilogue.

    Attributes:
        reason: In words.
        strategy: How the kernel is to be written; empty where BLAS stays.
        settings: The values of its tunables.
    """

    reason: str
    strategy: str = ""
    settings: Settings = ()


__all__ = ["ProductChoice"]
