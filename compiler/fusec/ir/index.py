"""Integer index expressions: sizes, strides, and positions in a buffer.

An ``Expr`` is a polynomial with integer coefficients over *atoms*: symbols (loop axes, symbolic
sizes, indices loaded from memory), floor divisions and remainders.  It is kept in one canonical
form, so that equal positions compare equal and a stride is simply the coefficient of an axis.

Why not sympy: index arithmetic is the inner loop of lowering and fusion, this small normal form
is about a hundred times faster, and it knows the one thing that matters here, the range of every
symbol.  Simplification never assumes more than those ranges.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import gcd
from typing import ClassVar, Union

from fusec.ir.polynomial import Polynomial

IntLike = Union["Expr", int]
_SERIALS = itertools.count()


class Symbol:
    """A named integer.

    Two symbols are the same only if they are the same object; names are for people, and
    code generators rename where names collide.

    Attributes:
        name: For printing.
        kind: ``axis`` (0 <= s < size), ``size`` (low <= s, a symbolic dimension) or
            ``indirect`` (0 <= s < size, an index that is computed at run time).
        size: Exclusive upper bound; None for ``size`` symbols without one.
        low: Inclusive lower bound.
        payload: For ``indirect``: the value-graph node that yields the index.
        hint: For ``size``: what it was in the call that is compiled for; None where not known.
            It may decide how quick a kernel is, never what it computes.
    """

    __slots__ = ("hint", "kind", "low", "name", "payload", "serial", "size")

    def __init__(
        self,
        name: str,
        kind: str = "axis",
        size: Expr | None = None,
        low: int = 0,
        payload: object = None,
        hint: int | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.size = size
        self.low = low
        self.payload = payload
        self.hint = hint
        self.serial = next(_SERIALS)  # gives atoms a stable order within a process

    def key(self) -> tuple[object, ...]:
        """Return a sorting key: axes in order of creation."""
        return (0, self.serial)

    def __repr__(self) -> str:
        return self.name


class _Division:
    """What a division leaves that did not simplify. The divisor is positive."""

    __slots__ = ("_hash", "divisor", "numerator")
    _SIGN: ClassVar[str]
    _ORDER: ClassVar[int]

    def __init__(self, numerator: Expr, divisor: Expr) -> None:
        self.numerator = numerator
        self.divisor = divisor
        self._hash = hash((self._SIGN, numerator, divisor))

    def key(self) -> tuple[object, ...]:
        """Return a sorting key: after the symbols, remainders last."""
        return (self._ORDER, f"({self.numerator}) {self._SIGN} ({self.divisor})")

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, _Division)
            and type(self) is type(other)
            and self._hash == other._hash
            and self.numerator == other.numerator
            and self.divisor == other.divisor
        )

    def __hash__(self) -> int:
        return self._hash

    def text(self, numerator: str, operator: str, divisor: str) -> str:
        """Return source text, of its parts' texts."""
        numerator = numerator if _is_simple(self.numerator) else f"({numerator})"
        divisor = divisor if _is_simple(self.divisor) else f"({divisor})"
        return f"({numerator} {operator} {divisor})"

    def __repr__(self) -> str:
        return self.text(repr(self.numerator), self._SIGN, repr(self.divisor))


class FloorDiv(_Division):
    """``numerator // divisor`` that did not simplify. The divisor is positive."""

    __slots__ = ()
    _SIGN = "//"
    _ORDER = 1


class Mod(_Division):
    """``numerator % divisor`` that did not simplify. The divisor is positive."""

    __slots__ = ()
    _SIGN = "%"
    _ORDER = 2


Atom = Symbol | FloorDiv | Mod
Monomial = tuple[Atom, ...]


