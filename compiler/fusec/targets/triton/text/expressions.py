"""How one operation of the IR is written in Triton.

An operation is a sign of the table ``ir/scalars.py``, a helper with its name, or CUDA's function;
what Triton means otherwise than torch has a rule here.  ``Needs`` says which helpers a text relies
on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch

from fusec.codegen.common.expressions import Grammar, Sign, Spelled, from_left, joined, meaning
from fusec.ir.node import Number
from fusec.ir.scalars import RANDOM_BITS, RANDOM_WORD
from fusec.targets.triton.text.helpers import HELPERS, IN_GLUON, USES

# Python's binding strengths, weakest first
COMPARE, OR, XOR, AND, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(9)

TRITON_TYPES = {
    torch.float64: "tl.float64",
    torch.float32: "tl.float32",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.uint16: "tl.uint16",
    torch.uint32: "tl.uint32",
    torch.uint64: "tl.uint64",
    torch.bool: "tl.int1",
    torch.float8_e4m3fn: "tl.float8e4nv",
    torch.float8_e5m2: "tl.float8e5",
}


_GRAMMAR: Grammar = (
    dict.fromkeys(("+", "-"), from_left(SUM))
    | dict.fromkeys(("*", "/", "//", "%"), from_left(PRODUCT))
    | dict.fromkeys(("<<", ">>"), from_left(SHIFT))
    | {"&": from_left(AND), "^": from_left(XOR), "|": from_left(OR)}
    # comparisons do not chain
    | dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), Sign(COMPARE, COMPARE + 1, COMPARE + 1))
)


@dataclass(frozen=True)
class Text(Spelled):
    """Source text of a value.

    Attributes:
        text: The text.
        strength: How tightly its outermost operator binds.
        literal: Whether it is a plain number, which takes the type of what it meets.
    """

    strength: int = ATOM
    literal: bool = False

    @property
    def source(self) -> str:
        """The text."""
        return self.text


@dataclass
class Needs:
    """What a file's text relies on.

    Attributes:
        helpers: Names of the helper functions that it calls.
        reaching: Whether it has positions that reach further than tensors do (``times_reach``).
    """

    helpers: set[str] = field(default_factory=set)
    reaching: bool = False

    def helper(self, name: str) -> str:
        """Note that the file needs a helper function; return its name."""
        self.helpers.add(name)
        return name

    def texts(self, kernels: str, gluon: bool = False) -> list[str]:
        """Return the helper functions that the kernels' text calls, in their order."""
        called = {n for n in self.helpers if re.search(rf"\b{n}\b(?!_)", kernels)}
        called |= {used for n in called for used in USES.get(n, ())}
        found = {name: text for name, text in HELPERS.items() if name in called}
        if gluon:
            found = {n: t.replace("@triton.jit", "@gluon.jit") for n, t in found.items()}
            found |= {name: text for name, text in IN_GLUON.items() if name in called}
        return list(found.values())


def triton_type(dtype: torch.dtype) -> str:
    """Return ``tl.float32`` for ``torch.float32``."""
    return TRITON_TYPES[dtype]


_LARGEST = float(np.finfo(np.float32).max)


def number(value: Number, dtype: torch.dtype) -> Text:
    """Return a constant; a plain literal where Triton gives that the right value and type."""
    if dtype == torch.bool:
        return Text(repr(bool(value)), ATOM, literal=True)
    if not dtype.is_floating_point:
        value = int(value)
        return Text(repr(value), ATOM if value >= 0 else UNARY, literal=True)
    value = float(value)
    if math.isnan(value):
        return Text('float("nan")', literal=True)
    if math.isinf(value):
        return Text('float("inf")' if value > 0 else '-float("inf")', UNARY, literal=True)
    if value == 0 and math.copysign(1, value) < 0:
        # Triton makes every zero literal a positive one
        bits = 8 * dtype.itemsize
        integer = f"tl.full([], -(2**{bits - 1}), tl.int{bits})"
        return Text(f"{integer}.to({triton_type(dtype)}, bitcast=True)")
    if dtype == torch.float64:
        return Text(f"tl.full([], {value!r}, tl.float64)") if _rounds(value) else _plain(value)
    if value != 0 and abs(value) < 2.0**-126:
        return _full(repr(value), dtype)
    short = float(str(np.float32(value)))
    # beyond the largest float32, as its few digits are, Triton takes a literal for a float64
    return _plain(short if abs(short) <= _LARGEST else float(np.float32(value)))


def _rounds(value: float) -> bool:
    """Whether a float64 needs more than float32, which a literal in a call would become."""
    return float(np.float32(value)) != value


def _plain(value: float) -> Text:
    return Text(repr(value), ATOM if value >= 0 else UNARY, literal=True)


