"""Symbolic sizes: from torch's sympy expressions to index expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true
from torch.utils._sympy.functions import (
    CeilToInt,
    CleanDiv,
    FloorDiv,
    FloorToInt,
    Max,
    Min,
    Mod,
    PythonMod,
    ToFloat,
    TruncToInt,
)

from fusec.ir.index import Expr, Symbol, is_nonnegative, lower_bound, upper_bound
from fusec.lower.values import NotLowered

# The lower bound of an integer about which nothing is known.
ANY_SIGN = -(1 << 63)
# An upper bound from here on says no more than that there is one.
FAR = 1 << 31
# What index expressions have a form for, in part.
_FORMS = (sympy.Add, sympy.Mul, sympy.Pow, FloorDiv, CleanDiv, Mod, PythonMod, Max, Min)


class SizeTable:
    """The symbols of one graph, by torch's names for them."""

    def __init__(self) -> None:
        self.symbols: dict[str, Symbol] = {}
        self.numbers: dict[str, int | torch.SymInt] = {}
        # the lengths of dimensions along which elements lie apart: fewer than there are addresses
        self.in_memory: set[Symbol | None] = set()
        self._ones: set[sympy.Expr] = set()  # sizes that torch has asked to be 1

    def symbol(
        self, name: str, low: int = 2, high: int | None = None, hint: int | None = None
    ) -> Symbol:
        """Return the symbol called ``name``, whose values are from ``low`` to ``high``.

        In the call that is compiled for it is ``hint``.
        """
        if name not in self.symbols:
            size = None if high is None else Expr.of(high + 1)
            self.symbols[name] = Symbol(name, "size", size, low=low, hint=hint)
        return self.symbols[name]

    def convert(self, value: object) -> Expr:
        """Return an int or SymInt as an expression.

        One of a form that index expressions do not have (``trunc(0.3 * s0)``, a power of two...)
        is guarded to be what it is now: the graph is compiled again where it is something else.

        Raises:
            NotLowered: It has no such form, and it is too late for guards.
        """
        if isinstance(value, Expr):
            return value
        if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
            raise NotLowered(f"{type(value).__name__} is not a size")
        if isinstance(value, int):
            return Expr.of(value)
        known = value.node.maybe_as_int()
        if known is None and _is_known_as_one(value):
            self._ones.add(value.node.expr)
            known = 1
        if known is not None:
            return Expr.of(known)
        return self._from_sympy(value.node.expr, value.node.shape_env)

    def convert_stride(self, value: object) -> Expr:
        """Return a stride as an expression.

        torch counts an empty dimension as one element when it works out strides, as in
        ``Max(1, s0 // 2)``. Nothing is ever read from such a tensor, so that plain products
        do, which index expressions have.

        Raises:
            NotLowered: As ``convert``.
        """
        if isinstance(value, torch.SymInt) and value.node.maybe_as_int() is None:
            expr = value.node.expr.replace(Max, _without_one)
            return self._from_sympy(expr, value.node.shape_env)
        return self.convert(value)

    def _from_sympy(self, expr: sympy.Expr, shape_env: ShapeEnv | None) -> Expr:
        # a size of 1 is so as a factor of strides and offsets, too
        expr = sympy.S.One if expr in self._ones else expr
        if isinstance(expr, sympy.Integer):
            return Expr.of(int(expr))
        if isinstance(expr, sympy.Symbol):
            if expr.name.startswith("u"):
                raise NotLowered("the size depends on data")
            low, high = 2, None
            ranges = getattr(shape_env, "var_to_range", {})
            if expr in ranges:
                # an integer argument that is no size may have any sign
                least, most = ranges[expr].lower, ranges[expr].upper
                low = int(least) if isinstance(least, sympy.Integer) else ANY_SIGN
                high = int(most) if isinstance(most, sympy.Integer) and most < FAR else None
            if shape_env is not None and expr.name not in self.numbers:
                hint = _hint(expr, shape_env)
                if hint is not None or expr not in _hints(shape_env):  # else a jagged dimension's
                    self.numbers[expr.name] = shape_env.create_symintnode(expr, hint=hint)
            return Expr.of(self.symbol(expr.name, low, high, _hint(expr, shape_env)))
        if isinstance(expr, (TruncToInt, FloorToInt, CeilToInt)):
            share = self._share(expr, shape_env)
            if share is not None:
                return share
        if not isinstance(expr, _FORMS):
            return Expr.of(_as_it_is(expr, shape_env))
        parts = [self._from_sympy(a, shape_env) for a in expr.args]
        if isinstance(expr, sympy.Add):
            return sum(parts, Expr.of(0))
        if isinstance(expr, sympy.Mul):
            total = Expr.of(1)
            for part in parts:
                total = total * part
            return total
        if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
            total = Expr.of(1)
            for _ in range(int(expr.exp)):
                total = total * parts[0]
            return total
        if isinstance(expr, (FloorDiv, CleanDiv)):
            sign = self._sign(parts[1])
            return (parts[0] * sign) // (parts[1] * sign)
        if isinstance(expr, (Mod, PythonMod)):
            sign = self._sign(parts[1])
            return (parts[0] * sign) % (parts[1] * sign) * sign
        if isinstance(expr, (Max, Min)):
            return self._extreme(expr, parts, shape_env)
        return Expr.of(_as_it_is(expr, shape_env))

    def _number(self, symbol: Symbol) -> int | torch.SymInt:
        if symbol.name not in self.numbers:
            raise NotLowered("a jagged dimension has no one size")
        return self.numbers[symbol.name]

    def less(self, left: Expr, right: Expr) -> bool:
        """Whether one size is less than another: for all sizes, or by a guard.

        Raises:
            NotLowered: It is too late for guards, or a size is that of a jagged dimension.
        """
        difference = (left - right).evaluate(self._number)
        condition: object = difference < 0  # type: ignore[operator]
        if not isinstance(condition, torch.SymBool):
            return bool(condition)
        if statically_known_true(condition):
            return True
        if statically_known_true(torch.sym_not(condition)):
            return False
        _require_guards(condition.node.expr, condition.node.shape_env)
        return bool(condition)

    def require_within(self, number: Expr, most: int) -> None:
        """Guard a number to be from ``-most`` to ``most``; sizes that are in memory are.

        Raises:
            NotLowered: It is not, or it is too late for guards.
        """
        if number.single_atom in self.in_memory and most >= 1 << 53:
            return
        if not self.less(number, Expr.of(most + 1)) or not self.less(Expr.of(-most - 1), number):
            raise NotLowered(f"{number} is too large")

    def require_unequal(self, number: Expr, other: int) -> None:
        """Guard a number not to be another one.

        Raises:
            NotLowered: It is, or it is too late for guards.
        """
        low, high = lower_bound(number), upper_bound(number)
        if (low is not None and low > other) or (high is not None and high < other):
            return
        condition: object = (number - other).evaluate(self._number) != 0
        if isinstance(condition, torch.SymBool) and not statically_known_true(condition):
            _require_guards(condition.node.expr, condition.node.shape_env)
        if not condition:
            raise NotLowered(f"{number} is {other}")

    def _sign(self, divisor: Expr) -> int:
        """Return 1 or -1, by which a divisor is positive, as those of index expressions are.

        Raises:
            NotLowered: It is not known, and it is too late for guards.
        """
        low, high = lower_bound(divisor), upper_bound(divisor)
        if low is not None and low > 0:
            return 1
        if high is not None and high < 0:
            return -1
        zero = Expr.of(0)
        if self.less(zero, divisor):
            return 1
        if not self.less(divisor, zero):
            raise NotLowered("a size is divided by zero")
        return -1

    def _share(self, expr: sympy.Expr, shape_env: ShapeEnv | None) -> Expr | None:
        """Return ``trunc(0.75 * size)`` and its like as ``3 * size // 4``, which is exact.

        So it is for factors whose denominator is a power of two: floating point holds the product.
        """
        factor, number = expr.args[0].as_coeff_Mul()
        if not isinstance(factor, sympy.Number) or not isinstance(number, ToFloat) or factor <= 0:
            return None
        ratio = Fraction(float(factor))
        size = self._from_sympy(number.args[0], shape_env)
        if max(ratio.numerator, ratio.denominator) > 1 << 16 or not is_nonnegative(size):
            return None
        more = ratio.denominator - 1 if isinstance(expr, CeilToInt) else 0
        return (ratio.numerator * size + more) // ratio.denominator

    def _extreme(self, expr: sympy.Expr, parts: Sequence[Expr], shape_env: ShapeEnv | None) -> Expr:
        """Return the part that is the largest or smallest: for all sizes, or by a new guard.

        A guard costs a recompile when the other part becomes the extreme, no more than an ``if``
        in the user's code would.
        """
        sign = 1 if isinstance(expr, Max) else -1
        for part in parts:
            if all(is_nonnegative((part - other) * sign) for other in parts):
                return part
        if shape_env is None or shape_env.frozen or len(parts) != 2:
            raise NotLowered(_no_form(expr))
        left, right = expr.args
        greater = bool(shape_env.evaluate_expr(sympy.Ge(left, right)))
        return parts[0] if greater == (sign > 0) else parts[1]


