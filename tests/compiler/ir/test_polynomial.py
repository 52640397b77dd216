"""Polynomials over atoms: what they are equal to, arithmetic, and how they are written."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fusec.ir.polynomial import Polynomial


@dataclass(frozen=True)
class Atom:
    """A name; two of one name are equal, and need not be the same."""

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
        (of(0, 0, 6, 4), Polynomial({(Atom("n"),): 2}), of(3, 2), of()),
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
        (of(5, 3, 7, 2), "m * n * 2 + n * 7 + m * 3 + 5"),
        (of(m=1, n=1), "m + n"),
    ],
)
def test_text(value: Polynomial[Atom], text: str) -> None:
    assert value.text(lambda atom: atom.name) == text


@pytest.mark.parametrize(
    ("value", "constant", "atom"),
    [
        (of(), 0, None),
        (of(3), 3, None),
        (of(1), 1, None),
        (of(m=1), None, M),
        (of(m=2), None, None),
        (of(m=0), 0, None),
        (of(mn=1), None, None),
        (of(1, 1), None, None),
        (of(m=1, n=1), None, None),
    ],
)
def test_what_is_a_number_or_an_atom(
    value: Polynomial[Atom], constant: int | None, atom: Atom | None
) -> None:
    assert value.constant == constant
    assert value.single_atom == atom
    assert all((value == number) == (constant == number) for number in range(4))


def test_no_term_has_the_coefficient_zero() -> None:
    assert of(m=1).plus(of(m=-1)).terms == {}
    assert of(1, 2).scaled(0).terms == {}
    assert of(1, -1).times(of(1, 1)).terms == {(): 1, (M, M): -1}


def test_arithmetic_is_term_by_term() -> None:
    one, other = of(5, 3, 0, -2), of(-7, 2, 4)
    assert one.plus(other) == of(-2, 5, 4, -2)
    assert one.scaled(-3) == of(-15, -9, 0, 6)
    assert -one == of(-5, -3, 0, 2)
    assert of(2, 3).times(of(5, 0, 7)) == of(10, 15, 14, 21)
    assert of(m=1, n=1).times(of(m=1, n=1)).terms == {(M, M): 1, (M, N): 2, (N, N): 1}
    assert one.atoms() == {M, N}
    assert of(4).atoms() == set()


def test_what_is_equal_is_so_by_its_terms() -> None:
    one, like = of(1, 2, 3), of(1, 2, 3)
    assert (one, hash(one)) == (like, hash(like))
    assert all(one != other for other in (of(1, 2, 4), of(1, 2), "m"))
    like._hash = one._hash + 1  # which is asked first
    assert one != like
    other = of(1, 2, 4)
    other._hash = one._hash  # and proves nothing
    assert one != other
