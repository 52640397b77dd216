"""Values as a teacher writes them: one node of a value graph as C++ with ``<cmath>``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch

from fusec.codegen.common.expressions import Grammar, Sign, Spelled, from_left, joined, meaning
from fusec.ir.node import Number
from fusec.ir.scalars import RANDOM_BITS, RANDOM_WORD

# How strongly C++ binds, weakest first.
CHOICE, OR, AND, BIT_OR, BIT_XOR, BIT_AND, EQUAL, COMPARE, SUM, PRODUCT, UNARY, ATOM = range(12)
# Beyond what the language asks for: readers know the precedence of sums and products.
_GRAMMAR: Grammar = (
    dict.fromkeys("+-", from_left(SUM))
    | dict.fromkeys("*/", from_left(PRODUCT))
    | dict.fromkeys(("<", "<=", ">", ">="), Sign(COMPARE, SUM, SUM))
    | dict.fromkeys(("==", "!="), Sign(EQUAL, SUM, SUM))
    | {"&": Sign(BIT_AND, UNARY, UNARY), "^": Sign(BIT_XOR, UNARY, UNARY)}
    | {"|": Sign(BIT_OR, UNARY, UNARY)}
    | {"&&": Sign(AND, EQUAL, EQUAL), "||": Sign(OR, EQUAL, EQUAL)}
)
# Signs that say more in C++ than those of the table.
_SIGNS = {"logical_and": "&&", "logical_or": "||", "logical_xor": "!="}

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
class Text(Spelled):
    """C++ text of a value.

    Attributes:
        text: The text.
        strength: How strongly it binds.
        reads: Whether it reads memory, which a store may change.
    """

    strength: int = ATOM
    reads: bool = False


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
        name: Of ``ir.scalars.SCALARS``.
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
    scalar = meaning(name, kind)
    if scalar is None:
        raise UnsupportedNode(f"{name} of {kind} has no plain C++")
    name = scalar.name
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
    sign = _SIGNS.get(name, scalar.infix)
    if sign:
        made = joined(_GRAMMAR, sign, *args)
        return _narrow(Text(made.text, made.strength, reads), dtype)
    real = kind.is_floating_point
    if real and name in _IN_DOUBLE:
        use(_IN_DOUBLE[name])
        wide = [conversion(kind, torch.float64, args[0], use)]
        return conversion(torch.float64, dtype, _call(_IN_DOUBLE[name], wide, reads), use)
    helper = (_REAL if real else _INTEGER).get(name)
    if helper is None and real and scalar.c_name:
        return _call(f"std::{scalar.c_name}", args, reads)
    if helper is None:
        raise UnsupportedNode(f"{name} of {kind} has no plain C++")
    use(helper)
    # a template takes its type from the arguments, and a constant's would be int
    return _call(f"{helper}<{TYPES[kind]}>" if not real else helper, args, reads)


def _call(function: str, args: Sequence[Text], reads: bool) -> Text:
    return Text(f"{function}({', '.join(arg.text for arg in args)})", ATOM, reads)


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


__all__ = ["Text", "UnsupportedNode", "conversion", "literal", "operation"]
