"""Joining a matrix product with what reads it.

For the loops, a product is a value like any other: one for each row and column, as if it had been
loaded.  So a load stands in for it while two bodies are joined in the ordinary way, and then the
product takes its place again.  What comes out has the product's own rows, columns and batches as
loops; the columns are among ``reduce_axes`` where whole rows are reduced.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.ir import ops
from fusec.ir.body import Body
from fusec.ir.index import Expr
from fusec.ir.node import Dot, Load, Node, cast, load, reduce
from fusec.schedule.align import Refusal, merge

STAND_IN = "the product"


def loops_of(body: Body) -> tuple[Expr, ...]:
    """Return where an element of a body's product is: batches, row, column."""
    (product,) = body.products
    outer = (*body.axes, *(axis for axis in body.reduce_axes if axis not in product.axes))
    return tuple(Expr.of(0) if axis.size == 1 else Expr.of(axis) for axis in outer)


def without_product(body: Body) -> tuple[Body, Load]:
    """Return a body whose product is loaded instead, and that load."""
    (product,) = body.products
    index = loops_of(body)
    stand_in = load(STAND_IN, index, product.dtype)
    assert isinstance(stand_in, Load)

    def swap(node: Node) -> Node | None:
        return stand_in if isinstance(node, Dot) else None

    rest = tuple(axis for axis in body.reduce_axes if axis not in product.axes)
    nowhere = dict.fromkeys(product.axes, Expr.of(0))
    return body.moved(body.axes, rest, nowhere, swap), stand_in


def join_product(first: Body, second: Body) -> Body | Refusal:
    """Return one body for a product and what reads it; or say why there is none.

    Args:
        first: Has one product.
        second: Reads what ``first`` writes.
    """
    (product,) = first.products
    plain, stand_in = without_product(first)
    joined = merge(plain, second, onto_first=True)
    if isinstance(joined, Refusal):
        return joined
    if any(each.buffer == STAND_IN and each is not stand_in for each in joined.loads()):
        return Refusal("it reads a matrix product elsewhere than where a tile computes it")
    before = (*plain.axes, *plain.reduce_axes)
    if any(axis is not before[-1] and axis.size != 1 for axis in joined.reduce_axes):
        return Refusal("it reduces down columns, of which a tile of a matrix product has a part")
    after = (*joined.axes, *joined.reduce_axes)
    if {axis for axis in before if axis.size != 1} != {axis for axis in after if axis.size != 1}:
        return Refusal("its loops are not those of the matrix product")

    def swap(node: Node) -> Node | None:
        return product if node is stand_in else None

    whole = joined.moved(joined.axes, joined.reduce_axes, {}, swap)
    return replace(whole, reduce_axes=(*joined.reduce_axes, *product.axes))


def as_sum(body: Body) -> Body:
    """Return a body that adds up products of elements, in place of its product of matrices."""

    def swap(node: Node) -> Node | None:
        if not isinstance(node, Dot):
            return None
        left, right = (cast(operand, node.dtype) for operand in node.args)
        return reduce("sum", ops.binary("mul", left, right), node.axes, node.dtype)

    return body.moved(body.axes, body.reduce_axes, {}, swap)


__all__ = ["as_sum", "join_product", "loops_of", "without_product"]