def typed(text: Text, dtype: torch.dtype) -> Text:
    """Return ``text`` with a type of its own, for a call that would give a literal another."""
    if not text.literal or dtype in (torch.float32, torch.bool, torch.int64):
        return text
    return _full(text.source, dtype)


def _full(literal: str, dtype: torch.dtype) -> Text:
    if dtype == torch.bfloat16:  # Triton's interpreter has no constants of this type
        return Text(f"tl.full([], {literal}, tl.float32).to(tl.bfloat16)")
    return Text(f"tl.full([], {literal}, {triton_type(dtype)})")


@lru_cache(maxsize=1)
def float8_saturates() -> bool:
    """Whether this torch makes the largest float8 of what is too large, as Triton does, not NaN."""
    return not bool(torch.tensor([1e9]).to(torch.float8_e4m3fn).float().isnan().any())


def convert(
    value: Text, source: torch.dtype, target: torch.dtype, needs: Needs, bitcast: bool = False
) -> Text:
    """Return a conversion as torch does it."""
    if value.literal:
        value = _full(value.source, source)
    operand = value.within(ATOM)
    if bitcast:
        return Text(f"{operand}.to({triton_type(target)}, bitcast=True)")
    if target == torch.bool:
        return Text(f"{value.within(OR)} != 0", COMPARE)
    if torch.float8_e4m3fn in (source, target) and torch.float32 not in (source, target):
        return convert(Text(f"{operand}.to(tl.float32)"), torch.float32, target, needs)
    if target == torch.float8_e4m3fn and not float8_saturates():
        return call(needs.helper("to_float8"), value)
    if source.is_floating_point and target == torch.uint8:
        operand = f"{operand}.to(tl.int64)"  # torch goes through int64: -1.0 becomes 255
    elif source.is_floating_point and target in (torch.int8, torch.int16):
        operand = f"{operand}.to(tl.int32)"
    return Text(f"{operand}.to({triton_type(target)})")


# -- operations ---------------------------------------------------------------------------

# Of the language, and as exact as the vendors' functions, which are what is called otherwise: as in
# torch's own CUDA and ROCm kernels, so that rounding agrees too.
_TL = {"abs": "tl.abs", "floor": "tl.floor", "ceil": "tl.ceil", "rsqrt": "tl.rsqrt"} | {
    "fmax": "tl.maximum",
    "fmin": "tl.minimum",
    "erfinv": "libdevice.erfinv",  # which C has not
}

# Instructions of the GPU that err by a few units in float32's last place.
_RELAXED = {
    "truediv": "/",
    "exp": "tl.exp",
    "exp2": "tl.exp2",
    "sigmoid": "tl.sigmoid",
    "sqrt": "tl.sqrt",
}


def infix(sign: str, left: Text, right: Text) -> Text:
    """Return ``left sign right`` with the parentheses that it needs."""
    made = joined(_GRAMMAR, sign, left, right)
    return Text(made.text, made.strength)


def call(function: str, *args: Text) -> Text:
    """Return a call."""
    return Text(f"{function}({', '.join(a.source for a in args)})")


def operation(
    name: str,
    dtypes: Sequence[torch.dtype],
    args: Sequence[Text],
    needs: Needs,
    relaxed: bool,
) -> Text:
    """Return the text of an operation.

    Args:
        name: A name of ``scalars.SCALARS``.
        dtypes: The arguments' types; all equal, but for the condition of ``where``.
        args: The arguments' texts.
        needs: Takes what the text relies on.
        relaxed: Whether float32's last bits do not matter; see ``relaxed``.
    """
    dtype = dtypes[-1]
    if name == "where":
        condition, then, other = args
        if then.literal and other.literal:
            then = typed(Text(then.source, literal=True), dtype)
            if then.literal:
                then = Text(f"tl.full([], {then.source}, {triton_type(dtype)})")
        return call("tl.where", condition, then, other)
    if all(a.literal for a in args):
        # two bare numbers would be computed by Python, in its own types
        first = Text(f"tl.full([], {args[0].source}, {triton_type(dtype)})")
        args = [first, *args[1:]]
    scalar = meaning(name, dtype)
    if scalar is None:
        raise NotImplementedError(f"Triton has no text for {name}")
    name = scalar.name
    if dtype == torch.bool and name in ("lt", "le", "gt", "ge"):
        args = [Text(f"{a.within(ATOM)}.to(tl.int32)") for a in args]
    if relaxed and name in _RELAXED:
        if name == "truediv":
            return infix("/", *args)
        return call(_RELAXED[name], *[_solid(a, dtype) for a in args])
    special = _SPECIAL.get(name)
    if special is not None:
        found = special(dtype, list(args), needs)
        if found is not None:
            return found
    if scalar.infix:
        return infix(scalar.infix, args[0], args[1])
    if name in HELPERS:
        return call(needs.helper(name), *[_solid(a, dtype) for a in args])
    args = [typed(a, dtype) for a in args]
    if name in _TL:
        return call(_TL[name], *args)
    if scalar.c_name and dtype.is_floating_point:
        return call(f"libdevice.{scalar.c_name}", *args)
    raise NotImplementedError(f"Triton has no text for {name} of {dtype}")


