"""Types of Triton's interpreter that numpy lacks: half precision as a GPU rounds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def _torch_type(tl: Any, dtype: Any) -> torch.dtype | None:
    return {
        tl.bfloat16: torch.bfloat16,
        tl.float16: torch.float16,
        tl.float32: torch.float32,
        tl.float64: torch.float64,
        tl.float8e5: torch.float8_e5m2,
        tl.float8e4nv: torch.float8_e4m3fn,
    }.get(dtype)


def numpy_types(interpreter: Any, tl: Any) -> Callable[[Any], Any]:
    """Return the interpreter's table of types, without building it anew at every operation."""
    build = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def numpy_type(dtype: Any) -> Any:
        if isinstance(dtype, tl.block_type):
            dtype = dtype.element_ty
        name = dtype.name
        if name not in known:
            known[name] = build(dtype)
        return known[name]

    return numpy_type


_BITS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16), 4: (torch.int32, np.int32)} | {
    8: (torch.int64, np.int64)
}


def convert_float(
    tl: Any, original: Any, data: Any, source: Any, target: Any, rounding: Any
) -> Any:
    """Convert between floating-point types, rounding to nearest even, as bit patterns."""
    from triton._C.libtriton import ir

    wanted, given = _torch_type(tl, target), _torch_type(tl, source)
    if wanted is None or given is None or rounding == ir.ROUNDING_MODE.RTZ:
        return original(data, source, target, rounding)
    bits = np.ascontiguousarray(data).view(_BITS[given.itemsize][1]).copy()
    converted = torch.from_numpy(bits).view(given).to(wanted)
    unsigned = np.dtype(f"uint{wanted.itemsize * 8}")
    return converted.view(_BITS[wanted.itemsize][0]).numpy().view(unsigned).reshape(data.shape)


class _Bfloat16:
    """Numbers that the interpreter keeps as bits, to and from float32.

    Args:
        interpreter: Triton's module.
        tl: Triton's language.
    """

    def __init__(self, interpreter: Any, tl: Any) -> None:
        self.tl, self.handle = tl, interpreter.TensorHandle

    def is_kind_of(self, value: Any) -> bool:
        """Whether a value is of bfloat16."""
        return bool(value.dtype.scalar == self.tl.bfloat16)

    def widen(self, value: Any) -> Any:
        """Return a value's numbers in float32."""
        bits = np.ascontiguousarray(value.data).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).reshape(value.data.shape)

    def narrow(self, data: Any) -> Any:
        """Return numbers as a value of bfloat16, rounded."""
        tl = self.tl
        bits = convert_float(tl, None, data.astype(np.float32), tl.float32, tl.bfloat16, None)
        return self.handle(bits, tl.bfloat16)


def patch_builder(interpreter: Any, tl: Any) -> None:
    """Have the interpreter compute in half precision as a GPU does."""
    builder, numbers = interpreter.InterpreterBuilder, _Bfloat16(interpreter, tl)
    _patch_arithmetic(interpreter, builder, numbers)
    _patch_atomics(builder, numbers)
    _patch_products(builder, numbers)
    handle = numbers.handle

    def erf(self: Any, value: Any) -> Any:
        return handle(torch.erf(torch.from_numpy(np.array(value.data))).numpy(), value.dtype.scalar)

    def all_ones(self: Any, dtype: Any) -> Any:
        bits = interpreter._get_np_dtype(dtype)
        return handle(np.invert(np.zeros(1, dtype=bits)), dtype.scalar)

    spread = builder.create_splat

    def splat(self: Any, wanted: Any, value: Any) -> Any:
        # the outcome of comparing two numbers is called by their type
        if value.data.dtype == bool:
            value = handle(value.data, tl.int1)
        return spread(self, wanted, value)

    builder.create_splat = splat
    builder.get_all_ones_value = all_ones
    builder.create_erf = erf
    builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)
    builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)


def _patch_arithmetic(interpreter: Any, builder: Any, numbers: _Bfloat16) -> None:
    tl, handle = numbers.tl, numbers.handle
    binary, unary, cast = builder.binary_op, builder.unary_op, builder.cast_impl

    def cast_impl(self: Any, value: Any, target: Any) -> Any:
        wanted = target.scalar
        if wanted == tl.bfloat16 and not numbers.is_kind_of(value):
            return numbers.narrow(value.data)
        if numbers.is_kind_of(value) and wanted != tl.bfloat16:
            data = numbers.widen(value).astype(interpreter._get_np_dtype(target))
            return handle(data, wanted)
        return cast(self, value, target)

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        if not numbers.is_kind_of(left):
            return binary(self, left, right, op)
        result = op(numbers.widen(left), numbers.widen(right))
        return handle(result, tl.int1) if result.dtype == bool else numbers.narrow(result)

    def unary_op(self: Any, value: Any, op: Any) -> Any:
        if not numbers.is_kind_of(value):
            return unary(self, value, op)
        return numbers.narrow(op(numbers.widen(value)))

    builder.cast_impl = cast_impl
    builder.binary_op = binary_op
    builder.unary_op = unary_op


def _patch_atomics(builder: Any, numbers: _Bfloat16) -> None:
    tl, handle, atomic = numbers.tl, numbers.handle, builder.create_atomic_rmw

    def atomic_rmw(self: Any, kind: Any, pointer: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if value.dtype.scalar not in (tl.float16, tl.bfloat16):
            return atomic(self, kind, pointer, value, mask, *rest)
        old = np.zeros_like(value.data)
        with np.nditer(pointer.data, flags=["multi_index"]) as places:
            for _ in places:
                at = places.multi_index
                if not mask.data[at]:
                    continue
                one = handle(pointer.data[at].reshape(1), pointer.dtype)
                there = handle(np.ones(1, dtype=bool), tl.int1)
                before = self.create_masked_load(one, there, None, None, None, False)
                more = handle(value.data[at].reshape(1), value.dtype.scalar)
                total = self.binary_op(handle(before.data, value.dtype.scalar), more, np.add)
                self.create_masked_store(one, total, there, None, None)
                old[at] = before.data[0]
        return handle(old, value.dtype.scalar)

    builder.create_atomic_rmw = atomic_rmw


def _patch_products(builder: Any, numbers: _Bfloat16) -> None:
    tl, handle = numbers.tl, numbers.handle
    product, multiply_add = builder.create_dot, builder.create_fma

    def dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        if numbers.is_kind_of(left):
            left, right = (handle(numbers.widen(value), tl.float32) for value in (left, right))
        return product(self, left, right, *rest)

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if numbers.is_kind_of(z):
            a, b, c = (numbers.widen(value).astype(np.float64) for value in (x, y, z))
            return numbers.narrow(a * b + c)
        if z.dtype.scalar not in (tl.float16, tl.float32):
            return multiply_add(self, x, y, z)
        # the product of two float32 is exact in float64
        wide = x.data.astype(np.float64) * y.data + z.data
        return handle(wide.astype(z.data.dtype), z.dtype.scalar)

    builder.create_dot = dot
    builder.create_fma = fma


__all__ = ["convert_float", "numpy_types", "patch_builder"]
