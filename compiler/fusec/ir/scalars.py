"""The table of scalar operations: all that is known of each, in one entry.

A new one is an entry here (and the line of ``lower`` that uses it).  What reads the table: typing
and folding (``ops``), intervals (``bounds``), the verifier, the interpreter, cost, the analyses of
rounding and padding, and the writers of all targets.

How a target spells an operation follows from the entry: an ``infix`` sign, or a function.  C++
finds the function by the operation's name in its own library (``targets/cpp/mathlib``), for each
type, or else in C's library by the ``c_name``; Triton among its helpers
(``targets/triton/text/helpers.py``), or else in CUDA's library; plain C++ among its helpers, or
else in C's library.  Where a language means something else by a sign or a function than torch, the
target has a rule of its own, in its ``expressions.py``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fusec.ir import intervals
from fusec.ir.intervals import Interval
from fusec.random import random_bits, random_word

FLOATS = frozenset({torch.float32, torch.float64})
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
BOOL = frozenset({torch.bool})
NUMBERS = FLOATS | INTEGERS
ALL = NUMBERS | BOOL
FLOAT32 = frozenset({torch.float32})
INT64 = frozenset({torch.int64})
EVERYWHERE = (-math.inf, math.inf)


@dataclass(frozen=True)
class Scalar:
    """A scalar operation.

    Attributes:
        name: What ``Op`` calls it.
        arity: How many arguments it has.
        takes: The type of its arguments, all of one; a condition, which comes first, aside.
        reference: torch's own: what the interpreter computes.
        gives: The type of its result; None for that of its arguments.
        domain: From where to where a float has a result that is a number; NaN outside.
        cost: What it costs beside an addition: decides what may be computed twice.
        infix: The sign between its arguments, where C++ and Python both have one for it.
        c_name: What C's library, and CUDA's, call it on floats; empty where they have it not.
        on_bool: The operation that it is on bools.
        smooth: Whether a small relative error of its arguments stays a small one.
        scaling: Whether a relative error passes as it is.
        keeps_zero: Whether it makes zero of a zero.
        traps: Whether it fails on some integers: not to be computed where nobody wants it.
        fold: What becomes of two constants, where Python computes the same.
        identity: The second argument that changes nothing, whatever the first is.
        integer_identity: The same, of integers alone.
        commutes: Whether the arguments may change places.
        interval: What is known of the result's bounds.
        word: What values of it are called, in all targets.
        form_of: The operation of which this is a form that a target chooses for itself.
    """

    name: str
    arity: int
    takes: frozenset[torch.dtype]
    reference: Callable[..., torch.Tensor]
    gives: torch.dtype | None = None
    domain: Interval = EVERYWHERE
    cost: int = 1
    infix: str = ""
    c_name: str = ""
    on_bool: str = ""
    smooth: bool = False
    scaling: bool = False
    keeps_zero: bool = False
    traps: bool = False
    fold: Callable[[float, float], float] | None = None
    identity: float | None = None
    integer_identity: float | None = None
    commutes: bool = False
    interval: Callable[..., Interval | None] | None = None
    word: str = ""
    form_of: str = ""


SCALARS: dict[str, Scalar] = {}


def _add(name: str, arity: int, takes: frozenset[torch.dtype], **facts: object) -> None:
    facts.setdefault("reference", getattr(torch, name, None))
    SCALARS[name] = Scalar(name, arity, takes, **facts)  # type: ignore[arg-type]


def _function(name: str, arity: int = 1, cost: int = 10, **facts: object) -> None:
    """Add a function of floats that C's library has under the same name."""
    facts.setdefault("c_name", name)
    _add(name, arity, FLOATS, cost=cost, **facts)


# -- arithmetic ---------------------------------------------------------------------------

