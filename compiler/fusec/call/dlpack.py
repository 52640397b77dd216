"""DLPack's numbers for types and devices, by which native code knows a tensor."""

from __future__ import annotations

import torch

from fusec.devices import CPU, GPU

ANY_CODE = 255  # of a type that DLPack has no name for
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_CPU, _CUDA, _ROCM = 1, 2, 10


def dlpack_type(dtype: torch.dtype) -> tuple[int, int]:
    """Return DLPack's code and number of bits of a dtype; ``ANY_CODE`` where it has none for it."""
    bits = 8 * dtype.itemsize
    named = {torch.bool: _BOOL, torch.bfloat16: _BFLOAT}
    if dtype in named:
        return named[dtype], bits
    if dtype.is_complex:
        return _COMPLEX, bits
    if dtype in (torch.float16, torch.float32, torch.float64):
        return _FLOAT, bits
    if dtype.is_floating_point:
        return ANY_CODE, bits
    return (_INT if dtype.is_signed else _UINT), bits


def dlpack_device(device: torch.device) -> tuple[int, int] | None:
    """Return DLPack's type and number of a device; None for one that kernels do not run on."""
    kinds = {CPU: _CPU, GPU: _ROCM if torch.version.hip else _CUDA}
    kind = kinds.get(device.type)
    return None if kind is None else (kind, device.index or 0)


_NAMED = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(torch.bool, torch.complex64, torch.complex128),
)
# What native code compares a result with; any other type is left to Python.
TYPES = tuple((dtype, *dlpack_type(dtype)) for dtype in _NAMED)

__all__ = ["ANY_CODE", "TYPES", "dlpack_device", "dlpack_type"]