Rule = Callable[[torch.dtype, list[Text], Needs], Text | None]


def _neg(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
    if dtype.is_floating_point:
        # Triton's unary minus is 0 - x, which loses the sign of a zero
        return infix("*", args[0], Text("-1.0", UNARY, literal=True))
    return Text(f"-{args[0].within(UNARY)}", UNARY)


def _truediv(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
    if args[1].literal and "inf" not in args[1].source and "nan" not in args[1].source:
        divisor = float(args[1].source)
        if divisor and abs(math.frexp(divisor)[0]) == 0.5 and 2**-60 < abs(divisor) < 2**60:
            return infix("*", args[0], _plain(1 / divisor))  # exact: a power of two
    if dtype == torch.float64:
        return infix("/", *args)
    return call("tl.div_rn", *args)


def _sqrt(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
    return call("tl.sqrt" if dtype == torch.float64 else "tl.sqrt_rn", *args)


def _extreme(helper: str, plain: str) -> Rule:
    def rule(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
        args = [typed(a, dtype) for a in args]
        return call(needs.helper(helper) if dtype.is_floating_point else plain, *args)

    return rule


def _remainder(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
    args = [typed(a, dtype) for a in args]
    if dtype.is_floating_point:
        return call(needs.helper("float_mod"), *args)
    if not dtype.is_signed:
        return infix("%", *args)
    return call(needs.helper("floor_mod"), *args)


def _fmod(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text | None:
    return None if dtype.is_floating_point else infix("%", *args)


def _floordiv(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
    if not dtype.is_signed:
        return infix("//", *args)
    return call(needs.helper("floor_div"), *[typed(a, dtype) for a in args])


def _shift(helper: str, symbol: str) -> Rule:
    def rule(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
        bits = dtype.itemsize * 8
        if args[1].literal and 0 <= int(args[1].source) < bits:
            return infix(symbol, *args)
        args = [typed(a, dtype) for a in args]
        return call(needs.helper(helper), *args, Text(str(bits)))

    return rule


def _pow(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text | None:
    if dtype.is_floating_point:
        return None
    bits = dtype.itemsize * 8 - dtype.is_signed
    return call(needs.helper("int_pow"), *[_solid(a, dtype) for a in args], Text(str(bits)))


def _solid(text: Text, dtype: torch.dtype) -> Text:
    """Return ``text`` as a value of Triton's even where it is a literal."""
    return Text(f"tl.full([], {text.source}, {triton_type(dtype)})") if text.literal else text


def _sized(helper32: str, helper64: str) -> Rule:
    def rule(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
        name = helper64 if dtype == torch.float64 else helper32
        return call(needs.helper(name), *[_solid(a, dtype) for a in args])

    return rule


def _isinf(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
    return Text(f'tl.abs({args[0].source}) == float("inf")', COMPARE)


def _isnan(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
    return infix("!=", args[0], args[0])


def _bitwise_not(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
    return Text(f"~{args[0].within(UNARY)}", UNARY)


def _random_bits(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
    seed, position, stream, word = args
    return call(
        needs.helper("random_bits"),
        _solid(seed, torch.int64),
        _solid(position, torch.int64),
        stream,
        word,
    )


def _random_word(dtype: torch.dtype, args: list[Text], needs: Needs) -> Text:
    seed, position, stream = args
    numbers = (_solid(seed, torch.int64), _solid(position, torch.int64))
    return call(needs.helper("random_word"), *numbers, stream)


_SPECIAL: dict[str, Rule] = {
    "neg": _neg,
    "truediv": _truediv,
    "sqrt": _sqrt,
    "maximum": _extreme("maximum", "tl.maximum"),
    "minimum": _extreme("minimum", "tl.minimum"),
    "remainder": _remainder,
    "fmod": _fmod,
    "floordiv": _floordiv,
    "truncdiv": lambda dtype, args, needs: infix("//", *args),
    "lshift": _shift("shift_left", "<<"),
    "rshift": _shift("shift_right", ">>"),
    "pow": _pow,
    "sigmoid": _sized("sigmoid", "sigmoid64"),
    "signbit": _sized("signbit32", "signbit64"),
    "isinf": _isinf,
    "isnan": _isnan,
    RANDOM_BITS: _random_bits,
    RANDOM_WORD: _random_word,
    "bitwise_not": _bitwise_not,
    "logical_not": _bitwise_not,
}
