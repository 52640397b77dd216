"""Types and constants as C++ spells them."""

from __future__ import annotations

import torch

from fusec.codegen.common import c_language
from fusec.codegen.common.c_language import HALVES, TYPES, half_bits
from fusec.ir.node import Number

C_TYPES = {**TYPES, torch.float16: "fx_f16", torch.bfloat16: "fx_bf16"}
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


def is_integer(dtype: torch.dtype) -> bool:
    """Whether ``dtype`` is an integer type; bool is not."""
    return not dtype.is_floating_point and dtype != torch.bool


def is_signed(dtype: torch.dtype) -> bool:
    """Whether values of ``dtype`` may be negative."""
    return dtype.is_signed


def literal(value: Number, dtype: torch.dtype) -> str:
    """Return ``value`` as a constant of ``dtype`` that is exactly what torch would make of it."""
    if dtype in HALVES:
        return f"{C_TYPES[dtype]}{{{half_bits(value, dtype)}}}"
    return c_language.literal(value, dtype)
