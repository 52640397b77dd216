"""Products of matrices as steps of a native program: ATen's, called with pointers like kernels.

By Python, a product between kernels costs two microseconds more than it computes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fusec.build.torch_library import torch_flags
from fusec.call.native_part import NativePart, build_with_torch
from fusec.ir.body import Buffer
from fusec.ir.index import Expr
from fusec.ir.program import Extern, TensorRef
from fusec.toolchain.children import Children
from fusec.toolchain.loading import load_library

_aten = torch.ops.aten
# In the order of ``Operator`` in products.cpp; the last two add to something.
_PRODUCTS = (_aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.baddbmm.default)
_ADDING = _PRODUCTS[2:]
_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # in that of ``kTypes``
_DIMS = 3


@dataclass(frozen=True)
class Functions:
    """Where the functions of products.cpp are, and what the last product's problem was."""

    multiply: int
    multiply_and_add: int
    problem: Any


class _Operand(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("type", "offset", "bytes", "dims")),
        ("sizes", ctypes.c_int64 * _DIMS),
        ("strides", ctypes.c_int64 * _DIMS),
    )


class _Record(ctypes.Structure):
    _fields_ = (
        ("which", ctypes.c_int64),
        ("beta", ctypes.c_double),
        ("alpha", ctypes.c_double),
        ("operands", _Operand * 4),
    )


@dataclass(frozen=True)
class NativeProduct:
    """A product that a native program may call as it calls a kernel.

    Attributes:
        function: Its address. It takes the record's, then those of the buffers.
        record: What products.cpp knows of the call; to be kept as long as it may be called.
        buffers: What it reads, then what it writes.
        operations: Multiplications and additions.
    """

    function: int
    record: ctypes.Structure
    buffers: tuple[str, ...]
    operations: int


def failed() -> RuntimeError:
    """Return what this thread's last product, which did not return 0, would have raised."""
    assert part.found is not None
    return RuntimeError(part.found.problem().decode(errors="replace"))


def native_product(step: Extern, buffers: Mapping[str, Buffer]) -> NativeProduct | None:
    """Return a call for a native program; None if it is no plain product, or there is no way yet.

    Args:
        step: The call.
        buffers: The program's.
    """
    found = part.found
    if found is None or step.target not in _PRODUCTS or step.mutates or not step.outputs[0]:
        return None
    adds = step.target in _ADDING
    factors = {"beta": 1, "alpha": 1, **step.kwargs}
    result = buffers[step.outputs[0]]
    whole = TensorRef(result.name, result.shape, result.strides, Expr.of(0), result.dtype)
    refs = [*step.args, whole]
    described = [_operand(ref, buffers) for ref in refs]
    numbers = all(type(factor) in (int, float) for factor in factors.values())
    if len(refs) != 3 + adds or len(factors) != 2 or not numbers or None in described:
        return None
    added, left, right, out = described if adds else (_Operand(), *described)
    if not _fit(left, right, out) or (adds and not _broadcasts(added, out)):
        return None
    record = _Record(
        _PRODUCTS.index(step.target),
        float(factors["beta"]),  # type: ignore[arg-type]
        float(factors["alpha"]),  # type: ignore[arg-type]
        (_Operand * 4)(added, left, right, out),
    )
    operations = 2 * left.sizes[left.dims - 1]
    for size in _sizes(out):
        operations *= size
    function = found.multiply_and_add if adds else found.multiply
    names = tuple(ref.buffer for ref in refs if isinstance(ref, TensorRef))
    return NativeProduct(function, record, names, operations)


def _operand(ref: object, buffers: Mapping[str, Buffer]) -> Any:
    """Return what products.cpp knows of a tensor; None where that is not constant or not plain."""
    if not isinstance(ref, TensorRef) or ref.dtype not in _TYPES or len(ref.shape) > _DIMS:
        return None
    buffer = buffers[ref.buffer]
    each = (*ref.shape, *ref.strides, ref.offset)
    numbers = [expr.constant for expr in each if expr.constant is not None]
    known = len(numbers) == len(each)
    if not known or buffer.dtype != ref.dtype or buffer.device.type != "cpu":
        return None
    dims, size = len(ref.shape), ref.dtype.itemsize
    sizes, strides, offset = numbers[:dims], numbers[dims:-1], numbers[-1]
    last = sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    return _Operand(
        _TYPES.index(ref.dtype),
        offset * size,
        0 if 0 in sizes else (last + 1) * size,
        dims,
        (ctypes.c_int64 * _DIMS)(*sizes),
        (ctypes.c_int64 * _DIMS)(*strides),
    )


def _sizes(operand: Any) -> list[int]:
    return list(operand.sizes[: operand.dims])


def _fit(left: Any, right: Any, out: Any) -> bool:
    """Whether two factors have that product: ATen would give the result other sizes."""
    *rows, inner = _sizes(left)
    *batch, height, columns = _sizes(right) if right.dims >= 2 else (0, -1, 0)
    one_type = left.type == right.type == out.type
    return one_type and inner == height and rows[:-1] == batch and _sizes(out) == [*rows, columns]


def _broadcasts(added: Any, out: Any) -> bool:
    pairs = zip(reversed(_sizes(added)), reversed(_sizes(out)), strict=False)
    fits = added.dims <= out.dims and all(size in (1, wanted) for size, wanted in pairs)
    return fits and bool(added.type == out.type)


def _load(children: Children) -> Functions:
    source = Path(__file__).with_name("products.cpp")
    library = load_library(build_with_torch(source, torch_flags("c10", "torch_cpu"), children))
    problem = ctypes.PYFUNCTYPE(ctypes.c_char_p)(("fusec_multiply_problem", library))
    return Functions(
        _address(library.fusec_multiply), _address(library.fusec_multiply_and_add), problem
    )


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


part = NativePart(_load)

__all__ = ["NativeProduct", "failed", "native_product", "part"]