class Expr(Polynomial[Atom]):
    """A canonical integer polynomial over symbols, quotients and remainders."""

    __slots__ = ()

    @staticmethod
    def of(value: IntLike | Symbol) -> Expr:
        """Return ``value`` as an expression."""
        if isinstance(value, Expr):
            return value
        if isinstance(value, Symbol):
            return Expr({(value,): 1})
        return _constant(int(value))

    def symbols(self) -> frozenset[Symbol]:
        """Return every symbol that occurs anywhere inside."""
        return _symbols(self)

    def coefficient(self, symbol: Symbol) -> Expr:
        """Return what multiplies ``symbol`` where it occurs alone to the first power."""
        return Expr(
            {
                tuple(a for a in monomial if a is not symbol): c
                for monomial, c in self.terms.items()
                if sum(a is symbol for a in monomial) == 1
            }
        )

    def is_affine_in(self, symbol: Symbol) -> bool:
        """Whether ``symbol`` occurs only to the first power and inside no ``//`` or ``%``."""
        for monomial in self.terms:
            if sum(a is symbol for a in monomial) > 1:
                return False
            if any(not isinstance(a, Symbol) and symbol in _atom_symbols(a) for a in monomial):
                return False
        return True

    # -- arithmetic -----------------------------------------------------------------------

    def __add__(self, other: IntLike) -> Expr:
        right = Expr.of(other)
        if not right.terms:
            return self
        if not self.terms:
            return right
        return _join_remainders(self.plus(right))

    __radd__ = __add__

    def __sub__(self, other: IntLike) -> Expr:
        return self + (-Expr.of(other))

    def __rsub__(self, other: IntLike) -> Expr:
        return Expr.of(other) - self

    def __mul__(self, other: IntLike) -> Expr:
        right = Expr.of(other)
        known = right.constant
        if known is not None:
            return self if known == 1 else self.scaled(known)
        return _join_remainders(self.times(right))

    __rmul__ = __mul__

    def __floordiv__(self, other: IntLike) -> Expr:
        return floor_div(self, Expr.of(other))

    def __rfloordiv__(self, other: IntLike) -> Expr:
        return floor_div(Expr.of(other), self)

    def __mod__(self, other: IntLike) -> Expr:
        return remainder(self, Expr.of(other))

    # -- rewriting and evaluation ---------------------------------------------------------

    def substitute(self, mapping: Mapping[Symbol, IntLike]) -> Expr:
        """Replace symbols by expressions and simplify again."""
        if not any(symbol in mapping for symbol in _symbols(self)):
            return self
        total = _constant(0)
        for monomial, c in self.terms.items():
            product = _constant(c)
            for atom in monomial:
                if isinstance(atom, Symbol):
                    factor = Expr.of(mapping.get(atom, atom))
                else:
                    divide = floor_div if isinstance(atom, FloorDiv) else remainder
                    factor = divide(
                        atom.numerator.substitute(mapping), atom.divisor.substitute(mapping)
                    )
                product = product * factor
            total = total + product
        return total

    def evaluate(self, values: Callable[[Symbol], object]) -> object:
        """Evaluate with ``values(symbol)``: ints, or anything with ``+ * // %`` (tensors)."""
        total: object = 0
        for monomial, c in self.terms.items():
            product: object = c
            for atom in monomial:
                if isinstance(atom, Symbol):
                    factor = values(atom)
                else:
                    divide = operator.floordiv if isinstance(atom, FloorDiv) else operator.mod
                    factor = divide(atom.numerator.evaluate(values), atom.divisor.evaluate(values))
                product = product * factor  # type: ignore[operator]
            total = total + product  # type: ignore[operator]
        return total

    # -- printing -------------------------------------------------------------------------

    def __repr__(self) -> str:
        return self.text(repr)


def _is_simple(expr: Expr) -> bool:
    """Whether its text needs no parentheses: a number, a name, what has some already."""
    known = expr.constant
    return known >= 0 if known is not None else expr.single_atom is not None


@lru_cache(maxsize=65536)
def _constant(value: int) -> Expr:
    return Expr({(): value})


def _atom_symbols(atom: Atom) -> Iterable[Symbol]:
    if isinstance(atom, Symbol):
        return (atom,)
    return _symbols(atom.numerator) | _symbols(atom.divisor)


