"""Block masks of attention, as loops read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusec.graph.simplify.attention_blocks import UNBLOCKED
from fusec.ir.index import Expr
from fusec.lower.higher_order import Subgraph
from fusec.lower.values import (
    NotLowered,
    TensorValue,
)

LEAST_BLOCK = 16  # rows that tensor cores multiply at least
Index = tuple[Expr, ...]


@dataclass(frozen=True)
class BlockMask:
    """The parts of torch's ``BlockMask.as_tuple()`` that attention asks for.

    Attributes:
        partial: How many blocks of each block of queries are kept in part, and which.
        full: Those that are kept whole; None where nobody says.
        partial_queries: The same the other way round: for each block of keys, the queries'.
        full_queries: Likewise.
        rows: Queries of a block.
        columns: Keys of a block.
        mask: The user's function.
        by_keys: Whether the lists are of queries, one for each block of keys.
    """

    partial: tuple[TensorValue, TensorValue] | None
    full: tuple[TensorValue, TensorValue] | None
    partial_queries: tuple[TensorValue, TensorValue] | None
    full_queries: tuple[TensorValue, TensorValue] | None
    rows: int
    columns: int
    mask: Subgraph
    by_keys: bool = False

    def turned(self) -> BlockMask:
        """Return the same with lists of queries.

        Raises:
            NotLowered: There are none.
        """
        if self.partial is not None and self.partial_queries is None:
            raise NotLowered("the mask does not list the queries of a block of keys")
        return replace(self, partial=self.partial_queries, full=self.full_queries, by_keys=True)

    @staticmethod
    def of(given: Sequence[object]) -> BlockMask:
        """Return what the operator was given, by name."""
        rows, columns = (_number(each) for each in given[-3:-1])
        mask = given[-1]
        pairs = [_pair(given[n], given[n + 1]) for n in (2, 4, 6, 8)]
        if not isinstance(mask, Subgraph):
            raise NotLowered("the mask is not a traced function")
        if rows >= UNBLOCKED and columns >= UNBLOCKED:
            pairs = [None, None, None, None]
        elif pairs[0] is None:
            raise NotLowered("the mask has no blocks")
        elif rows % LEAST_BLOCK or columns % LEAST_BLOCK:
            raise NotLowered(f"a block of {rows} x {columns} is not a tile of tensor cores")
        partial, full, partial_queries, full_queries = pairs
        return BlockMask(partial, full, partial_queries, full_queries, rows, columns, mask)


def _number(value: object) -> int:
    known = value.constant if isinstance(value, Expr) else value
    if not isinstance(known, int):
        raise NotLowered("the blocks of the mask have no known size")
    return known


def _pair(first: object, second: object) -> tuple[TensorValue, TensorValue] | None:
    if isinstance(first, TensorValue) and isinstance(second, TensorValue):
        return first, second
    return None


__all__ = ["LEAST_BLOCK", "BlockMask", "Index"]
