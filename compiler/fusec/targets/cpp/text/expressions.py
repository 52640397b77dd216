"""One node of a value graph as C++: the operators, the helpers, the casts, the constants.

An operation is a sign of the table ``ir/scalars.py``, or a function of ``mathlib`` with its name;
what C++ means otherwise than torch has a rule here.
"""

from __future__ import annotations

import torch

from fusec.codegen.common.c_language import (
    ATOM,
    BIT_OR,
    CHOICE,
    EQUAL,
    GRAMMAR,
    HALVES,
    SUM,
    UNARY,
    Expression,
    UnsupportedNode,
    Use,
)
from fusec.codegen.common.expressions import joined, meaning
from fusec.ir.node import Cast, Const, Node, Op
from fusec.ir.scalars import RANDOM_BITS, RANDOM_WORD, SCALARS
from fusec.targets.cpp.dtypes import C_TYPES, SHORT, is_integer, literal
from fusec.targets.cpp.text.support import function_name, helper_name, own_name

# Signs that say more in C++ than those of the table.
_SIGNS = {"logical_xor": "!="}
_EXTREMES = {"maximum": "nan_max", "minimum": "nan_min"}
# Operators of which C++ evaluates some operands only at need.
LAZY = frozenset({"where"})


def op_expression(node: Op, args: tuple[Expression, ...], use: Use) -> Expression:
    """Return scalar maths on ``args``.

    Args:
        node: The operation; not a check.
        args: Its arguments' texts.
        use: Called with the name of every helper that the text calls.

    Raises:
        UnsupportedNode: It has no C++.
    """
    reads = any(arg.reads for arg in args)
    name = node.name
    if name == "where":
        condition, yes, no = args
        text = f"{condition.within(BIT_OR)} ? {yes.within(BIT_OR)} : {no.within(CHOICE)}"
        return Expression(text, CHOICE, reads)
    kind = node.args[0].dtype
    if kind in HALVES:
        return _half_op(node, args, use)
    scalar = meaning(name, kind)
    sign = ""
    if scalar is not None:
        name = scalar.name
        sign = _SIGNS.get(name, scalar.infix)
    if name == "logical_not":
        return Expression(f"!{args[0].within(UNARY)}", UNARY, reads)
    if name in (RANDOM_BITS, RANDOM_WORD):
        use(RANDOM_BITS)
        use(name)
        return Expression(f"{name}({', '.join(arg.text for arg in args)})", ATOM, reads)
    if name == "neg" and kind.is_floating_point:
        return Expression(f"-{args[0].within(ATOM)}", UNARY, reads)
    if is_integer(kind):
        special = _integer_op(name, kind, args, reads, use)
        if special is not None:
            return special
    if sign:
        return _infix(sign, args, reads)
    if name in _EXTREMES and kind.is_floating_point:
        name = _EXTREMES[name]
        use(f"{name}.{SHORT[kind]}")
        return Expression(f"{name}({args[0].text}, {args[1].text})", ATOM, reads)
    helper = helper_name(name, SHORT[kind])
    if helper is None:
        raise UnsupportedNode(f"{name} of {kind} has no C++")
    use(helper)
    # Templates take their type from the arguments, and a constant's would be int.
    explicit = f"<{C_TYPES[kind]}>" if helper.endswith(".int") else ""
    inner = ", ".join(arg.text for arg in args)
    return Expression(f"fx_{name}{explicit}({inner})", ATOM, reads)


def _infix(sign: str, args: tuple[Expression, ...], reads: bool) -> Expression:
    made = joined(GRAMMAR, sign, *args)
    return Expression(made.text, made.strength, reads)


def _integer_op(
    name: str, kind: torch.dtype, args: tuple[Expression, ...], reads: bool, use: Use
) -> Expression | None:
    """Arithmetic that wraps around, without the undefined behavior that C++ makes of it."""
    target = C_TYPES[kind]
    if name == "neg":
        name, args = "sub", (Expression("0"), *args)
    if name == "bitwise_not":
        return Expression(f"({target})~{args[0].within(ATOM)}", UNARY, reads)
    if name not in ("add", "sub", "mul"):
        return None
    bits = kind.itemsize * 8
    if kind.is_signed and bits >= 32:
        use(own_name(name, bits))
        function = function_name(name, bits)
        return Expression(f"{function}({args[0].text}, {args[1].text})", ATOM, reads)
    # Narrow types are computed as int, which cannot overflow; unsigned ones wrap by definition
    # (but for 16 bits, whose product as int can overflow).
    if name == "mul" and kind == torch.uint16:
        args = (Expression(f"(uint32_t){args[0].within(ATOM)}", UNARY, reads), args[1])
    return Expression(f"({target})({_infix(SCALARS[name].infix, args, reads).text})", UNARY, reads)


