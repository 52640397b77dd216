"""What writing at computed positions takes: a tensor filled by one kernel, updated by another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from fusec.devices import is_gpu
from fusec.ir.body import Body, Store, new_axes
from fusec.ir.index import Expr
from fusec.lower.pointwise.elementwise import convert
from fusec.lower.registry import Lowering
from fusec.lower.values import Element, Index, NotLowered, ResultMeta, Shape, TensorValue

Place = Callable[[Index], Index]

_SMALL = (torch.bool, torch.int8, torch.uint8, torch.int16)
HALVES = (torch.float16, torch.bfloat16)


def combining_dtype(lowering: Lowering, mode: str) -> torch.dtype:
    """Return the type in which the result's elements are combined in memory.

    Halves are combined in float32, so that a long sum does not lose its tail; narrow integers in
    int32, since atomics have no others.

    Raises:
        NotLowered: There is no way to combine them on the device.
    """
    meta = lowering.meta()
    dtype = meta.dtype
    if is_gpu(meta.device) and torch.are_deterministic_algorithms_enabled():
        raise NotLowered("deterministic algorithms were asked for")
    if mode == "put":
        return dtype
    if lowering.can(meta.device).atomics:
        if mode == "mul":
            raise NotLowered("Triton has no atomic product")
        if mode in ("max", "min") and dtype.is_floating_point:
            raise NotLowered("Triton's atomic extremes of floats do not heed NaN")
    if dtype in HALVES:
        return torch.float32
    return torch.int32 if dtype in _SMALL else dtype


def fill(lowering: Lowering, meta: ResultMeta, element: Element) -> TensorValue:
    """Emit a new tensor, whose elements updates will change."""
    buffer = lowering.new_buffer(meta)
    axes = new_axes(meta.shape)
    index = tuple(Expr.of(axis) for axis in axes)
    lowering.emit(Body(axes, (), (Store(buffer.name, index, element(index)),)))
    return lowering.from_buffer(buffer)


def update(
    lowering: Lowering,
    target: TensorValue,
    shape: Shape,
    place: Place,
    value: Element,
    mode: str,
) -> None:
    """Emit an update of a tensor that ``fill`` made.

    Args:
        lowering: The state.
        target: The tensor; for ``some`` it may be one that nobody has filled.
        shape: Of the loops.
        place: Point of the loops to index into the tensor.
        value: Point of the loops to what is written there, in the tensor's dtype.
        mode: Of ``Store``.
    """
    assert target.ref is not None
    axes = new_axes(shape, "u")
    index = tuple(Expr.of(axis) for axis in axes)
    store = Store(target.ref.buffer, place(index), value(index), mode)
    lowering.emit(Body(axes, (), (store,)))


def updated(
    lowering: Lowering, x: TensorValue, shape: Shape, place: Place, value: Element, mode: str
) -> TensorValue:
    """Emit x with elements updated; arguments as for ``update``, ``value`` in any dtype."""
    meta = lowering.meta()
    dtype = combining_dtype(lowering, mode)
    target = fill(lowering, replace(meta, dtype=dtype), lambda i: convert(x.at(i), dtype))
    update(lowering, target, shape, place, lambda i: convert(value(i), dtype), mode)
    return finished(lowering, target)


def finished(lowering: Lowering, target: TensorValue) -> TensorValue:
    """Return what updates made as the operator's result, in its dtype."""
    dtype = lowering.meta().dtype
    if target.dtype == dtype:
        return target
    return lowering.pointwise(lambda index: convert(target.at(index), dtype))