_add(
    "add", 2, ALL, infix="+", on_bool="logical_or", smooth=True, fold=operator.add,
    integer_identity=0, commutes=True, interval=intervals.added,
)  # fmt: skip
_add(
    "sub", 2, NUMBERS, infix="-", on_bool="logical_xor", smooth=True, fold=operator.sub,
    identity=0.0, interval=intervals.subtracted, word="difference",
)  # fmt: skip
_add(
    "mul", 2, ALL, infix="*", on_bool="logical_and", smooth=True, scaling=True, fold=operator.mul,
    identity=1, commutes=True, interval=intervals.multiplied, word="product",
)  # fmt: skip
_add(
    "truediv", 2, FLOATS, reference=torch.true_divide, cost=4, infix="/", smooth=True,
    scaling=True, identity=1, interval=intervals.divided, word="quotient",
)  # fmt: skip
_add("neg", 1, NUMBERS, smooth=True, scaling=True, keeps_zero=True, interval=intervals.negated)
_add(
    "abs", 1, NUMBERS, c_name="fabs", smooth=True, scaling=True, keeps_zero=True,
    interval=intervals.absolute,
)  # fmt: skip
_add("sign", 1, NUMBERS, keeps_zero=True)
_add(
    "maximum", 2, ALL, on_bool="logical_or", smooth=True, commutes=True,
    interval=intervals.larger, word="larger",
)  # fmt: skip
_add(
    "minimum", 2, ALL, on_bool="logical_and", smooth=True, commutes=True,
    interval=intervals.smaller, word="smaller",
)  # fmt: skip
_add("remainder", 2, NUMBERS, cost=10, traps=True, interval=intervals.rest)
_add("fmod", 2, NUMBERS, cost=10, traps=True, c_name="fmod")
_add("pow", 2, NUMBERS, cost=10, c_name="pow")
_add(
    "floordiv", 2, INTEGERS, cost=10, traps=True, interval=intervals.floor_divided,
    reference=lambda x, y: torch.div(x, y, rounding_mode="floor"),
)  # fmt: skip
_add(
    "truncdiv", 2, INTEGERS, cost=10, traps=True, interval=intervals.cut_divided,
    reference=lambda x, y: torch.div(x, y, rounding_mode="trunc"),
)  # fmt: skip

# -- functions of floats ------------------------------------------------------------------

_function("exp", smooth=True)
_function("exp2")
_function("expm1", keeps_zero=True)
_function("log", domain=(0, math.inf), smooth=True)
_function("log2", domain=(0, math.inf))
_function("log10", domain=(0, math.inf))
_function("log1p", domain=(-1, math.inf), smooth=True, keeps_zero=True)
_function("sqrt", cost=4, domain=(0, math.inf), smooth=True, keeps_zero=True)
_function("rsqrt", cost=5, c_name="", domain=(0, math.inf), smooth=True)
_function("tanh", smooth=True, keeps_zero=True)
_function("sigmoid", c_name="", smooth=True)
_function("erf", smooth=True, keeps_zero=True)
_function("erfc")
_function("erfinv", c_name="", domain=(-1, 1))
_function("sin", keeps_zero=True)
_function("cos")
_function("tan", keeps_zero=True)
_function("sinh", keeps_zero=True)
_function("cosh")
_function("asin", domain=(-1, 1), keeps_zero=True)
_function("acos", domain=(-1, 1))
_function("atan", keeps_zero=True)
_function("asinh")
_function("acosh", domain=(1, math.inf))
_function("atanh", domain=(-1, 1))
_function("lgamma")
_function("digamma", c_name="")
_function("floor", cost=1, interval=intervals.floored)
_function("ceil", cost=1, interval=intervals.ceiled)
_function("trunc", cost=1, interval=intervals.truncated)
_function("round", cost=1, c_name="nearbyint", interval=intervals.rounded)
_function("atan2", 2)
_function("hypot", 2)
_function("copysign", 2, cost=1)
_function("nextafter", 2, cost=1)
_function("fmax", 2, cost=1)
_function("fmin", 2, cost=1)
for _name in ("isnan", "isinf", "signbit"):
    _function(_name, cost=1, gives=torch.bool)

# -- bits and conditions ------------------------------------------------------------------