def fixed(value: torch.SymFloat | torch.SymBool) -> float | bool:
    """Return a number that follows from sizes, guarded to be what it is now.

    Raises:
        NotLowered: It depends on data, or it is too late for guards.
    """
    _require_guards(value.node.expr, value.node.shape_env)
    return bool(value) if isinstance(value, torch.SymBool) else float(value)


def specialize(size: int | torch.SymInt) -> None:
    """Guard a size to be what it is now, where it is not too late for guards."""
    if isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None:
        try:
            _as_it_is(size.node.expr, size.node.shape_env)
        except NotLowered:
            return


def _as_it_is(expr: sympy.Expr, shape_env: ShapeEnv | None) -> int:
    """Return a size of a form that expressions do not have, guarded to be what it is now."""
    _require_guards(expr, shape_env)
    assert shape_env is not None
    try:
        value = shape_env.evaluate_expr(expr)
    except (
        RecursionError
    ):  # of what torch cannot bound, as ``s0 ** s0``: each of its sizes is fixed
        known = {each: shape_env.evaluate_expr(each) for each in expr.free_symbols}
        value = expr.xreplace(known)
    if value != int(value):
        raise NotLowered(_no_form(expr))  # a part of a size alone, the half in s0 / 2
    return int(value)


def _require_guards(expr: sympy.Expr, shape_env: ShapeEnv | None) -> None:
    if any(symbol.name.startswith(("u", "z")) for symbol in expr.free_symbols):
        raise NotLowered("the size depends on data")
    if shape_env is None or shape_env.frozen:
        raise NotLowered(_no_form(expr))