@lru_cache(maxsize=65536)
def _symbols(expr: Expr) -> frozenset[Symbol]:
    return frozenset(s for monomial in expr.terms for a in monomial for s in _atom_symbols(a))


# -- ranges -------------------------------------------------------------------------------


def is_nonnegative(expr: Expr) -> bool:
    """Whether ``expr >= 0`` follows from the ranges of its symbols (False: not known)."""
    low = lower_bound(expr)
    return low is not None and low >= 0


def lower_bound(expr: Expr) -> int | None:
    """Return a proven lower bound, or None.

    Axes are eliminated first (at their largest where they count negatively), so that what is
    left is over sizes, which are at least ``low`` each.
    """
    current = expr
    while True:  # sizes hold no axes: each round leaves one less
        bounded = next(
            (
                (s, s.size)
                for monomial in current.terms
                for s in monomial
                if isinstance(s, Symbol) and s.kind != "size" and s.size is not None
            ),
            None,
        )
        if bounded is None or not current.is_affine_in(bounded[0]):
            break
        axis, size = bounded
        coefficient = current.coefficient(axis)
        current -= coefficient * Expr.of(axis)
        if is_nonnegative(-coefficient):
            current += coefficient * (size - 1)
        elif not is_nonnegative(coefficient):
            return None
    total = 0
    for monomial, c in current.terms.items():
        limits = _monomial_range(monomial)
        if limits is None:
            return None
        low, high = limits
        least = low if c > 0 else high
        if least is None:
            return None
        total += c * least
    return total


def _monomial_range(monomial: Monomial) -> tuple[int, int | None] | None:
    """Return (low, high or None) of a product of atoms, None where one may be negative."""
    low, high = 1, 1
    bounded = True
    for atom in monomial:
        limits = _atom_range(atom)
        if limits is None:
            return None
        low *= limits[0]
        bounded = bounded and limits[1] is not None
        high *= limits[1] or 0
    return low, high if bounded else None


def _atom_range(atom: Atom) -> tuple[int, int | None] | None:
    """Return (low >= 0, high or None), or None where the atom may be negative."""
    if isinstance(atom, Symbol):
        if atom.low < 0:
            return None
        size = None if atom.size is None else atom.size.constant
        return atom.low, None if size is None else max(size - 1, 0)
    divisor = atom.divisor.constant
    if isinstance(atom, Mod):
        return 0, None if divisor is None else divisor - 1
    bottom = lower_bound(atom.numerator)
    if bottom is None or bottom < 0:
        return None
    top = upper_bound(atom.numerator)
    if divisor is None:
        return 0, top
    return bottom // divisor, None if top is None else top // divisor


def upper_bound(expr: Expr) -> int | None:
    """Return a proven upper bound, or None."""
    low = lower_bound(-expr)
    return None if low is None else -low


def provably_less(left: Expr, right: Expr) -> bool:
    """Whether ``left < right`` follows from the symbols' ranges."""
    return is_nonnegative(right - left - 1)


# -- division -----------------------------------------------------------------------------


def _fits(expr: Expr, divisor: Expr) -> bool:
    return is_nonnegative(expr) and provably_less(expr, divisor)


def _positive(divisor: Expr) -> int | None:
    known = divisor.constant
    if known is not None and known <= 0:
        raise ZeroDivisionError(f"index divisor must be positive, not {known}")
    return known


