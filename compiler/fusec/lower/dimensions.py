"""Dimensions of tensors: which one is meant, and what shapes have in common."""

from __future__ import annotations

from collections.abc import Sequence

from fusec.ir.index import Expr, IntLike
from fusec.lower.values import NotLowered, Shape


def broadcast_shape(*shapes: Shape) -> Shape:
    """Return the shape that tensors of ``shapes`` broadcast to."""
    ndim = max((len(shape) for shape in shapes), default=0)
    result = [Expr.of(1)] * ndim
    for shape in shapes:
        for d, size in enumerate(shape, ndim - len(shape)):
            if size.constant != 1:
                result[d] = size
    return tuple(result)


def normalize_dim(dim: int, ndim: int) -> int:
    """Return ``dim`` counted from the front; a 0-d tensor counts as having one dimension.

    Raises:
        NotLowered: There is no such dimension: ATen, called with it, raises.
    """
    most = max(ndim, 1)
    if not -most <= dim < most:
        raise NotLowered(f"there is no dimension {dim}", refused=True)
    return dim % most


def normalize_dims(dims: object, ndim: int) -> tuple[int, ...]:
    """Return the reduced dimensions: None, an empty list and all mean all."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(ndim))
    if isinstance(dims, int):
        dims = (dims,)
    assert isinstance(dims, (list, tuple))
    return tuple(sorted({normalize_dim(int(d), ndim) for d in dims} & set(range(ndim))))


def exprs(values: Sequence[IntLike]) -> Shape:
    """Return sizes or indices as expressions."""
    return tuple(Expr.of(v) for v in values)
