"""Values as a teacher writes them: one node of a value graph as C++ with ``<cmath>``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusec.codegen.common import c_language
from fusec.codegen.common.c_language import (
    ATOM,
    CHOICE,
    EQUAL,
    GRAMMAR,
    OR,
    PRODUCT,
    SUM,
    UNARY,
    Expression,
    UnsupportedNode,
    Use,
    literal,
)
from fusec.codegen.common.expressions import joined, meaning
from fusec.ir.scalars import RANDOM_BITS, RANDOM_WORD

# Signs that say more in C++ than those of the table.
_SIGNS = {"logical_and": "&&", "logical_or": "||", "logical_xor": "!="}

HALVES = {torch.float16: "half", torch.bfloat16: "bfloat16"}
TYPES = {**c_language.TYPES, **dict.fromkeys(HALVES, "uint16_t")}

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
    name: str,
    kinds: Sequence[torch.dtype],
    dtype: torch.dtype,
    args: Sequence[Expression],
    use: Use,
) -> Expression:
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
        return Expression(text, CHOICE, reads)
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
        return Expression(f"!{args[0].within(UNARY)}", UNARY, reads)
    if name in (RANDOM_BITS, RANDOM_WORD):
        use(name)
        return _call(name, args, reads)
    if name == "neg":
        return _narrow(Expression(f"-{args[0].within(ATOM)}", UNARY, reads), dtype)
    if name == "bitwise_not":
        return _narrow(Expression(f"~{args[0].within(ATOM)}", UNARY, reads), dtype)
    if name == "rsqrt":
        return Expression(f"{literal(1, kind)} / std::sqrt({args[0].text})", PRODUCT, reads)
    sign = _SIGNS.get(name, scalar.infix)
    if sign:
        made = joined(GRAMMAR, sign, *args)
        return _narrow(Expression(made.text, made.strength, reads), dtype)
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


def _call(function: str, args: Sequence[Expression], reads: bool) -> Expression:
    return Expression(f"{function}({', '.join(arg.text for arg in args)})", ATOM, reads)


def _narrow(value: Expression, dtype: torch.dtype) -> Expression:
    """Return a result that C++ computes in int, in its own type: it wraps around."""
    if dtype.is_floating_point or dtype == torch.bool or dtype.itemsize >= 4:
        return value
    return Expression(f"({TYPES[dtype]})({value.text})", UNARY, value.reads)


def conversion(source: torch.dtype, target: torch.dtype, value: Expression, use: Use) -> Expression:
    """Return a value in another type, as torch converts it."""
    if source == target:
        return value
    if source in HALVES:
        use(f"from_{HALVES[source]}")
        single = Expression(f"from_{HALVES[source]}({value.text})", ATOM, value.reads)
        return conversion(torch.float32, target, single, use)
    if target in HALVES:
        single = conversion(source, torch.float32, value, use)
        use(f"to_{HALVES[target]}")
        return Expression(f"to_{HALVES[target]}({single.text})", ATOM, value.reads)
    if target == torch.bool:
        return Expression(f"{value.within(SUM)} != 0", EQUAL, value.reads)
    if source.is_floating_point and not target.is_floating_point:
        # where it does not fit, what processors make of it, and what is left of that
        through = torch.int64
        if target.itemsize < 4 and (target.is_signed or source == torch.float32):
            through = torch.int32
        elif target == torch.int32:
            through = target
        use("to_integer")
        whole = Expression(f"to_integer<{TYPES[through]}>({value.text})", ATOM, value.reads)
        return conversion(through, target, whole, use)
    return Expression(f"({TYPES[target]}){value.within(ATOM)}", UNARY, value.reads)


__all__ = ["TYPES", "conversion", "operation"]
