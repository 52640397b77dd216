"""Values as a teacher writes them: one node of a value graph as C++ with ``<cmath>``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch

from fusec.ir.node import Number
from fusec.ir.ops import RANDOM_BITS, RANDOM_WORD

# How strongly an expression binds, as C++ has it; the first binds most.
ATOM, UNARY, PRODUCT, SUM, COMPARE, EQUAL, BIT_AND, BIT_XOR, BIT_OR, AND, OR, CHOICE = range(12)

HALVES = {torch.float16: "half", torch.bfloat16: "bfloat16"}
TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "uint16_t",
    torch.bfloat16: "uint16_t",
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

Use = Callable[[str], None]


class UnsupportedNode(TypeError):
    """A node that has no plain C++."""


@dataclass(frozen=True)
class Text:
    """C++ text of a value.

    Attributes:
        text: The text.
        level: How strongly it binds.
        reads: Whether it reads memory, which a store may change.
    """

    text: str
    level: int = ATOM
    reads: bool = False

    def within(self, level: int) -> str:
        """Return the text for a place that takes what binds as strongly as ``level``."""
        return self.text if self.level <= level else f"({self.text})"


_INFIX = {
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "truediv": ("/", PRODUCT),
    "lt": ("<", COMPARE),
    "le": ("<=", COMPARE),
    "gt": (">", COMPARE),
    "ge": (">=", COMPARE),
    "eq": ("==", EQUAL),
    "ne": ("!=", EQUAL),
    "bitwise_and": ("&", BIT_AND),
    "bitwise_xor": ("^", BIT_XOR),
    "bitwise_or": ("|", BIT_OR),
    "logical_and": ("&&", AND),
    "logical_or": ("||", OR),
    "logical_xor": ("!=", EQUAL),
}
# What arithmetic on bool means in torch.
_BOOL = {
    "add": "logical_or",
    "mul": "logical_and",
    "maximum": "logical_or",
    "minimum": "logical_and",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor",
    "sub": "logical_xor",
    "bitwise_not": "logical_not",
}
# Functions of the standard library, for float and double.
_STANDARD = {
    **{
        name: f"std::{name}"
        for name in "exp exp2 expm1 log log2 log10 log1p sqrt tanh erf erfc sin cos tan sinh cosh "
        "asin acos atan asinh acosh atanh lgamma floor ceil trunc atan2 copysign hypot nextafter "
        "isnan isinf signbit pow fmod".split()
    },
    "abs": "std::fabs",
    "round": "std::nearbyint",  # of two as near, the even one
}
# Helpers, for real numbers and for integers.
_REAL = {
    "maximum": "larger",
    "minimum": "smaller",
    "fmax": "larger_number",
    "fmin": "smaller_number",
    "sigmoid": "sigmoid",
    "sign": "sign",
    "remainder": "modulo_real",
    "floordiv": "divide_real_down",
}
_INTEGER = {
    "maximum": "larger",
    "minimum": "smaller",
    "abs": "absolute",
    "sign": "sign",
    "floordiv": "divide_down",
    "truncdiv": "divide_to_zero",
    "remainder": "modulo",
    "fmod": "rest",
    "pow": "power",
    "lshift": "shift_left",
    "rshift": "shift_right",
}
_IN_DOUBLE = {"digamma": "digamma", "erfinv": "inverse_erf"}


def operation(
    name: str, kinds: Sequence[torch.dtype], dtype: torch.dtype, args: Sequence[Text], use: Use
) -> Text:
    """Return scalar maths.

    Args:
        name: Of ``ir.ops.SCALAR_OPS``.
        kinds: The arguments' types.
        dtype: The result's.
        args: The arguments' texts.
        use: Called with the name of every helper that the text calls.

    Raises:
        UnsupportedNode: It has no plain C++.
    """
    reads = any(arg.reads for arg in args)
    if name == "where":
        condition, yes, no = args
        text = f"{condition.within(OR)} ? {yes.within(OR)} : {no.within(CHOICE)}"
        return Text(text, CHOICE, reads)
    kind = kinds[0]
    if kind in HALVES:  # lowering converts, so this is rare
        wide = [conversion(k, torch.float32, a, use) for k, a in zip(kinds, args, strict=True)]
        result = operation(
            name,
            [torch.float32] * len(wide),
            torch.bool if dtype == torch.bool else torch.float32,
            wide,
            use,
        )
        return result if dtype == torch.bool else conversion(torch.float32, dtype, result, use)
    if kind == torch.bool:
        name = _BOOL.get(name, name)
    if name == "logical_not":
        return Text(f"!{args[0].within(UNARY)}", UNARY, reads)
    if name in (RANDOM_BITS, RANDOM_WORD):
        use(name)
        return _call(name, args, reads)
    if name == "neg":
        return _narrow(Text(f"-{args[0].within(ATOM)}", UNARY, reads), dtype)
    if name == "bitwise_not":
        return _narrow(Text(f"~{args[0].within(ATOM)}", UNARY, reads), dtype)
    if name == "rsqrt":
        return Text(f"{literal(1, kind)} / std::sqrt({args[0].text})", PRODUCT, reads)
    if name in _INFIX:
        return _narrow(_infix(name, args, reads), dtype)
    real = kind.is_floating_point
    if real and name in _STANDARD:
        return _call(_STANDARD[name], args, reads)
    if real and name in _IN_DOUBLE:
        use(_IN_DOUBLE[name])
        wide = [conversion(kind, torch.float64, args[0], use)]
        return conversion(torch.float64, dtype, _call(_IN_DOUBLE[name], wide, reads), use)
    helper = (_REAL if real else _INTEGER).get(name)
    if helper is None:
        raise UnsupportedNode(f"{name} of {kind} has no plain C++")
    use(helper)
    # a template takes its type from the arguments, and a constant's would be int
    return _call(f"{helper}<{TYPES[kind]}>" if not real else helper, args, reads)


def _call(function: str, args: Sequence[Text], reads: bool) -> Text:
    return Text(f"{function}({', '.join(arg.text for arg in args)})", ATOM, reads)


def _infix(name: str, args: Sequence[Text], reads: bool) -> Text:
    sign, level = _INFIX[name]
    left, right = args
    if level in (PRODUCT, SUM):  # a + (b + c) is another sum than a + b + c
        before, after = left.within(level), right.within(level - 1)
    elif level in (COMPARE, EQUAL):
        before, after = left.within(SUM), right.within(SUM)
    elif level in (AND, OR):
        before, after = left.within(EQUAL), right.within(EQUAL)
    else:
        before, after = left.within(UNARY), right.within(UNARY)
    return Text(f"{before} {sign} {after}", level, reads)


def _narrow(value: Text, dtype: torch.dtype) -> Text:
    """Return a result that C++ computes in int, in its own type: it wraps around."""
    if dtype.is_floating_point or dtype == torch.bool or dtype.itemsize >= 4:
        return value
    return Text(f"({TYPES[dtype]})({value.text})", UNARY, value.reads)


def conversion(source: torch.dtype, target: torch.dtype, value: Text, use: Use) -> Text:
    """Return a value in another type, as torch converts it."""
    if source == target:
        return value
    if source in HALVES:
        use(f"from_{HALVES[source]}")
        single = Text(f"from_{HALVES[source]}({value.text})", ATOM, value.reads)
        return conversion(torch.float32, target, single, use)
    if target in HALVES:
        single = conversion(source, torch.float32, value, use)
        use(f"to_{HALVES[target]}")
        return Text(f"to_{HALVES[target]}({single.text})", ATOM, value.reads)
    if target == torch.bool:
        return Text(f"{value.within(SUM)} != 0", EQUAL, value.reads)
    if source.is_floating_point and not target.is_floating_point:
        # where it does not fit, what processors make of it, and what is left of that
        through = torch.int64
        if target.itemsize < 4 and (target.is_signed or source == torch.float32):
            through = torch.int32
        elif target == torch.int32:
            through = target
        use("to_integer")
        whole = Text(f"to_integer<{TYPES[through]}>({value.text})", ATOM, value.reads)
        return conversion(through, target, whole, use)
    return Text(f"({TYPES[target]}){value.within(ATOM)}", UNARY, value.reads)


def literal(value: Number, dtype: torch.dtype) -> str:
    """Return a number as a constant that is exactly what torch would make of it."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype in HALVES:
        return f"0x{int(torch.tensor(value, dtype=dtype).view(torch.uint16).item()):04x}"
    if not dtype.is_floating_point:
        number = int(value)
        if number == -(2**63):
            return "INT64_MIN"
        return f"{number}u" if dtype == torch.uint64 and number > 2**63 - 1 else str(number)
    real = float(value)
    if dtype == torch.float32:
        with numpy.errstate(over="ignore"):
            real = float(numpy.float32(real))
    if math.isnan(real):
        return "NAN"
    if math.isinf(real):
        return "INFINITY" if real > 0 else "-INFINITY"
    text = str(numpy.float32(real)) if dtype == torch.float32 else repr(real)
    text = text if any(mark in text for mark in ".e") else f"{text}.0"
    return f"{text}f" if dtype == torch.float32 else text


def lowest(dtype: torch.dtype) -> str:
    """Return the number that no other is below."""
    if dtype == torch.bool:
        return "false"
    return "-INFINITY" if dtype.is_floating_point else literal(torch.iinfo(dtype).min, dtype)


def highest(dtype: torch.dtype) -> str:
    """Return the number that no other is above."""
    if dtype == torch.bool:
        return "true"
    return "INFINITY" if dtype.is_floating_point else literal(torch.iinfo(dtype).max, dtype)


__all__ = ["Text", "UnsupportedNode", "conversion", "highest", "literal", "lowest", "operation"]
