"""Types and constants as C++ spells them."""

from __future__ import annotations

import math

import numpy
import torch

from fusec.ir.node import Number

C_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "fx_f16",
    torch.bfloat16: "fx_bf16",
    torch.bool: "bool",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.uint8: "uint8_t",
    torch.uint16: "uint16_t",
    torch.uint32: "uint32_t",
    torch.uint64: "uint64_t",
}
# How arrays hold them. A compiler's vectors of bool are masks, one bit an element, and loops that
# load or store bytes as bool are not made into vector loops.
ELEMENT_TYPES = {**C_TYPES, torch.bool: "uint8_t"}
# How the helpers of ``mathlib`` call the types.
SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.bool: "bool",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
}
HALVES = frozenset({torch.float16, torch.bfloat16})


def is_integer(dtype: torch.dtype) -> bool:
    """Whether ``dtype`` is an integer type; bool is not."""
    return not dtype.is_floating_point and dtype != torch.bool


def is_signed(dtype: torch.dtype) -> bool:
    """Whether values of ``dtype`` may be negative."""
    return dtype.is_signed


def literal(value: Number, dtype: torch.dtype) -> str:
    """Return ``value`` as a constant of ``dtype`` that is exactly what torch would make of it."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype in HALVES:
        bits = int(torch.tensor(value, dtype=dtype).view(torch.uint16).item())
        return f"{C_TYPES[dtype]}{{0x{bits:04x}}}"
    if dtype.is_floating_point:
        return _real(float(value), dtype)
    number = int(value)
    if number == -(2**63):
        return "INT64_MIN"
    if dtype == torch.uint64 and number > 2**63 - 1:
        return f"{number}u"
    return str(number)


def _real(value: float, dtype: torch.dtype) -> str:
    suffix = "f" if dtype == torch.float32 else ""
    if suffix:
        with numpy.errstate(over="ignore"):
            value = float(numpy.float32(value))
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    # the shortest decimal that reads back as the same number
    text = str(numpy.float32(value)) if suffix else repr(value)
    if not any(mark in text for mark in ".e"):
        text += ".0"
    return text + suffix
