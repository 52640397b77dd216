"""Reductions over any dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fusec.devices import CPU
from fusec.ir import ops
from fusec.ir.body import Body, Store, new_axes
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node
from fusec.ir.numbers import held
from fusec.ir.shapes import product
from fusec.lower.dimensions import normalize_dim, normalize_dims
from fusec.lower.pointwise.elementwise import convert, truth
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import Index, NotLowered, TensorValue


@dataclass(frozen=True)
class ReductionLoop:
    """The loops of one reduction: over what is kept, and over what is reduced.

    Attributes:
        axes: A loop a kept dimension.
        reduce_axes: A loop a reduced dimension.
        full_index: Index into the input, over both.
        kept_index: Index into the result (with ``keepdim``, 0 for a reduced dimension).
        count: How many elements are reduced to one.
    """

    axes: tuple[Symbol, ...]
    reduce_axes: tuple[Symbol, ...]
    full_index: Index
    kept_index: Index
    count: Expr

    def reduce(self, kind: str, value: Node) -> Node:
        """Return a reduction of ``value``."""
        dtype = torch.int64 if kind in ("argmax", "argmin") else value.dtype
        return ops.reduce(kind, value, self.reduce_axes, dtype)


def reduction_loop(shape: Index, dims: Sequence[int], keepdim: bool) -> ReductionLoop:
    """Return the loops that reduce ``dims`` of a tensor of ``shape``."""
    reduced = set(dims)
    axes = new_axes(tuple(s for d, s in enumerate(shape) if d not in reduced))
    reduce_axes = new_axes(tuple(s for d, s in enumerate(shape) if d in reduced), "r")
    outer, inner = iter(axes), iter(reduce_axes)
    full = tuple(
        Expr.of(next(inner)) if d in reduced else Expr.of(next(outer)) for d in range(len(shape))
    )
    if keepdim:
        kept = tuple(Expr.of(0) if d in reduced else full[d] for d in range(len(shape)))
    else:
        kept = tuple(full[d] for d in range(len(shape)) if d not in reduced)
    return ReductionLoop(axes, reduce_axes, full, kept, product(a.size or 1 for a in reduce_axes))


def emit_rows(
    lowering: Lowering, loop: ReductionLoop, values: Sequence[tuple[Node, bool]]
) -> tuple[TensorValue, ...]:
    """Emit a body with a store a result.

    Args:
        lowering: The state.
        loop: The loops.
        values: For each result its value, and whether it has all the input's elements (True) or
            one a kept index (False).
    """
    stores, results = [], []
    for number, (value, whole) in enumerate(values):
        meta = lowering.meta(number)
        buffer = lowering.new_buffer(meta)
        index = loop.full_index if whole else loop.kept_index
        if not whole and len(index) != len(meta.shape):  # keepdim differs from the loop's
            index = tuple(e for e in loop.full_index if not _uses(e, loop.reduce_axes))
        stores.append(Store(buffer.name, index, lowering.round(value, meta.dtype)))
        results.append(lowering.from_buffer(buffer))
    lowering.emit(Body(loop.axes, loop.reduce_axes, tuple(stores)))
    return tuple(results)


def _uses(expr: Expr, axes: tuple[Symbol, ...]) -> bool:
    return bool(expr.symbols() & set(axes))


def reduce_value(
    lowering: Lowering,
    x: TensorValue,
    dims: object,
    keepdim: bool,
    value: Callable[[ReductionLoop, Node], Node],
    dtype: torch.dtype | None = None,
) -> TensorValue:
    """Emit one reduction.

    Args:
        lowering: The state.
        x: The input.
        dims: The reduced dimensions; None or empty for all.
        keepdim: Whether they stay with size 1.
        value: The loops and the input's element to the result.
        dtype: What the input is converted to first; None for its computation type.
    """
    loop = reduction_loop(x.shape, normalize_dims(dims, x.ndim), keepdim)
    element = x.compute(loop.full_index)
    # There and back costs a sum of halves more than its additions, but where memory hides it.
    same = dtype == x.dtype and lowering.meta().device.type == CPU
    if dtype is not None and not same:
        element = ops.cast(convert(element, dtype), ops.compute_dtype(dtype))
    return emit_rows(lowering, loop, [(value(loop, element), False)])[0]


def _accumulate(x: TensorValue, dtype: torch.dtype | None) -> torch.dtype:
    """Return the type that sums run in: integers widen to int64, halves to float32."""
    if dtype is not None:
        return dtype
    return x.dtype if x.dtype.is_floating_point else torch.int64


@register(aten.sum.default, aten.sum.dim_IntList)
def sum_(
    lowering: Lowering,
    x: TensorValue,
    dims: object = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorValue:
    """Return the sum; 0 of nothing."""
    return reduce_value(
        lowering, x, dims, keepdim, lambda loop, v: loop.reduce("sum", v), _accumulate(x, dtype)
    )


@register(aten.mean.default, aten.mean.dim)
def mean(
    lowering: Lowering,
    x: TensorValue,
    dims: object = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorValue:
    """Return the mean; NaN of nothing."""

    def value(loop: ReductionLoop, v: Node) -> Node:
        return divide_by_count(loop.reduce("sum", v), loop.count)

    return reduce_value(lowering, x, dims, keepdim, value, dtype)


def divide_by_count(total: Node, count: Expr) -> Node:
    """Return total / count."""
    number = ops.cast(ops.index_value(count, torch.int64), total.dtype)
    return ops.binary("truediv", total, number)


@register(aten.prod.default, aten.prod.dim_int)
def prod(
    lowering: Lowering,
    x: TensorValue,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorValue:
    """Return the product; 1 of nothing."""
    return reduce_value(
        lowering, x, dim, keepdim, lambda loop, v: loop.reduce("prod", v), _accumulate(x, dtype)
    )


@register(aten.amax, aten.amin)
def amax_amin(
    lowering: Lowering, x: TensorValue, dims: object = (), keepdim: bool = False
) -> TensorValue:
    """Return the largest or smallest element, NaN if there is one."""
    kind = "max" if lowering.label == "amax" else "min"
    return _extreme(lowering, x, dims, keepdim, kind)


def _extreme(
    lowering: Lowering, x: TensorValue, dims: object, keepdim: bool, kind: str
) -> TensorValue:
    _require_elements(x, dims)
    if x.dtype == torch.bool:
        kind = "any" if kind == "max" else "all"
    return reduce_value(lowering, x, dims, keepdim, lambda loop, v: loop.reduce(kind, v))


def _require_elements(x: TensorValue, dims: object) -> None:
    count = product(x.shape[d] for d in normalize_dims(dims, x.ndim))
    if count.constant == 0:
        raise NotLowered("a maximum or minimum of no elements")


@register(aten.max.default, aten.min.default)
def max_min(lowering: Lowering, x: TensorValue) -> TensorValue:
    """Return the extreme of all elements."""
    return _extreme(lowering, x, None, False, lowering.label)


@register(aten.max.dim, aten.min.dim)
def max_min_dim(
    lowering: Lowering, x: TensorValue, dim: int, keepdim: bool = False
) -> tuple[TensorValue, ...]:
    """Return the extreme along a dimension and its (first) position."""
    _require_elements(x, dim)
    kind = lowering.label
    loop = reduction_loop(x.shape, normalize_dims(dim, x.ndim), keepdim)
    v = x.compute(loop.full_index)
    best = loop.reduce({"max": "any", "min": "all"}[kind] if v.dtype == torch.bool else kind, v)
    place = loop.reduce("arg" + kind, _ordered(v))
    return emit_rows(lowering, loop, [(best, False), (place, False)])


def _ordered(value: Node) -> Node:
    return ops.cast(value, torch.uint8) if value.dtype == torch.bool else value


@register(aten.argmax, aten.argmin)
def argmax_argmin(
    lowering: Lowering, x: TensorValue, dim: int | None = None, keepdim: bool = False
) -> TensorValue:
    """Return the first position of the extreme; the first NaN wins."""
    _require_elements(x, dim)
    kind = lowering.label
    return reduce_value(lowering, x, dim, keepdim, lambda loop, v: loop.reduce(kind, _ordered(v)))


@register(aten.any, aten.all)
def any_all(
    lowering: Lowering, x: TensorValue, dims: object = None, keepdim: bool = False
) -> TensorValue:
    """Return whether any or every element is true; a uint8 input gives uint8."""
    kind = lowering.label

    def value(loop: ReductionLoop, v: Node) -> Node:
        return ops.cast(loop.reduce(kind, truth(v)), lowering.meta().dtype)

    return reduce_value(lowering, x, dims, keepdim, value)


def centered_moments(loop: ReductionLoop, v: Node) -> tuple[Node, Node]:
    """Return the mean and the sum of squared distances from it, in two passes.

    Two passes over a row that stays in cache (or in registers) are as fast as Welford's single
    one, vectorize, and are more accurate.
    """
    average = divide_by_count(loop.reduce("sum", v), loop.count)
    distance = ops.binary("sub", v, average)
    return average, loop.reduce("sum", ops.binary("mul", distance, distance))


def _deviating(lowering: Lowering, x: TensorValue, v: Node) -> Node:
    """Return an element in the type that a standard deviation is computed in.

    A distance of 1e-25 or 1e20 is in float32's range and so is the root of its square, but the
    square is not.  Eager computes in float64 on a CPU, in float32 on a GPU; squares of float16 fit.
    """
    wide = x.dtype in (torch.float32, torch.bfloat16)
    return ops.cast(v, torch.float64) if wide and lowering.meta(0).device.type == CPU else v


def variance(squares: Node, count: Expr, correction: float) -> Node:
    """Return squares / max(count - correction, 0)."""
    if count.constant is not None:
        divisor: Node = ops.const(max(count.constant - correction, 0.0), squares.dtype)
    else:
        number = ops.cast(ops.index_value(count, torch.int64), squares.dtype)
        rest = ops.binary("sub", number, ops.const(correction, squares.dtype))
        divisor = ops.binary("maximum", rest, ops.const(0, squares.dtype))
    return ops.binary("truediv", squares, divisor)


def _correction(correction: object, unbiased: bool) -> float:
    if correction is None:
        return 1.0 if unbiased else 0.0
    if not isinstance(correction, (int, float)):
        raise NotLowered("its correction is a symbolic size")
    return float(correction)


@register(aten.var.correction, aten.std.correction)
def var_std(
    lowering: Lowering,
    x: TensorValue,
    dims: object = None,
    *,
    correction: object = None,
    keepdim: bool = False,
) -> TensorValue:
    """Return the variance or the standard deviation."""
    root = lowering.label == "std"

    def value(loop: ReductionLoop, v: Node) -> Node:
        _, squares = centered_moments(loop, _deviating(lowering, x, v) if root else v)
        result = variance(squares, loop.count, _correction(correction, True))
        return ops.cast(ops.unary("sqrt", result), v.dtype) if root else result

    return reduce_value(lowering, x, dims, keepdim, value)


@register(aten.var_mean.correction, aten.std_mean.correction)
def var_mean(
    lowering: Lowering,
    x: TensorValue,
    dims: object = None,
    *,
    correction: object = None,
    keepdim: bool = False,
) -> tuple[TensorValue, ...]:
    """Return the variance (or standard deviation) and the mean."""
    root = lowering.label == "std_mean"
    loop = reduction_loop(x.shape, normalize_dims(dims, x.ndim), keepdim)
    v = x.compute(loop.full_index)
    average, squares = centered_moments(loop, _deviating(lowering, x, v) if root else v)
    spread = variance(squares, loop.count, _correction(correction, True))
    if root:
        average, spread = ops.cast(average, v.dtype), ops.cast(ops.unary("sqrt", spread), v.dtype)
    return emit_rows(lowering, loop, [(spread, False), (average, False)])


@register(aten.linalg_vector_norm.default)
def vector_norm(
    lowering: Lowering,
    x: TensorValue,
    order: float = 2,
    dims: object = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorValue:
    """Return the vector norm of any order."""
    if order in (math.inf, -math.inf):
        _require_elements(x, dims)

    def value(loop: ReductionLoop, v: Node) -> Node:
        size = ops.unary("abs", v)
        if order == 2:
            return ops.unary("sqrt", loop.reduce("sum", ops.binary("mul", v, v)))
        if order == 1:
            return loop.reduce("sum", size)
        if order == math.inf:
            return loop.reduce("max", size)
        if order == -math.inf:
            return loop.reduce("min", size)
        if order == 0:
            return loop.reduce("sum", ops.cast(truth(v), v.dtype))
        power = held(order, v.dtype)  # eager computes with it, and it may be infinite there
        raised = ops.binary("pow", size, ops.const(power, v.dtype))
        total = loop.reduce("sum", raised)
        return ops.binary("pow", total, ops.const(1.0 / power if power else math.inf, v.dtype))

    return reduce_value(lowering, x, dims, keepdim, value, dtype)


@register(aten.logsumexp.default)
def logsumexp(
    lowering: Lowering, x: TensorValue, dims: object, keepdim: bool = False
) -> TensorValue:
    """Return log(sum(exp(x))), computed around the maximum."""
    _require_elements(x, dims)
    dtype = None if x.dtype.is_floating_point else lowering.meta().dtype

    def value(loop: ReductionLoop, v: Node) -> Node:
        top = loop.reduce("max", v)
        # where the maximum is infinite, x - max would be NaN; torch uses 0 there
        infinite = ops.binary("eq", ops.unary("abs", top), ops.const(math.inf, v.dtype))
        center = ops.where(infinite, ops.const(0, v.dtype), top)
        total = loop.reduce("sum", ops.unary("exp", ops.binary("sub", v, center)))
        return ops.binary("add", ops.unary("log", total), center)

    return reduce_value(lowering, x, dims, keepdim, value, dtype)


__all__ = ["centered_moments", "divide_by_count", "emit_rows", "normalize_dim", "reduction_loop"]