@lru_cache(maxsize=65536)
def floor_div(numerator: Expr, divisor: Expr) -> Expr:
    """Return ``numerator // divisor`` (floor), simplified; the divisor must be positive."""
    known = _positive(divisor)
    quotient, rest = numerator.divided(divisor)
    if _fits(rest, divisor):
        return quotient
    if known is not None:
        coarse = _coarsen(rest, known)
        if coarse is not None:
            factor, high, _low = coarse
            return quotient + floor_div(high, _constant(known // factor))
        inner = rest.single_atom
        if isinstance(inner, FloorDiv) and inner.divisor.constant is not None:
            return quotient + floor_div(inner.numerator, inner.divisor * known)
    return quotient + Expr({(FloorDiv(rest, divisor),): 1})


@lru_cache(maxsize=65536)
def remainder(numerator: Expr, divisor: Expr) -> Expr:
    """Return ``numerator % divisor`` (sign of the divisor), simplified."""
    known = _positive(divisor)
    _quotient, rest = numerator.divided(divisor)
    if _fits(rest, divisor):
        return rest
    if known is not None:
        coarse = _coarsen(rest, known)
        if coarse is not None:
            factor, high, low = coarse
            return remainder(high, _constant(known // factor)) * factor + low
        inner = rest.single_atom
        if isinstance(inner, Mod):
            outer_known = inner.divisor.constant
            if outer_known is not None and outer_known % known == 0:
                return remainder(inner.numerator, divisor)
    return Expr({(Mod(rest, divisor),): 1})


def _coarsen(expr: Expr, divisor: int) -> tuple[int, Expr, Expr] | None:
    """Write ``expr = factor * high + low`` with ``0 <= low < factor`` and factor | divisor."""
    for factor in sorted({gcd(c, divisor) for m, c in expr.terms.items() if m} - {1}):
        high, low = expr.divided(_constant(factor))
        if _fits(low, _constant(factor)):
            return factor, high, low
    return None


def _join_remainders(expr: Expr) -> Expr:
    """Apply ``k * (x // k) + x % k == x``, which undoes the reshapes of reshapes.

    And ``k * (x % (k * n) // k) + x % k == x % (k * n)``, or with ``x // k % n``, which is the
    same: inner parts of a position.
    """
    while True:
        for monomial, c in expr.terms.items():
            position = next((i for i, a in enumerate(monomial) if isinstance(a, Mod)), None)
            if position is None:
                continue
            atom = monomial[position]
            assert isinstance(atom, Mod)
            others = monomial[:position] + monomial[position + 1 :]
            partner = Expr({others: c}) * atom.divisor
            quotient = floor_div(atom.numerator, atom.divisor)
            if len(quotient.terms) != 1 or len(partner.terms) != 1:
                continue
            wanted = partner.times(quotient)
            ((wanted_monomial, wanted_c),) = wanted.terms.items()
            whole = atom.numerator
            if expr.terms.get(wanted_monomial) != wanted_c:
                found = _coarser_part(expr, atom, others, partner)
                if found is None:
                    continue
                wanted_monomial, whole = found
            terms = dict(expr.terms)
            del terms[monomial], terms[wanted_monomial]
            expr = Expr(terms).plus(Expr({others: c}) * whole)
            break
        else:
            return expr


def _coarser_part(
    expr: Expr, fine: Mod, others: Monomial, factor: Expr
) -> tuple[Monomial, Expr] | None:
    """Find the term with ``x % (k * n) // k``, or ``x // k % n``, beside one with ``x % k``.

    Args:
        expr: Where both are.
        fine: ``x % k``.
        others: What it is multiplied with.
        factor: What the other one should be: that, times k.

    Returns:
        The other term, and ``x % (k * n)``.
    """
    for monomial, c in expr.terms.items():
        for position, atom in enumerate(monomial):
            part = _inner_part(atom)
            if part is None or part[:2] != (fine.numerator, fine.divisor.constant):
                continue
            rest = monomial[:position] + monomial[position + 1 :]
            if rest == others and Expr({rest: c}) == factor:
                return monomial, remainder(fine.numerator, _constant(part[2]))
    return None


def _inner_part(atom: Atom) -> tuple[Expr, int, int] | None:
    """Return x, k and k * n of ``x % (k * n) // k`` or ``x // k % n``; None for anything else."""
    if isinstance(atom, Symbol):
        return None
    inner, outer = atom.numerator.single_atom, atom.divisor.constant
    if not isinstance(inner, (FloorDiv, Mod)) or type(inner) is type(atom):
        return None
    known = inner.divisor.constant
    if outer is None or known is None:
        return None
    if isinstance(atom, FloorDiv):
        return (inner.numerator, outer, known) if known % outer == 0 else None
    return inner.numerator, known, known * outer
