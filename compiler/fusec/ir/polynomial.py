"""Polynomials with integer coefficients over atoms of any kind, in one canonical form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, Self, TypeVar


class Sortable(Protocol):
    """What a polynomial may be over: anything hashable that has an order."""

    def key(self) -> tuple[object, ...]:
        """Return what atoms are sorted by."""
        ...


A = TypeVar("A", bound=Sortable)


def sorted_atoms(atoms: tuple[A, ...]) -> tuple[A, ...]:
    """Return the atoms of a product in the order in which they stand in a monomial."""
    return tuple(sorted(atoms, key=lambda atom: atom.key()))


class Polynomial(Generic[A]):
    """A sum of products of atoms; immutable, hashable.

    Attributes:
        terms: Monomial (a sorted tuple of atoms, empty for the constant) to its coefficient;
            no coefficient is zero.
    """

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[tuple[A, ...], int]) -> None:
        self.terms: dict[tuple[A, ...], int] = {m: c for m, c in terms.items() if c}
        self._hash = hash(frozenset(self.terms.items()))

    @property
    def constant(self) -> int | None:
        """The value, where it is known now; else None."""
        if not self.terms:
            return 0
        if len(self.terms) == 1:
            return self.terms.get(())
        return None

    @property
    def single_atom(self) -> A | None:
        """The atom that it is, where it is one and nothing else."""
        if len(self.terms) != 1:
            return None
        ((monomial, c),) = self.terms.items()
        return monomial[0] if c == 1 and len(monomial) == 1 else None

    def atoms(self) -> set[A]:
        """Return the atoms that occur at the top level."""
        return {atom for monomial in self.terms for atom in monomial}

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.constant == other
        return self is other or (
            isinstance(other, Polynomial)
            and self._hash == other._hash
            and self.terms == other.terms
        )

    def __hash__(self) -> int:
        return self._hash

    def __neg__(self) -> Self:
        return self.scaled(-1)

    def scaled(self, factor: int) -> Self:
        """Return it times a number."""
        return type(self)({m: c * factor for m, c in self.terms.items()})

    def plus(self, other: Self) -> Self:
        """Return the sum, term by term."""
        terms = dict(self.terms)
        for monomial, c in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + c
        return type(self)(terms)

    def times(self, other: Self) -> Self:
        """Return the product, term by term."""
        terms: dict[tuple[A, ...], int] = {}
        for left, left_c in self.terms.items():
            for right, right_c in other.terms.items():
                monomial = sorted_atoms(left + right)
                terms[monomial] = terms.get(monomial, 0) + left_c * right_c
        return type(self)(terms)

    def divided(self, divisor: Self) -> tuple[Self, Self]:
        """Return ``(quotient, rest)`` with ``self == quotient * divisor + rest``, term by term."""
        known = divisor.constant
        quotient: dict[tuple[A, ...], int] = {}
        rest: dict[tuple[A, ...], int] = {}
        if known is not None:
            for monomial, c in self.terms.items():
                if c % known == 0:
                    quotient[monomial] = c // known
                elif not monomial:  # keep the constant within [0, divisor)
                    quotient[monomial] = c // known
                    rest[monomial] = c % known
                else:
                    rest[monomial] = c
        elif len(divisor.terms) == 1:
            ((factors, scale),) = divisor.terms.items()
            for monomial, c in self.terms.items():
                left = _without(monomial, factors)
                if left is not None and c % scale == 0:
                    quotient[left] = quotient.get(left, 0) + c // scale
                else:
                    rest[monomial] = c
        elif self == divisor:
            quotient[()] = 1
        else:
            return type(self)({}), self
        return type(self)(quotient), type(self)(rest)

    def text(self, factor: Callable[[A], str]) -> str:
        """Return source text, the largest steps first, the constant last.

        Args:
            factor: Writes an atom.
        """
        parts: list[str] = []
        ordered = sorted(self.terms.items(), key=_by_step)
        for monomial, c in ordered:
            factors, size = [factor(atom) for atom in monomial], abs(c)
            if not factors or size != 1:
                factors.append(str(size))
            signs = ("-", "") if not parts else (" - ", " + ")
            parts.append(signs[c == size] + " * ".join(factors))
        return "".join(parts) or "0"


def _by_step(term: tuple[tuple[A, ...], int]) -> tuple[object, ...]:
    monomial, c = term
    return not monomial, -len(monomial), -abs(c), [atom.key() for atom in monomial]


def _without(monomial: tuple[A, ...], factors: tuple[A, ...]) -> tuple[A, ...] | None:
    """Return what is left of a product without some of its factors; None without one of them."""
    left = list(monomial)
    for factor in factors:
        for position, atom in enumerate(left):
            if atom == factor:
                del left[position]
                break
        else:
            return None
    return tuple(left)


__all__ = ["Polynomial", "Sortable", "sorted_atoms"]
