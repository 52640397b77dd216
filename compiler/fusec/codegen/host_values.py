"""What a host program calls, and how it writes types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusec.ir.body import Buffer
from fusec.ir.printer import dtype_name

# The same operators by torch's own bindings, which parse their arguments more quickly.
_DIRECT: dict[object, Callable[..., Any]] = {
    torch.ops.aten.mm.default: torch.mm,
    torch.ops.aten.mm.dtype: torch.mm,
    torch.ops.aten.bmm.default: torch.bmm,
    torch.ops.aten.addmm.default: torch.addmm,
    torch.ops.aten.baddbmm.default: torch.baddbmm,
    torch.ops.aten.convolution.default: torch.convolution,
}
# What can write its result into memory that is given.
PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.baddbmm.default,
)


def called_as(target: Callable[..., Any]) -> Callable[..., Any]:
    """Return what the host program calls for an operator."""
    return _DIRECT.get(target, target)


def direct_target(target: Callable[..., Any]) -> Callable[..., Any]:
    """Return the shortest way to call an operator from native code: past Python's part of it."""
    return _DIRECT.get(target, getattr(target, "_op", target))


def returns_list(target: object) -> bool:
    """Whether an operator returns a list, even of a single tensor."""
    schema = getattr(target, "_schema", None)
    kinds = [each.type for each in schema.returns] if schema is not None else []
    return len(kinds) == 1 and isinstance(kinds[0], torch.ListType)


# From this size on, the C library may give freed memory back to the system, so that every
# page of the next tensor is a fault: always from 32 MiB on, and often below, where tensors of
# different sizes come and go (backward of a norm over 16 MiB: 4096 faults in every other call).
LARGE_BYTES = 4 << 20


def buffer_bytes(buffer: Buffer) -> int | None:
    """Return the size of a buffer's memory, gaps included; None if it is symbolic."""
    extent = 1
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        length, step = size.constant, stride.constant
        if length is None or step is None:
            return None
        if length == 0:
            return 0
        extent += (length - 1) * step
    return extent * buffer.dtype.itemsize


# Names that whoever runs a host program provides, beside its kernels, groups and constants.
PROVIDED = frozenset(
    "empty_cpu empty_large empty_cuda empty expect expect_inputs multiply_into threads "
    "failed".split()
)
DTYPES = {
    dtype_name(dtype): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint64,
        torch.uint32,
        torch.uint16,
        torch.uint8,
        torch.bool,
    )
}


__all__ = [
    "DTYPES",
    "LARGE_BYTES",
    "PRODUCTS",
    "PROVIDED",
    "buffer_bytes",
    "called_as",
    "direct_target",
    "returns_list",
]
