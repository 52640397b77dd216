"""The axes of a body with one matrix product."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.body import Body
from fusec.ir.index import Symbol
from fusec.ir.node import Dot


@dataclass(frozen=True)
class ProductAxes:
    """A matrix product, and which axis is which.

    Attributes:
        node: The product.
        batch: The axis of independent products, if there is one.
        row: The axis of the first operand's rows.
        column: The axis of the second operand's columns.
        inner: The axis that is summed over.
    """

    node: Dot
    batch: Symbol | None
    row: Symbol
    column: Symbol
    inner: Symbol


def product_axes(body: Body) -> ProductAxes:
    """Return the axes of a body with one matrix product."""
    (node,) = body.products
    (inner,) = node.axes
    columns = tuple(axis for axis in body.reduce_axes if axis is not inner)
    *batch, row, column = (*body.axes, *columns)
    assert len(batch) <= 1
    return ProductAxes(node, batch[0] if batch else None, row, column, inner)


__all__ = ["ProductAxes", "product_axes"]
