"""Adding to a table of few rows: each row sums up what is its own, of all there is.

A table of relative positions has 32 rows, one of segments two, and a gradient adds millions of
elements to them.  Atomics wait for each other then: on a GPU 2.0 ms for 8 x 512 x 512 elements and
32 rows.  Read once for every row, from the L2, they are a plain reduction.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusec.ir import ops
from fusec.ir.body import new_axes
from fusec.ir.index import Expr
from fusec.ir.shapes import product
from fusec.lower.pointwise.elementwise import convert
from fusec.lower.reductions.rules import ReductionLoop, emit_rows
from fusec.lower.registry import Lowering
from fusec.lower.values import Element, TensorValue

# Elements that all rows look at, and additions to a row that make its atomics wait.
_MOST_READ = 1 << 28
_CROWDED = 64


def sums_of_few_rows(
    lowering: Lowering,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    values: Element,
    dtype: torch.dtype,
) -> TensorValue | None:
    """Emit x with ``values`` added at the rows that one index tensor names, if these are few.

    Args:
        lowering: The state; its result is x's shape and type.
        x: What is added to.
        indices: Of x's dimensions: integers for the first, None for the others.
        values: Index into ``x[indices]`` to what is added.
        dtype: In which the sums are computed.

    Returns:
        The result; None where atomics are as good, or sizes are not known.
    """
    index, *others = indices
    meta = lowering.meta()
    if index is None or any(other is not None for other in others):
        return None
    rows, columns = x.shape[0].constant, product(x.shape[1:]).constant
    count = index.numel.constant
    many = lowering.can(meta.device).many_programs
    if not (many and rows and columns and count) or index.dtype == torch.bool:
        return None
    if count < _CROWDED * rows or rows * columns * count > _MOST_READ:
        return None
    axes, along = new_axes(x.shape), new_axes(index.shape, "r")
    kept, within = (tuple(map(Expr.of, each)) for each in (axes, along))
    loop = ReductionLoop(axes, along, kept + within, kept, index.numel)
    named = ops.checked_place(index.at(within), x.shape[0])
    own = ops.binary("eq", named, ops.index_value(kept[0], torch.int64))
    value = convert(values((*within, *kept[1:])), dtype)
    total = loop.reduce("sum", ops.where(own, value, ops.const(0, dtype)))
    result = ops.binary("add", convert(x.at(kept), dtype), total)
    return emit_rows(lowering, loop, [(result, False)])[0]


__all__ = ["sums_of_few_rows"]
