"""Windows of unequal sizes a dimension at a time: each stage is sums of a few neighbors.

Where 30 rows and columns are shared out among 7, every window has its own size in both dimensions,
so that a loop over all of one has a condition for each element.  A stage has conditions in one
dimension: the rows of a window are added up as vectors first, and then a few of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusec.ir import ops
from fusec.ir.index import Expr
from fusec.ir.node import Node
from fusec.lower.movement.windows import Spread, Taps, at, chosen, every, is_small
from fusec.lower.registry import Lowering
from fusec.lower.scatter.steps import fill
from fusec.lower.values import Index, TensorValue, dense_meta

# The sum of a stage, the dimension that it is of, and the index there, to what is kept.
Part = Callable[[Node, int, Expr], Node]


def goes_by_stages(lowering: Lowering, taps: Sequence[Taps]) -> bool:
    """Whether sums over windows are better taken a dimension at a time.

    A GPU has a program for each result, whose conditions cost little beside another kernel; with
    the channels innermost all conditions stand above the vectors.
    """
    meta = lowering.meta()
    if len(taps) < 2 or not any(isinstance(each, Spread) for each in taps):
        return False
    if lowering.can(meta.device).many_programs or meta.strides[-1] != 1:
        return False
    return all(is_small([each]) for each in taps)


def sum_by_stages(
    lowering: Lowering,
    x: TensorValue,
    taps: Sequence[Taps],
    order: Sequence[int],
    part: Part = lambda value, dim, place: value,
    finish: Callable[[Node, Index], Node] = lambda total, index: total,
) -> TensorValue:
    """Emit sums over what ``taps`` find in each of the last dimensions.

    Args:
        lowering: The state; it knows the result's shape.
        x: What is added up.
        taps: Positions in x for an index of the result, in each of the last dimensions.
        order: The dimensions, of ``taps``, in the order of the stages.
        part: An element before it is added, the dimension of the stage, and its place there.
        finish: A sum over all dimensions and its index in these, to the result.
    """
    meta, dtype, first = lowering.meta(), ops.compute_dtype(x.dtype), x.ndim - len(taps)
    shape, element = list(x.shape), x.compute
    for dim in order:
        total = _stage(element, taps[dim], first + dim, dim, part)
        shape[first + dim] = meta.shape[first + dim]
        if dim == order[-1]:
            break
        element = fill(lowering, dense_meta(tuple(shape), dtype, meta.device), total).compute
    return lowering.pointwise(lambda index: finish(total(index), index[first:]))


def _stage(
    element: Callable[[Index], Node], taps: Taps, axis: int, dim: int, part: Part
) -> Callable[[Index], Node]:
    """Return the sum over one dimension, as a function of an index."""

    def total(index: Index) -> Node:
        def value(place: Index) -> Node:
            return part(element((*index[:axis], *place, *index[axis + 1 :])), dim, *place)

        found: Node | None = None
        for t in every([taps]):
            each = at([taps], (index[axis],), t, value)
            # from 0 on, as eager does it: a sum of -0.0 alone is 0.0
            found = found or ops.const(0, each[1].dtype)
            found = ops.binary("add", found, chosen(each, 0))
        assert found is not None
        return found

    return total


__all__ = ["goes_by_stages", "sum_by_stages"]
