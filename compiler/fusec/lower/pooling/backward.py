"""Gradients of pooling: each element gathers them from the windows that cover it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from fusec.ir import ops
from fusec.ir.body import new_axes
from fusec.ir.index import Expr
from fusec.ir.node import Node
from fusec.ir.shapes import flatten, product, unflatten
from fusec.ir.walk import free_axes
from fusec.lower.movement.windows import Sliding, Spread, Taps, at, compare, is_small
from fusec.lower.pointwise.elementwise import convert
from fusec.lower.pooling.forward import (
    Divide,
    adaptive,
    add_up,
    dividing,
    is_empty,
    pooled_dims,
    sharing,
    sliding_windows,
    window_loop,
    zeros,
)
from fusec.lower.pooling.stages import goes_by_stages, sum_by_stages
from fusec.lower.reductions.rules import emit_rows
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.scatter.steps import combining_dtype, fill, finished, update
from fusec.lower.values import Index, NotLowered, TensorValue

# An element looks through so many windows for those that chose it.
GATHERED = 16


@register(
    aten.max_pool2d_with_indices_backward.default,
    aten.max_pool3d_with_indices_backward.default,
)
def max_pool_backward(
    lowering: Lowering,
    grad: TensorValue,
    x: TensorValue,
    kernel: object,
    stride: object,
    padding: object,
    dilation: object,
    ceil_mode: bool,
    indices: TensorValue,
) -> TensorValue:
    """Return the gradient of the elements that were the largest of a window."""
    n = pooled_dims(lowering)
    size, count = x.shape[-n:], grad.shape[-n:]
    windows = sliding_windows(size, count, kernel, stride, padding, dilation, ceil_mode)
    return _chosen(lowering, grad, indices, windows)


@register(aten.adaptive_max_pool2d_backward.default, aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool_backward(
    lowering: Lowering, grad: TensorValue, x: TensorValue, indices: TensorValue
) -> TensorValue:
    """Return the gradient of the elements that were the largest of a share."""
    windows = [] if is_empty(grad.shape, x.shape) else adaptive(lowering, x.shape, grad.shape)
    return _chosen(lowering, grad, indices, windows)


def _chosen(
    lowering: Lowering,
    grad: TensorValue,
    indices: TensorValue,
    windows: Sequence[Sliding | Spread],
) -> TensorValue:
    shape = lowering.meta().shape
    if is_empty(grad.shape, shape):
        return zeros(lowering)
    n = len(windows)
    plane = shape[-n:]
    covering = [each.covering(around=True) for each in windows]  # the indices tell
    if not is_small(covering, GATHERED) or _is_sparse(lowering, windows):
        return _scattered(lowering, grad, indices, n)

    def share(value: Node, index: Index, place: Index) -> Node:
        own = ops.index_value(flatten(index[-n:], plane), torch.int64)
        here = ops.binary("eq", indices.at((*index[:-n], *place)), own)
        return ops.where(here, value, ops.const(0, value.dtype))

    return _gathered(lowering, grad, covering, share)


def _is_sparse(lowering: Lowering, windows: Sequence[Sliding | Spread]) -> bool:
    """Whether a loop in C++ over the elements would be slower than one over the windows.

    Where windows are some elements apart, neighbors read the same ones, and C++ compilers make a
    vector of these element by element. Measured: 30 ms against 7 ms (3 x 3 with a stride of 2).
    """
    if lowering.can(lowering.meta().device).many_programs:
        return False
    return any(isinstance(each, Spread) or each.stride != 1 for each in windows)


def _scattered(lowering: Lowering, grad: TensorValue, indices: TensorValue, n: int) -> TensorValue:
    """Return the gradient, each window's added where its index points."""
    meta = lowering.meta()
    plane = meta.shape[-n:]
    dtype = combining_dtype(lowering, "add")
    target = fill(lowering, replace(meta, dtype=dtype), lambda _: ops.const(0, dtype))

    def place(index: Index) -> Index:
        chosen = ops.checked_index(indices.at(index), product(plane), wrap=False)
        return (*index[:-n], *unflatten(chosen, plane))

    update(lowering, target, grad.shape, place, lambda i: convert(grad.at(i), dtype), "add")
    return finished(lowering, target)


