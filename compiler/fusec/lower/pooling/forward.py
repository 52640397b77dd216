"""Pooling over windows of one, two or three dimensions: the largest element, or the average."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fusec.ir import ops
from fusec.ir.body import new_axes
from fusec.ir.index import Expr, is_nonnegative
from fusec.ir.node import Node, Number
from fusec.ir.shapes import flatten, product
from fusec.lower.movement.windows import (
    Sliding,
    Spread,
    Taps,
    adaptive_windows,
    at,
    chosen,
    compare,
    every,
    is_small,
    lengths,
    position,
)
from fusec.lower.pooling.stages import goes_by_stages, sum_by_stages
from fusec.lower.reductions.rules import ReductionLoop, emit_rows
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import Index, NotLowered, Shape, TensorValue


def pooled_dims(lowering: Lowering) -> int:
    """Return how many dimensions an operator pools over, from its name."""
    return next(n for n in (1, 2, 3) if f"{n}d" in lowering.label)


def per_dim(value: object, n: int, default: Sequence[int] = ()) -> list[int]:
    """Return a list argument with a number for each dimension."""
    given = [value] if isinstance(value, int) else list(value) or list(default)  # type: ignore[call-overload]
    if not all(isinstance(each, int) for each in given):
        raise NotLowered("pooling with symbolic arguments")
    return given * n if len(given) == 1 else given


def sliding_windows(
    size: Shape,
    count: Shape,
    kernel: object,
    stride: object,
    padding: object,
    dilation: object,
    ceil_mode: bool,
) -> list[Sliding]:
    """Return the windows in each pooled dimension, from arguments as torch takes them.

    ``size`` and ``count`` are the input's sizes and the result's in these dimensions.
    """
    n = len(size)
    extent = per_dim(kernel, n)
    found = zip(
        size,
        count,
        extent,
        per_dim(stride, n, extent),
        per_dim(padding, n),
        per_dim(dilation, n),
        strict=True,
    )
    return [
        Sliding(s, c, Expr.of(k), Expr.of(step), p, d, ceil_mode) for s, c, k, step, p, d in found
    ]


def adaptive(lowering: Lowering, size: Shape, count: Shape) -> list[Sliding | Spread]:
    """Return the windows that share out each pooled dimension of ``size`` among ``count``."""
    n = pooled_dims(lowering)
    return [adaptive_windows(s, c) for s, c in zip(size[-n:], count[-n:], strict=True)]


def is_empty(*shapes: Shape) -> bool:
    """Whether there is nothing to pool, or to pool into."""
    return any(product(shape).constant == 0 for shape in shapes)


def zeros(lowering: Lowering, number: int = 0) -> TensorValue:
    """Return a result without windows."""
    return lowering.pointwise(lambda _: ops.const(0, lowering.meta(number).dtype), number)


def window_loop(shape: Shape, windows: Sequence[Taps]) -> tuple[ReductionLoop, Index]:
    """Return loops over a result of ``shape``, and over windows too large to be written out.

    Returns:
        The loops, and the position in a window, empty where there is no loop for it.
    """
    axes = new_axes(shape)
    inner = () if is_small(windows) else new_axes(lengths(windows), "r")
    index = tuple(Expr.of(axis) for axis in axes)
    within = tuple(Expr.of(axis) for axis in inner)
    return ReductionLoop(axes, inner, index + within, index, product(lengths(windows))), within


# -- the largest element --------------------------------------------------------------------------


@register(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool(
    lowering: Lowering,
    x: TensorValue,
    kernel: object,
    stride: object = (),
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: bool = False,
) -> tuple[TensorValue, ...]:
    """Return the largest element of each window, and its position in the pooled dimensions."""
    n = pooled_dims(lowering)
    size, count = x.shape[-n:], lowering.meta().shape[-n:]
    windows = sliding_windows(size, count, kernel, stride, padding, dilation, ceil_mode)
    return _largest(lowering, x, windows)


@register(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(
    lowering: Lowering, x: TensorValue, output_size: object
) -> tuple[TensorValue, ...]:
    """Return the largest element of each share of the input, and its position."""
    shape = lowering.meta().shape
    windows = [] if is_empty(shape) else adaptive(lowering, x.shape, shape)
    return _largest(lowering, x, windows)


def _largest(
    lowering: Lowering, x: TensorValue, windows: Sequence[Sliding | Spread]
) -> tuple[TensorValue, ...]:
    shape = lowering.meta().shape
    if x.dtype == torch.bool:
        raise NotLowered("pooling of bools")
    if is_empty(shape):
        return zeros(lowering, 0), zeros(lowering, 1)
    loop, within = window_loop(shape, windows)
    n = len(windows)
    outer, index, plane = loop.kept_index[:-n], loop.kept_index[-n:], x.shape[-n:]
    zero = (Expr.of(0),) * n
    # Places are counted from where the window begins, and in 32 bits where these hold them: then
    # they are constants, and a vector has as many of them as of values.
    room = product(plane).constant
    narrow = room is not None and room < 2**31 and ops.compute_dtype(x.dtype).itemsize <= 4
    number = torch.int32 if narrow else torch.int64
    begin = flatten(position(windows, index, zero), plane) if room is not None else Expr.of(0)

    def element(t: Index) -> tuple[Node | None, Node]:
        return at(windows, index, t, lambda place: x.compute((*outer, *place)))

    def offset(t: Index) -> Node:
        return ops.index_value(flatten(position(windows, index, t), plane) - begin, number)

    lowest = _lowest(ops.compute_dtype(x.dtype))
    if within:
        if any(isinstance(each, Sliding) and not _is_met(each) for each in windows):
            raise NotLowered("large windows that may lie in the padding alone")
        best, place = _search(loop, element(within), offset(within), lowest)
    else:
        numbers = list(every(windows))
        best = chosen(element(numbers[0]), lowest)
        place = _first(windows, index, (), offset)
        for t in numbers[1:]:
            condition, value = element(t)
            better = _is_better(value, best, condition)
            place = ops.where(better, offset(t), place)
            # Where nobody asks for the place, a maximum is one instruction, and NaN another.
            larger = ops.binary("maximum", value, best)
            best = larger if condition is None else ops.where(condition, larger, best)
    start = ops.index_value(begin, torch.int64)
    flat = ops.binary("add", start, ops.cast(place, torch.int64))
    return emit_rows(lowering, loop, [(best, False), (flat, False)])


def _lowest(dtype: torch.dtype) -> Number:
    return -float("inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _is_met(each: Sliding) -> bool:
    """Whether every window has an element: no holes of it can be larger than the dimension."""
    return each.step == 1 or not each.padding or is_nonnegative(each.size - each.step)


def _is_better(value: Node, best: Node, condition: Node | None) -> Node:
    """Return whether a value that is there replaces the largest one so far: the last NaN stays."""
    better = ops.binary("gt", value, best)
    if value.dtype.is_floating_point:
        better = ops.binary("logical_or", better, ops.unary("isnan", value))
    return ops.logical_and(condition, better) or better


def _first(
    windows: Sequence[Taps], index: Index, t: Index, offset: Callable[[Index], Node]
) -> Node:
    """Return where the first element of a window is that is not in the padding before.

    It is the largest one where none is larger than the lowest number there is.

    Args:
        windows: In each dimension.
        index: Of the window.
        t: The element's number in the dimensions before.
        offset: Numbers of an element to where it is.
    """
    if len(t) == len(windows):
        return offset(t)
    each, i = windows[len(t)], index[len(t)]
    length = each.length.constant
    assert length is not None
    found: Node | None = None
    for number in reversed(range(length)):
        condition = each.reached(i, Expr.of(number))
        here = _first(windows, index, (*t, Expr.of(number)), offset)
        found = here if condition is None or found is None else ops.where(condition, here, found)
    assert found is not None
    return found


def _search(
    loop: ReductionLoop, element: tuple[Node | None, Node], offset: Node, lowest: Number
) -> tuple[Node, Node]:
    """Return the largest element and its place: the first of equal ones, but the last NaN.

    The second reduction is over ranks: the place of a NaN; below them, places from the last to
    the first of what is as large as the largest; and below those everything else.
    """
    condition, value = element
    best = loop.reduce("max", chosen(element, lowest))
    offset = ops.cast(offset, torch.int64)
    last = torch.iinfo(torch.int64).min
    turned = ops.unary("bitwise_not", offset)  # -1 - offset
    equal = ops.binary("eq", value, best)
    rank = ops.where(equal, turned, ops.const(last, torch.int64))
    if value.dtype.is_floating_point:
        rank = ops.where(ops.unary("isnan", value), offset, rank)
    top = loop.reduce("max", chosen((condition, rank), last))
    negative = ops.binary("lt", top, ops.const(0, torch.int64))
    return best, ops.where(negative, ops.unary("bitwise_not", top), top)


# -- the average ----------------------------------------------------------------------------------

# The sum of a window, and the window's index, to its average.
Divide = Callable[[Node, Index], Node]


@register(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
def avg_pool(
    lowering: Lowering,
    x: TensorValue,
    kernel: object,
    stride: object = (),
    padding: object = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorValue:
    """Return the average of each window."""
    n = pooled_dims(lowering)
    size, count = x.shape[-n:], lowering.meta().shape[-n:]
    windows = sliding_windows(size, count, kernel, stride, padding, 1, ceil_mode)
    return _average(lowering, x, windows, dividing(windows, count_include_pad, divisor_override))


@register(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(lowering: Lowering, x: TensorValue, output_size: object) -> TensorValue:
    """Return the average of each share of the input."""
    shape = lowering.meta().shape
    windows = [] if is_empty(shape) else adaptive(lowering, x.shape, shape)
    return _average(lowering, x, windows, sharing(windows))


def _average(
    lowering: Lowering, x: TensorValue, windows: Sequence[Sliding | Spread], divide: Divide
) -> TensorValue:
    shape = lowering.meta().shape
    if not x.dtype.is_floating_point and x.dtype != torch.int64:
        raise NotLowered(f"the average of {x.dtype}")
    if is_empty(shape):
        return zeros(lowering)
    n = len(windows)
    if goes_by_stages(lowering, windows):
        return sum_by_stages(lowering, x, windows, range(n), finish=divide)
    loop, within = window_loop(shape, windows)
    outer, index = loop.kept_index[:-n], loop.kept_index[-n:]

    def element(t: Index) -> tuple[Node | None, Node]:
        return at(windows, index, t, lambda place: x.compute((*outer, *place)))

    total = add_up(loop, windows, within, element)
    return emit_rows(lowering, loop, [(divide(total, index), False)])[0]


def add_up(
    loop: ReductionLoop,
    taps: Sequence[Taps],
    within: Index,
    element: Callable[[Index], tuple[Node | None, Node]],
) -> Node:
    """Return the sum over all positions of what ``at`` finds there."""
    if within:
        return loop.reduce("sum", chosen(element(within), 0))
    total: Node | None = None
    for t in every(taps):
        condition, value = element(t)
        # from 0 on, as eager does it: a sum of -0.0 alone is 0.0
        total = total or ops.const(0, value.dtype)
        more = ops.binary("add", total, value)
        total = more if condition is None else ops.where(condition, more, total)
    assert total is not None
    return total


def _over(total: Node, count: Node) -> Node:
    name = "truediv" if total.dtype.is_floating_point else "truncdiv"
    return ops.binary(name, total, ops.cast(count, total.dtype))


def dividing(
    windows: Sequence[Sliding], count_include_pad: bool, divisor_override: int | None
) -> Divide:
    """Return what divides sums by the elements of their window, or by a given number."""

    def divide(total: Node, index: Index) -> Node:
        if divisor_override is not None:
            if divisor_override == 0:
                raise NotLowered("eager refuses to divide by zero", refused=True)
            return _over(total, ops.const(divisor_override, torch.int64))
        average = _over(total, ops.index_value(product(lengths(windows)), torch.int64))
        whole: Node | None = None
        for each, i in zip(windows, index, strict=True):
            condition, length = _elements(each, i, count_include_pad)
            whole = ops.logical_and(whole, condition)
            total = _over(total, length)
        # all alike in the middle, where loops that are split there need not count
        return average if whole is None else ops.where(whole, average, total)

    return divide


def _elements(each: Sliding, i: Expr, count_include_pad: bool) -> tuple[Node | None, Node]:
    """Return whether the ``i``-th window counts whole (None for always), and what it counts."""
    outside = 0 if count_include_pad else each.padding
    start, limit = each.start(i), each.size + each.padding - outside
    begun = ended = None
    if outside:
        begun = compare("ge", i, Expr.of(-(-outside // each.stride)))
    cut = bool(outside) or each.ceil_mode
    if cut and not is_nonnegative(limit - each.start(each.count - 1) - each.length):
        if limit.constant is None:
            ended = compare("le", start + each.length, limit)
        else:
            ended = compare("le", i, (limit + each.padding - each.length) // each.stride)

    def count(begin: Expr) -> Node:
        length = ops.index_value(start + each.length - begin, torch.int64)
        if ended is None:
            return length
        return ops.where(ended, length, ops.index_value(limit - begin, torch.int64))

    length = count(start)
    if begun is not None:
        length = ops.where(begun, length, count(Expr.of(0)))
    return ops.logical_and(begun, ended), length


def sharing(windows: Sequence[Sliding | Spread]) -> Divide:
    """Return what divides sums by the length of their window in each dimension, one by one."""

    def divide(total: Node, index: Index) -> Node:
        for each, i in zip(windows, index, strict=True):
            total = _over(total, ops.index_value(each.elements(i), torch.int64))
        return total

    return divide


__all__ = [
    "Divide",
    "adaptive",
    "add_up",
    "dividing",
    "is_empty",
    "per_dim",
    "pooled_dims",
    "sharing",
    "sliding_windows",
    "window_loop",
    "zeros",
]
