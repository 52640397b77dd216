"""Polynomials over atoms: division term by term, and how they are written."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fusec.ir.polynomial import Polynomial


@dataclass(frozen=True)
class Atom:
    """A name."""

    name: str

    def key(self) -> tuple[object, ...]:
        """Return what it is sorted by."""
        return (self.name,)


M, N = Atom("m"), Atom("n")


def of(one: int = 0, m: int = 0, n: int = 0, mn: int = 0, nn: int = 0) -> Polynomial[Atom]:
    """Return a polynomial by its coefficients."""
    return Polynomial({(): one, (M,): m, (N,): n, (M, N): mn, (N, N): nn})


@pytest.mark.parametrize(
    ("value", "divisor", "quotient", "rest"),
    [
        (of(7, 6), of(3), of(2, 2), of(1)),
        (of(-7, 4), of(3), of(-3), of(2, 4)),
        (of(0, 6, 4, 8), of(n=2), of(2, 4), of(m=6)),
        (of(0, 0, 6, 0, 9), of(n=3), of(2, n=3), of()),
        (of(0, 0, 6, 3), of(n=4), of(), of(n=6, mn=3)),
        (of(1, 2), of(1, 2), of(1), of()),
        (of(2, 4), of(1, 2), of(), of(2, 4)),
    ],
)
def test_division(
    value: Polynomial[Atom],
    divisor: Polynomial[Atom],
    quotient: Polynomial[Atom],
    rest: Polynomial[Atom],
) -> None:
    assert value.divided(divisor) == (quotient, rest)
    assert quotient.times(divisor).plus(rest) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (of(), "0"),
        (of(-3), "-3"),
        (of(1, -1), "-m + 1"),
        (of(-1, 1), "m - 1"),
        (of(0, 2, -3), "-n * 3 + m * 2"),
        (of(m=-2, n=1), "-m * 2 + n"),
    ],
)
def test_text(value: Polynomial[Atom], text: str) -> None:
    assert value.text(lambda atom: atom.name) == text