@register(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def avg_pool_backward(
    lowering: Lowering,
    grad: TensorValue,
    x: TensorValue,
    kernel: object,
    stride: object,
    padding: object,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> TensorValue:
    """Return the gradient of averages: a share of each window's."""
    n = pooled_dims(lowering)
    size, count = x.shape[-n:], grad.shape[-n:]
    windows = sliding_windows(size, count, kernel, stride, padding, 1, ceil_mode)
    return _shared(lowering, grad, windows, dividing(windows, count_include_pad, divisor_override))


@register(
    aten._adaptive_avg_pool2d_backward.default,
    aten._adaptive_avg_pool3d_backward.default,
)
def adaptive_avg_pool_backward(
    lowering: Lowering, grad: TensorValue, x: TensorValue
) -> TensorValue:
    """Return the gradient of averages of shares."""
    windows = [] if is_empty(grad.shape, x.shape) else adaptive(lowering, x.shape, grad.shape)
    covering = [each.covering() for each in windows]
    if goes_by_stages(lowering, covering) and grad.dtype.is_floating_point:

        def share(value: Node, dim: int, place: Expr) -> Node:
            return sharing([windows[dim]])(value, (place,))

        return sum_by_stages(lowering, grad, covering, range(len(windows))[::-1], share)
    return _shared(lowering, grad, windows, sharing(windows))


def _shared(
    lowering: Lowering, grad: TensorValue, windows: Sequence[Sliding | Spread], divide: Divide
) -> TensorValue:
    if is_empty(grad.shape, lowering.meta().shape):
        return zeros(lowering)
    if not grad.dtype.is_floating_point:
        raise NotLowered("the gradient of an average of integers")
    covering = [each.covering() for each in windows]
    anywhere = tuple(Expr.of(axis) for axis in new_axes(grad.shape[-len(windows) :]))
    one = divide(ops.const(1, ops.compute_dtype(grad.dtype)), anywhere)
    if not free_axes((one,))[one]:  # windows are alike: one division of the sum does for all
        return _gathered(lowering, grad, covering, finish=lambda total: divide(total, anywhere))
    return _gathered(lowering, grad, covering, lambda value, _, place: divide(value, place))


def _gathered(
    lowering: Lowering,
    grad: TensorValue,
    taps: Sequence[Taps],
    share: Callable[[Node, Index, Index], Node] = lambda value, index, place: value,
    finish: Callable[[Node], Node] = lambda total: total,
) -> TensorValue:
    """Emit the sum of the gradients that belong to an element.

    Args:
        lowering: The state.
        grad: The gradients.
        taps: Where they are, in each of the last dimensions.
        share: A gradient, the element's index, and the gradient's place in the last dimensions,
            to what is added.
        finish: The sum to the result.
    """
    n = len(taps)
    loop, within = window_loop(lowering.meta().shape, taps)
    outer, inner = loop.kept_index[:-n], loop.kept_index[-n:]

    def part(t: Index) -> tuple[Node | None, Node]:
        return at(taps, inner, t, lambda p: share(grad.compute((*outer, *p)), loop.kept_index, p))

    total = add_up(loop, taps, within, part)
    return emit_rows(lowering, loop, [(finish(total), False)])[0]


# -- padding with the elements at the border ------------------------------------------------------


@register(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def replication_pad_backward(
    lowering: Lowering, grad: TensorValue, x: TensorValue, padding: Sequence[object]
) -> TensorValue:
    """Return the gradient of padding: an element at a border has those of its copies as well."""
    shape = lowering.meta().shape
    if is_empty(grad.shape, shape):
        return zeros(lowering)
    n = pooled_dims(lowering)
    widths = [Expr.of(p).constant for p in padding]  # type: ignore[arg-type]
    sides = [(widths[2 * d], widths[2 * d + 1]) for d in reversed(range(n))]
    copies = []
    for size, (before, after) in zip(shape[-n:], sides, strict=True):
        if before is None or after is None:
            raise NotLowered("padding of a symbolic width")
        cut = min(before, after)
        if cut < 0 and (size.constant is None or cut <= -size.constant):
            raise NotLowered("padding that may cut off every element")
        copies.append(Copies(size, before, after))
    return _gathered(lowering, grad, copies)


@dataclass(frozen=True)
class Copies:
    """Where the elements of a dimension are in a padded one, those at its ends several times.

    Attributes:
        size: Of the dimension.
        before: Copies of the first element; negative where elements are cut off instead.
        after: Copies of the last element, likewise.
        step: From a copy to the next.
    """

    size: Expr
    before: int
    after: int
    step: int = 1

    @property
    def length(self) -> Expr:
        """Copies at either end, and the element itself."""
        return Expr.of(1 + max(self.before, 0) + max(self.after, 0))

    def start(self, i: Expr) -> Expr:
        """Return the first copy, were there copies before each element."""
        return i + min(self.before, 0)

    def reached(self, i: Expr, t: Expr) -> Node | None:
        """Return whether the element is not cut off in front."""
        return None if self.before >= 0 else compare("ge", i, Expr.of(-self.before))

    def inside(self, i: Expr, t: Expr) -> Node | None:
        """Return whether an element has that copy."""
        own = max(self.before, 0)
        first = compare("lt", i, Expr.of(1))
        last = compare("ge", i, self.size - 1)
        kept = compare("lt", i, self.size + min(self.after, 0))
        if t.constant is None:
            here = compare("eq", t, Expr.of(own))
            for condition, name in ((first, "lt"), (last, "gt")):
                copied = ops.binary("logical_and", condition, compare(name, t, Expr.of(own)))
                here = ops.binary("logical_or", here, copied)
        elif t.constant == own:
            here = None
        else:
            here = first if t.constant < own else last
        return ops.logical_and(here, self.reached(i, t), kept if self.after < 0 else None)


__all__ = ["Copies", "avg_pool_backward", "max_pool_backward", "replication_pad_backward"]
