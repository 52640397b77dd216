"""Scans along a dimension: running sums, products, extremes."""

from __future__ import annotations

import torch

from fusec.ir import ops
from fusec.ir.node import Node
from fusec.lower.dimensions import normalize_dim
from fusec.lower.pointwise.elementwise import convert
from fusec.lower.reductions.rules import emit_rows, reduction_loop
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import Index, NotLowered, TensorValue


def scan_values(
    lowering: Lowering, x: TensorValue, dim: int, kinds: tuple[str, ...], dtype: torch.dtype
) -> tuple[TensorValue, ...]:
    """Emit the scans of ``x`` along one dimension, a result a kind.

    Args:
        lowering: The state.
        x: The input; not 0-dimensional.
        dim: The dimension.
        kinds: Of ``Scan``; positions are int64.
        dtype: What the input is converted to first; halves are combined in float32.
    """
    loop = reduction_loop(x.shape, (normalize_dim(dim, x.ndim),), True)
    value = ops.cast(convert(x.at(loop.full_index), dtype), ops.compute_dtype(dtype))
    (axis,) = loop.reduce_axes
    results: list[tuple[Node, bool]] = []
    for kind in kinds:
        result = torch.int64 if kind.startswith("arg") else value.dtype
        results.append((ops.scan(kind, value, axis, result), True))
    return emit_rows(lowering, loop, results)


@register(aten.cumsum.default, aten.cumprod.default)
def cumsum_cumprod(
    lowering: Lowering, x: TensorValue, dim: int, *, dtype: torch.dtype | None = None
) -> TensorValue:
    """Return the running sum or product; integers and bools widen to int64."""
    wanted = dtype or lowering.meta().dtype
    if wanted == torch.bool:
        raise NotLowered(f"{lowering.label} in bool")
    if x.ndim == 0:
        return lowering.pointwise(lambda index: _compute(x, index, wanted))
    kind = lowering.label.removeprefix("cum")
    return scan_values(lowering, x, dim, (kind,), wanted)[0]


@register(aten.logcumsumexp.default)
def logcumsumexp(lowering: Lowering, x: TensorValue, dim: int) -> TensorValue:
    """Return log(cumsum(exp(x))), each term added around the larger of the two."""
    if not x.dtype.is_floating_point:
        raise NotLowered("logcumsumexp of integers")
    if x.ndim == 0:
        return lowering.pointwise(lambda index: _compute(x, index, x.dtype))
    return scan_values(lowering, x, dim, ("logsumexp",), x.dtype)[0]


@register(aten.cummax.default, aten.cummin.default)
def cummax_cummin(lowering: Lowering, x: TensorValue, dim: int) -> tuple[TensorValue, ...]:
    """Return the running extreme and its position: the last of equal values, NaN above all."""
    if x.ndim == 0:
        value = lowering.pointwise(lambda index: _compute(x, index, x.dtype))
        return value, lowering.pointwise(lambda index: ops.const(0, torch.int64), 1)
    kind = lowering.label.removeprefix("cum")
    return scan_values(lowering, x, dim, (kind, f"arg{kind}"), x.dtype)


def _compute(x: TensorValue, index: Index, dtype: torch.dtype) -> Node:
    return ops.cast(convert(x.at(index), dtype), ops.compute_dtype(dtype))


__all__ = ["cummax_cummin", "cumsum_cumprod", "logcumsumexp", "scan_values"]
