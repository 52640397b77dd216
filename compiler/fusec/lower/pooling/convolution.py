"""Convolutions of each channel by itself, the channels innermost: windows like those of pooling.

They read an element for as many multiplications as their window has pixels, which leaves tensor
cores nothing to do: memory is what takes time, as for any other kernel of ours, and what comes next
may be computed on the way.  All other convolutions run in ATen's libraries.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusec.graph.choices import own_windows_pay
from fusec.ir import ops
from fusec.ir.index import Expr
from fusec.ir.node import Load, Node
from fusec.lower.movement.windows import Sliding, Taps, every, inside, position
from fusec.lower.pooling.forward import is_empty, sliding_windows
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import Index, NotLowered, TensorValue, dense_meta

LIBRARY = "a convolution runs best in ATen's library kernels"


@register(aten.convolution.default)
def convolution(
    lowering: Lowering,
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> TensorValue:
    """Return the sums of elements of each channel under a window, times the channel's weights."""
    shape = lowering.meta().shape
    _require_own(lowering, x, weight, transposed, gradient=False)
    windows = _windows(x, weight, shape[2:], stride, padding, dilation)
    filters = _filters(lowering, weight)

    def element(index: Index) -> Node:
        image, channel, *pixel = index
        total: Node | None = None
        for t in every(windows):
            factor = filters.compute((*t, channel))
            value = _read(x, windows, (image, channel), tuple(pixel), t)
            total = _added(total, ops.binary("mul", value, factor))
        assert total is not None
        if bias is not None:
            total = ops.binary("add", total, bias.compute((channel,)))
        return total

    return lowering.pointwise(element)


@register(aten.convolution_backward.default)
def convolution_backward(
    lowering: Lowering,
    gradient: TensorValue,
    x: TensorValue,
    weight: TensorValue,
    bias_sizes: object,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    """Return the image's gradient: an element's is that of all windows over it, times weights."""
    if list(output_mask) != [True, False, False]:
        raise NotLowered(LIBRARY)
    _require_own(lowering, x, weight, transposed, gradient=True)
    windows = _windows(x, weight, gradient.shape[2:], stride, padding, dilation)
    if any(each.step != 1 for each in windows):
        raise NotLowered(LIBRARY)
    covering = [each.covering() for each in windows]
    filters = _filters(lowering, weight)

    def element(index: Index) -> Node:
        image, channel, *pixel = index
        total: Node | None = None
        for t in every(covering):
            place = position(covering, tuple(pixel), t)
            # the element's place in that window
            within = tuple(
                at - each.start(window)
                for at, each, window in zip(pixel, windows, place, strict=True)
            )
            value = _read(gradient, covering, (image, channel), tuple(pixel), t)
            factor = filters.compute((*within, channel))
            condition = inside(covering, tuple(pixel), t)
            if condition is not None and any(at.constant is None for at in within):
                factor = ops.guard_loads(factor, condition)
            total = _added(total, ops.binary("mul", value, factor))
        assert total is not None
        return total

    return lowering.pointwise(element), None, None


def _require_own(
    lowering: Lowering, x: TensorValue, weight: TensorValue, transposed: bool, *, gradient: bool
) -> None:
    """Go on with a convolution that is computed here.

    Raises:
        NotLowered: The libraries compute it.
    """
    meta = lowering.meta()
    area = [size.constant or 0 for size in weight.shape[2:]]
    if (
        transposed
        or x.ndim != 4
        or weight.shape[:2] != (x.shape[1], Expr.of(1))
        or 0 in area
        or meta.strides[1] != Expr.of(1)
        or is_empty(meta.shape, x.shape)
        or not lowering.can(meta.device).many_programs
        or not own_windows_pay(meta.dtype, area, gradient=gradient)
    ):
        raise NotLowered(LIBRARY)


def _windows(
    x: TensorValue,
    weight: TensorValue,
    count: Sequence[Expr],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[Sliding]:
    area = [size.constant for size in weight.shape[2:]]
    given = (area, list(stride), list(padding), list(dilation))
    return sliding_windows(x.shape[2:], tuple(count), *given, False)


def _filters(lowering: Lowering, weight: TensorValue) -> TensorValue:
    """Return the weights as the images are, rows x columns x channels."""
    channels, _, *area = weight.shape
    meta = dense_meta((*area, channels), weight.dtype, weight.device)
    with lowering.making(meta):
        return lowering.pointwise(lambda i: weight.at((i[-1], Expr.of(0), *i[:-1])))


def _read(x: TensorValue, taps: Sequence[Taps], outer: Index, pixel: Index, t: Index) -> Node:
    """Return the element at the ``t``-th position; 0 where there is none."""
    element = x.at((*outer, *position(taps, pixel, t)))
    condition = inside(taps, pixel, t)
    if condition is not None and isinstance(element, Load):
        mask = ops.logical_and(condition, element.mask)
        element = ops.load(element.buffer, element.index, element.dtype, mask, 0)
    elif condition is not None:
        element = ops.masked(condition, element, 0)
    return ops.cast(element, ops.compute_dtype(x.dtype))


def _added(total: Node | None, value: Node) -> Node:
    return value if total is None else ops.binary("add", total, value)


__all__ = ["LIBRARY"]