def _half_op(node: Op, args: tuple[Expression, ...], use: Use) -> Expression:
    """Maths on a storage type: through float32. Lowering casts, so this is rare."""
    raised = tuple(
        cast_expression(arg.dtype, torch.float32, text, use)
        for arg, text in zip(node.args, args, strict=True)
    )
    wide = Op(node.name, tuple(_Typed(torch.float32) for _ in node.args), torch.float32)
    result = op_expression(wide, raised, use)
    return (
        result
        if node.dtype == torch.bool
        else cast_expression(torch.float32, node.dtype, result, use)
    )


class _Typed(Node):
    """A node of which only the dtype matters."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype, ())


def cast_expression(
    source: torch.dtype, target: torch.dtype, arg: Expression, use: Use
) -> Expression:
    """Return ``arg`` converted as torch converts it."""
    if source == target:
        return arg
    if source == torch.bool and target not in HALVES:
        zero, one = literal(0, target), literal(1, target)
        return Expression(f"{arg.within(BIT_OR)} ? {one} : {zero}", CHOICE, arg.reads)
    if source in HALVES:
        use(f"to_float.{SHORT[source]}")
        single = Expression(f"fx_to_float({arg.text})", ATOM, arg.reads)
        return cast_expression(torch.float32, target, single, use)
    if target in HALVES:
        single = cast_expression(source, torch.float32, arg, use)
        use(f"to_{SHORT[target]}.f32")
        return Expression(f"fx_to_{SHORT[target]}({single.text})", ATOM, arg.reads)
    if target == torch.bool:
        return Expression(f"{arg.within(SUM)} != 0", EQUAL, arg.reads)
    if source.is_floating_point and is_integer(target):
        helper = helper_name(f"to_{SHORT[target]}", SHORT[source])
        if helper is not None:
            use(helper)
            return Expression(f"fx_to_{SHORT[target]}({arg.text})", ATOM, arg.reads)
        # 64 bits hold what the wider unsigned types can be asked for.
        if target != torch.int64:
            wide = cast_expression(source, torch.int64, arg, use)
            return Expression(f"({C_TYPES[target]}){wide.within(ATOM)}", UNARY, arg.reads)
    return Expression(f"({C_TYPES[target]}){arg.within(ATOM)}", UNARY, arg.reads)


def from_memory(text: str, dtype: torch.dtype) -> Expression:
    """Return the value of an array's element."""
    if dtype == torch.bool:
        return Expression(f"{text} != 0", EQUAL, True)
    return Expression(text, ATOM, True)


def cast_node(node: Cast, arg: Expression, use: Use, *, short: bool = False) -> Expression:
    """Return a ``Cast`` node.

    Args:
        node: The conversion.
        arg: What is converted, as text.
        use: Called with the name of every helper that the text calls.
        short: Whether a number becomes a whole one that 32 bits hold, for which there are vectors.
    """
    if short:
        return Expression(f"int64_t((int32_t){arg.within(ATOM)})", ATOM, arg.reads)
    if node.bitcast:
        # A struct that says how it is copied is none that a bit cast takes: its bits are.
        source, target = node.args[0].dtype, node.dtype
        text = f"{arg.within(ATOM)}.bits" if source in HALVES else arg.text
        held = "uint16_t" if target in HALVES else C_TYPES[target]
        if source not in HALVES or held != "uint16_t":
            text = f"__builtin_bit_cast({held}, {text})"
        text = f"{C_TYPES[target]}{{{text}}}" if target in HALVES else text
        return Expression(text, ATOM, arg.reads)
    return cast_expression(node.args[0].dtype, node.dtype, arg, use)


def const_expression(node: Const) -> Expression:
    """Return a constant."""
    text = literal(node.value, node.dtype)
    return Expression(text, UNARY if text.startswith("-") else ATOM)


def supported(dtype: torch.dtype) -> bool:
    """Whether kernels can store ``dtype``."""
    return dtype in C_TYPES
