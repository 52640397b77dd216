"""Integer index expressions: sizes, strides, and positions in a buffer.

An ``Expr`` is a polynomial with integer coefficients over *atoms*: symbols (loop axes, symbolic
sizes, indices loaded from memory), floor divisions and remainders.  It is kept in one canonical
form, so that equal positions compare equal and a stride is simply the coefficient of an axis.

Why not sympy: index arithmetic is the inner loop of lowering and fusion, this small normal form
is about a hundred times faster, and it knows the one thing that matters here, the range of every
symbol.  Simplification never assumes more than those ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import gcd
from typing import ClassVar, Union

IntLike = Union["Expr", int]


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
    _count = 0

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
        Symbol._count += 1
        self.serial = Symbol._count  # gives atoms a stable order within a process

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
        return (self._ORDER, repr(self))

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

    def __repr__(self) -> str:
        return f"({self.numerator}) {self._SIGN} ({self.divisor})"


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


class Expr:
    """A canonical integer polynomial; immutable, hashable.

    Attributes:
        terms: Monomial (a sorted tuple of atoms, empty for the constant) to its coefficient;
            no coefficient is zero.
    """

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms: dict[Monomial, int] = {m: c for m, c in terms.items() if c}
        self._hash = hash(frozenset(self.terms.items()))

    # -- construction ---------------------------------------------------------------------

    @staticmethod
    def of(value: IntLike | Symbol) -> Expr:
        """Return ``value`` as an expression."""
        if isinstance(value, Expr):
            return value
        if isinstance(value, Symbol):
            return Expr({(value,): 1})
        return _constant(int(value))

    # -- inspection -----------------------------------------------------------------------

    @property
    def constant(self) -> int | None:
        """The value, where it is known now; else None."""
        if not self.terms:
            return 0
        if len(self.terms) == 1:
            return self.terms.get(())
        return None

    def atoms(self) -> set[Atom]:
        """Return the atoms that occur at the top level."""
        return {atom for monomial in self.terms for atom in monomial}

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

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.constant == other
        return self is other or (
            isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms
        )

    def __hash__(self) -> int:
        return self._hash

    # -- arithmetic -----------------------------------------------------------------------

    def __add__(self, other: IntLike) -> Expr:
        right = Expr.of(other)
        if not right.terms:
            return self
        if not self.terms:
            return right
        terms = dict(self.terms)
        for monomial, c in right.terms.items():
            terms[monomial] = terms.get(monomial, 0) + c
        return _join_remainders(Expr(terms))

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return Expr({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: IntLike) -> Expr:
        return self + (-Expr.of(other))

    def __rsub__(self, other: IntLike) -> Expr:
        return Expr.of(other) - self

    def __mul__(self, other: IntLike) -> Expr:
        right = Expr.of(other)
        known = right.constant
        if known is not None:
            if known == 1:
                return self
            return Expr({m: c * known for m, c in self.terms.items()})
        if self.constant is not None:
            return right * self
        terms: dict[Monomial, int] = {}
        for left_monomial, left_c in self.terms.items():
            for right_monomial, right_c in right.terms.items():
                monomial = tuple(sorted(left_monomial + right_monomial, key=_atom_key))
                terms[monomial] = terms.get(monomial, 0) + left_c * right_c
        return _join_remainders(Expr(terms))

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
                elif isinstance(atom, FloorDiv):
                    factor = floor_div(
                        atom.numerator.substitute(mapping), atom.divisor.substitute(mapping)
                    )
                else:
                    factor = remainder(
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
                elif isinstance(atom, FloorDiv):
                    factor = atom.numerator.evaluate(values) // atom.divisor.evaluate(values)  # type: ignore[operator]
                else:
                    factor = atom.numerator.evaluate(values) % atom.divisor.evaluate(values)  # type: ignore[operator]
                product = product * factor  # type: ignore[operator]
            total = total + product  # type: ignore[operator]
        return total

    # -- printing -------------------------------------------------------------------------

    def __repr__(self) -> str:
        return self.render(lambda symbol: symbol.name, "//")

    def render(
        self,
        name: Callable[[Symbol], str],
        floor_div: str = "//",
        signed: tuple[str, str] | None = None,
    ) -> str:
        """Return source text.

        Args:
            name: Gives the symbols' names.
            floor_div: The division operator of the target language.
            signed: Names of the target's functions for a floor division and its remainder
                where the numerator may be negative (C's ``/`` and ``%`` truncate); None where
                the operators are right for any sign.
        """
        if not self.terms:
            return "0"
        parts: list[str] = []
        ordered = sorted(
            self.terms.items(), key=lambda term: (not term[0], [_atom_key(a) for a in term[0]])
        )
        for monomial, c in ordered:
            factors = []
            for atom in monomial:
                if isinstance(atom, Symbol):
                    factors.append(name(atom))
                    continue
                operator = floor_div if isinstance(atom, FloorDiv) else "%"
                numerator = atom.numerator.render(name, floor_div, signed)
                divisor = atom.divisor.render(name, floor_div, signed)
                if signed is not None and not is_nonnegative(atom.numerator):
                    function = signed[0] if isinstance(atom, FloorDiv) else signed[1]
                    factors.append(f"{function}({numerator}, {divisor})")
                    continue
                numerator = f"({numerator})" if not _is_simple(atom.numerator) else numerator
                divisor = f"({divisor})" if not _is_simple(atom.divisor) else divisor
                factors.append(f"({numerator} {operator} {divisor})")
            if not factors:
                text = str(abs(c))
            elif abs(c) == 1:
                text = " * ".join(factors)
            else:
                text = " * ".join([*factors, str(abs(c))])
            if not parts:
                parts.append(f"-{text}" if c < 0 else text)
            else:
                parts.append(f" - {text}" if c < 0 else f" + {text}")
        return "".join(parts)


def _is_simple(expr: Expr) -> bool:
    if expr.constant is not None:
        return expr.constant >= 0
    if len(expr.terms) != 1:
        return False
    ((monomial, c),) = expr.terms.items()
    return c == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol)


_SMALL = {value: Expr({(): value}) for value in range(-8, 1025)}


def _constant(value: int) -> Expr:
    return _SMALL.get(value) or Expr({(): value})


def _atom_key(atom: Atom) -> tuple[object, ...]:
    return atom.key()


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
    for _ in range(8):
        bounded = next(
            (
                s
                for monomial in current.terms
                for s in monomial
                if isinstance(s, Symbol) and s.kind != "size" and s.size is not None
            ),
            None,
        )
        if bounded is None or not current.is_affine_in(bounded):
            break
        coefficient = current.coefficient(bounded)
        rest = current - coefficient * Expr.of(bounded)
        if is_nonnegative(coefficient):
            current = rest
        elif is_nonnegative(-coefficient) and bounded.size is not None:
            current = rest + coefficient * (bounded.size - 1)
        else:
            return None
    total = 0
    for monomial, c in current.terms.items():
        limits = _monomial_range(monomial)
        if limits is None:
            return None
        low, high = limits
        if c > 0:
            total += c * low
        elif high is None:
            return None
        else:
            total += c * high
    return total


def _monomial_range(monomial: Monomial) -> tuple[int, int | None] | None:
    """Return (low, high or None) of a product of atoms, None where one may be negative."""
    low, high = 1, 1
    unbounded = False
    for atom in monomial:
        limits = _atom_range(atom)
        if limits is None:
            return None
        low *= limits[0]
        if limits[1] is None:
            unbounded = True
        else:
            high *= limits[1]
    return low, None if unbounded else high


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


def _split_by_divisor(expr: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """Return ``(quotient, rest)`` with ``expr == quotient * divisor + rest``."""
    known = divisor.constant
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    if known is not None:
        for monomial, c in expr.terms.items():
            if c % known == 0:
                quotient[monomial] = c // known
            elif not monomial:  # keep the constant within [0, divisor)
                quotient[monomial] = c // known
                rest[monomial] = c % known
            else:
                rest[monomial] = c
        return Expr(quotient), Expr(rest)
    if len(divisor.terms) == 1:
        ((factors, scale),) = divisor.terms.items()
        for monomial, c in expr.terms.items():
            left = _remove_factors(monomial, factors)
            if left is not None and c % scale == 0:
                quotient[left] = quotient.get(left, 0) + c // scale
            else:
                rest[monomial] = c
        return Expr(quotient), Expr(rest)
    if expr == divisor:
        return _constant(1), _constant(0)
    return _constant(0), expr


def _remove_factors(monomial: Monomial, factors: Monomial) -> Monomial | None:
    left = list(monomial)
    for factor in factors:
        for position, atom in enumerate(left):
            if atom is factor or atom == factor:
                del left[position]
                break
        else:
            return None
    return tuple(left)


def _fits(expr: Expr, divisor: Expr) -> bool:
    return is_nonnegative(expr) and provably_less(expr, divisor)


@lru_cache(maxsize=65536)
def floor_div(numerator: Expr, divisor: Expr) -> Expr:
    """Return ``numerator // divisor`` (floor), simplified; the divisor must be positive."""
    known = divisor.constant
    if known is not None and known <= 0:
        raise ZeroDivisionError(f"index divisor must be positive, not {known}")
    quotient, rest = _split_by_divisor(numerator, divisor)
    if _fits(rest, divisor):
        return quotient
    if known is not None:
        coarse = _coarsen(rest, known)
        if coarse is not None:
            factor, high, _low = coarse
            return quotient + floor_div(high, _constant(known // factor))
        inner = _single_atom(rest)
        if isinstance(inner, FloorDiv) and inner.divisor.constant is not None:
            return quotient + floor_div(inner.numerator, inner.divisor * known)
    return quotient + Expr({(FloorDiv(rest, divisor),): 1})


@lru_cache(maxsize=65536)
def remainder(numerator: Expr, divisor: Expr) -> Expr:
    """Return ``numerator % divisor`` (sign of the divisor), simplified."""
    known = divisor.constant
    if known is not None and known <= 0:
        raise ZeroDivisionError(f"index divisor must be positive, not {known}")
    _quotient, rest = _split_by_divisor(numerator, divisor)
    if _fits(rest, divisor):
        return rest
    if known is not None:
        coarse = _coarsen(rest, known)
        if coarse is not None:
            factor, high, low = coarse
            return remainder(high, _constant(known // factor)) * factor + low
        inner = _single_atom(rest)
        if isinstance(inner, Mod):
            outer_known = inner.divisor.constant
            if outer_known is not None and outer_known % known == 0:
                return remainder(inner.numerator, divisor)
    return Expr({(Mod(rest, divisor),): 1})


def _coarsen(expr: Expr, divisor: int) -> tuple[int, Expr, Expr] | None:
    """Write ``expr = factor * high + low`` with ``0 <= low < factor`` and factor | divisor."""
    candidates = sorted({gcd(c, divisor) for m, c in expr.terms.items() if m}, reverse=True)
    for factor in candidates:
        if factor <= 1:
            continue
        high: dict[Monomial, int] = {}
        low: dict[Monomial, int] = {}
        for monomial, c in expr.terms.items():
            if c % factor == 0:
                high[monomial] = c // factor
            elif not monomial:
                high[monomial] = c // factor
                low[monomial] = c % factor
            else:
                low[monomial] = c
        if _fits(Expr(low), _constant(factor)):
            return factor, Expr(high), Expr(low)
    return None


def _single_atom(expr: Expr) -> Atom | None:
    if len(expr.terms) != 1:
        return None
    ((monomial, c),) = expr.terms.items()
    return monomial[0] if c == 1 and len(monomial) == 1 else None


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
            partner = Expr({others: c}) * atom.divisor if others else atom.divisor * c
            quotient = floor_div(atom.numerator, atom.divisor)
            if len(quotient.terms) != 1 or len(partner.terms) != 1:
                continue
            wanted = _product(partner, quotient)
            ((wanted_monomial, wanted_c),) = wanted.terms.items()
            whole = atom.numerator
            if expr.terms.get(wanted_monomial) != wanted_c:
                found = _coarser_part(expr, atom, others, partner)
                if found is None:
                    continue
                wanted_monomial, whole = found
            terms = dict(expr.terms)
            del terms[monomial], terms[wanted_monomial]
            joined = Expr({others: c}) * whole if others else whole * c
            for m, joined_c in joined.terms.items():
                terms[m] = terms.get(m, 0) + joined_c
            expr = Expr(terms)
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
    inner, outer = _single_atom(atom.numerator), atom.divisor.constant
    if not isinstance(inner, (FloorDiv, Mod)) or type(inner) is type(atom):
        return None
    known = inner.divisor.constant
    if outer is None or known is None:
        return None
    if isinstance(atom, FloorDiv):
        return (inner.numerator, outer, known) if known % outer == 0 else None
    return inner.numerator, known, known * outer


def _product(left: Expr, right: Expr) -> Expr:
    ((left_monomial, left_c),) = left.terms.items()
    ((right_monomial, right_c),) = right.terms.items()
    monomial = tuple(sorted(left_monomial + right_monomial, key=_atom_key))
    return Expr({monomial: left_c * right_c})


# -- helpers for shapes -------------------------------------------------------------------


def product(sizes: Iterable[IntLike]) -> Expr:
    """Return the product of ``sizes``."""
    total = _constant(1)
    for size in sizes:
        total = total * size
    return total


def contiguous_strides(shape: Iterable[IntLike]) -> tuple[Expr, ...]:
    """Return the strides of a row-major tensor of ``shape``, as torch computes them.

    A dimension of size 0 counts as 1, as in torch.
    """
    strides: list[Expr] = []
    running = _constant(1)
    for size in reversed([Expr.of(s) for s in shape]):
        strides.append(running)
        running = running * (size if size.constant != 0 else 1)
    return tuple(reversed(strides))


def flatten(index: Iterable[IntLike], shape: Iterable[IntLike]) -> Expr:
    """Return the row-major position of ``index`` in ``shape``."""
    position = _constant(0)
    for i, size in zip(index, shape, strict=True):
        position = position * size + i
    return position


def unflatten(position: Expr, shape: Iterable[IntLike]) -> tuple[Expr, ...]:
    """Return the index in ``shape`` of a row-major ``position``."""
    sizes = [Expr.of(size) for size in shape]
    if any(size.constant == 0 for size in sizes):
        return tuple(_constant(0) for _ in sizes)
    index: list[Expr] = []
    for size in reversed(sizes[1:]):
        index.append(remainder(position, size))
        position = floor_div(position, size)
    if sizes:
        index.append(position)
    return tuple(reversed(index))