_add("bitwise_not", 1, INTEGERS | BOOL, on_bool="logical_not")
_add(
    "bitwise_and", 2, INTEGERS | BOOL, infix="&", on_bool="logical_and", commutes=True,
    interval=intervals.common_bits,
)  # fmt: skip
_add("bitwise_or", 2, INTEGERS | BOOL, infix="|", on_bool="logical_or", commutes=True)
_add("bitwise_xor", 2, INTEGERS | BOOL, infix="^", on_bool="logical_xor", commutes=True)
_add("lshift", 2, INTEGERS, reference=torch.bitwise_left_shift)
_add("rshift", 2, INTEGERS, reference=torch.bitwise_right_shift, interval=intervals.shifted_right)
# Not `&&` and `||`: both sides are computed anyway, and branches do not vectorize.
_add("logical_and", 2, BOOL, gives=torch.bool, infix="&", commutes=True, word="both")
_add("logical_or", 2, BOOL, gives=torch.bool, infix="|", commutes=True, word="either")
_add("logical_xor", 2, BOOL, gives=torch.bool, infix="^", commutes=True)
_add("logical_not", 1, BOOL, gives=torch.bool)
for _name, _sign, _fold in (
    ("eq", "==", operator.eq),
    ("ne", "!=", operator.ne),
    ("lt", "<", operator.lt),
    ("le", "<=", operator.le),
    ("gt", ">", operator.gt),
    ("ge", ">=", operator.ge),
):
    _add(_name, 2, ALL, gives=torch.bool, infix=_sign, fold=_fold)
_add("where", 3, ALL, word="chosen")

# -- random numbers -----------------------------------------------------------------------

RANDOM_BITS = "random_bits"
RANDOM_WORD = "random_word"
_add(
    RANDOM_BITS, 4, INT64, gives=torch.int32, cost=40,
    reference=lambda seed, position, stream, word: random_bits(
        seed, position, stream, int(word.reshape(-1)[0])
    ),
)  # fmt: skip
_add(RANDOM_WORD, 3, INT64, gives=torch.int32, cost=40, reference=random_word)


# -- what targets make of them ------------------------------------------------------------


def _form(name: str, form_of: str, reference: Callable[..., torch.Tensor], **facts: object) -> None:
    """Add a form of an operation that is as good where half precision hides the difference."""
    _add(name, 1, FLOAT32, reference=reference, cost=10, smooth=True, form_of=form_of, **facts)


def _one_plus_erf(x: torch.Tensor) -> torch.Tensor:
    return torch.erfc(-x)


def _gelu_slope(x: torch.Tensor) -> torch.Tensor:
    density = torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return torch.erfc(x * -math.sqrt(0.5)) * 0.5 + x * density


_form("one_plus_erf", "", _one_plus_erf)
_form("one_plus_erf_for_half", "one_plus_erf", _one_plus_erf)
_form("one_plus_erf_for_bfloat16", "one_plus_erf", _one_plus_erf)
_add("gelu_slope", 1, FLOAT32, reference=_gelu_slope, cost=24, smooth=True, word="slope")
_form("one_plus_tanh", "", lambda x: 1 + torch.tanh(x))
_form("exp_for_half", "exp", torch.exp)
_form("sigmoid_for_half", "sigmoid", torch.sigmoid)
# Of x <= 0, or NaN: the weights of a softmax.
_add("exp_nonpositive", 1, FLOATS, reference=torch.exp, cost=10, smooth=True, form_of="exp")
# Of a number between bounds, ties to even; 0 for NaN.
_add(
    "nearest_int", 1, FLOAT32, gives=torch.int32,
    reference=lambda x: torch.round(torch.nan_to_num(x)).to(torch.int32),
)  # fmt: skip


# Those that compare two numbers.
COMPARISONS = frozenset(n for n, s in SCALARS.items() if s.fold and s.gives == torch.bool)


def root_of(name: str) -> str:
    """Return the operation of which another is a form; itself where it is none."""
    scalar = SCALARS.get(name)
    return name if scalar is None else scalar.form_of or name


def word_of(name: str) -> str:
    """Return what values of an operation are called, in all targets."""
    scalar = SCALARS.get(root_of(name))
    return name if scalar is None else scalar.word or scalar.name


def cost_of(name: str) -> int:
    """Return what an operation costs beside an addition; 1 for one that is not in the table."""
    scalar = SCALARS.get(name)
    return 1 if scalar is None else scalar.cost