def _no_form(expr: sympy.Expr) -> str:
    return f"size {expr} has no simple form"


def _is_known_as_one(size: torch.SymInt) -> bool:
    """Whether a computed size is 1 wherever the graph is used, by what torch has asked of it.

    Such as ``(s0 - 1) // 3 + 1`` once that has been broadcast: it says nothing of it itself.
    """
    expr = size.node.expr
    if isinstance(expr, sympy.Symbol):
        return False  # those of 1 are known as numbers
    values = _hints(size.node.shape_env)
    now = expr.xreplace({s: values[s] for s in expr.free_symbols if s in values})
    return bool(now == 1) and statically_known_true(size == 1)


def _hint(symbol: sympy.Symbol, shape_env: ShapeEnv | None) -> int | None:
    """Return what a size is in the call that is compiled for."""
    value = _hints(shape_env).get(symbol)
    return int(value) if isinstance(value, (int, sympy.Integer)) else None


def _hints(shape_env: ShapeEnv | None) -> Mapping[sympy.Symbol, object]:
    # the second is what torch 2.11 calls it, and is about to go
    for name in ("backed_var_to_val", "var_to_val"):
        values: Mapping[sympy.Symbol, object] | None = getattr(shape_env, name, None)
        if values is not None:
            return values
    return {}


def _without_one(*args: sympy.Expr) -> sympy.Expr:
    rest = [each for each in args if each != 1]
    return rest[0] if len(rest) == 1 else Max(*args)
