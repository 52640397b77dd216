"""Where the quotients of polynomials in the C++ maths library come from.

`python tests/bench/mathlib_rational.py NAME...` prints numerator and denominator of each fit as C,
highest power first, with the error before and after rounding; with no name, the list. Weighted
least squares, again and again: what is linear is p - f q, so each turn divides it by the q of the
turn before (Sanathanan and Koerner), and weighs a point by its error as well, which makes the
largest error small (Lawson). Powers of Chebyshev keep the equations well-conditioned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mpmath as mp
from mathlib_fit import Function, hexadecimal, horner, memo, rounded

TURNS = 40


@dataclass(frozen=True)
class Rational:
    """Approximate `f` on [a, b] by a quotient of these degrees; `w` weighs the error."""

    f: Function
    w: Function
    a: mp.mpf
    b: mp.mpf
    above: int
    below: int


def solve(fit: Rational) -> tuple[list[mp.mpf], list[mp.mpf]]:
    """Return the coefficients of both, lowest first; the denominator starts with 1."""
    a, b, m, n = fit.a, fit.b, fit.above, fit.below
    count = 12 * (m + n + 2)
    middle, reach = (a + b) / 2, (b - a) / 2
    points = [middle + reach * mp.cos(mp.pi * (k + mp.mpf("0.5")) / count) for k in range(count)]
    values, weights = [fit.f(x) for x in points], [fit.w(x) for x in points]
    powers = [_chebyshev((x - middle) / reach, max(m, n)) for x in points]
    below, share = [mp.mpf(1)] * count, [mp.mpf(1)] * count
    best, least = ([mp.mpf(1)], [mp.mpf(1)]), mp.inf
    for turn in range(TURNS):
        size = m + 1 + n
        matrix, right = mp.matrix(size, size), mp.matrix(size, 1)
        for t, f, w, q, s in zip(powers, values, weights, below, share, strict=True):
            weight = (w / q) ** 2 * s
            row = [*t[: m + 1], *(-f * each for each in t[1 : n + 1])]
            for i in range(size):
                right[i] += weight * row[i] * f
                for j in range(size):
                    matrix[i, j] += weight * row[i] * row[j]
        found = mp.lu_solve(matrix, right)
        p = [found[i] for i in range(m + 1)]
        q = [mp.mpf(1), *(found[m + 1 + i] for i in range(n))]
        below = [mp.fdot(q, t[: n + 1]) for t in powers]
        above = [mp.fdot(p, t[: m + 1]) for t in powers]
        errors = [
            abs(w * (u / v - f)) for w, u, v, f in zip(weights, above, below, values, strict=True)
        ]
        if max(errors) < least:
            best, least = (p, q), max(errors)
        if turn >= 3:  # the denominator is nearly what it will be
            share = [s * e for s, e in zip(share, errors, strict=True)]
            top = max(share)
            share = [s / top + mp.mpf(10) ** -30 for s in share]
    p, q = (_in_powers(each, middle, reach) for each in best)
    return [each / q[0] for each in p], [each / q[0] for each in q]


def _chebyshev(t: mp.mpf, degree: int) -> list[mp.mpf]:
    found = [mp.mpf(1), t]
    while len(found) <= degree:
        found.append(2 * t * found[-1] - found[-2])
    return found[: degree + 1]


def _in_powers(c: Sequence[mp.mpf], middle: mp.mpf, reach: mp.mpf) -> list[mp.mpf]:
    """Return the coefficients of 1, x, x^2, ... for those of Chebyshev's polynomials."""
    terms = [[mp.mpf(1)], [-middle / reach, 1 / reach]]
    while len(terms) < len(c):
        longer = [mp.mpf(0), *(2 * each / reach for each in terms[-1])]
        for i, each in enumerate(terms[-1]):
            longer[i] -= 2 * middle / reach * each
        for i, each in enumerate(terms[-2]):
            longer[i] -= each
        terms.append(longer)
    result = [mp.mpf(0)] * len(c)
    for factor, term in zip(c, terms, strict=False):
        for i, each in enumerate(term):
            result[i] += factor * each
    return result


def erfinv_exact(y: mp.mpf, rest: mp.mpf) -> mp.mpf:
    """Return erfinv(y), where 1 - y is `rest`, by Halley's method."""
    x = y if y < mp.mpf("0.6") else mp.sqrt(-mp.log(rest)) * mp.mpf("0.9")
    for _ in range(60):
        miss = (mp.erfc(x) - rest) * mp.sqrt(mp.pi) / -2 * mp.exp(x * x)
        step = miss / (1 + x * miss)
        x -= step
        if abs(step) < mp.mpf(10) ** -50 * x:
            break
    return x


def erfinv_near_fit() -> Rational:
    """erfinv(y) / y - 1 in 0.640625 - y^2 for y up to 0.8, error relative to erfinv."""
    top = mp.mpf("0.640625")

    def f(v: mp.mpf) -> mp.mpf:
        y = mp.sqrt(top - v)
        return erfinv_exact(y, 1 - y) / y - 1 if y else mp.sqrt(mp.pi) / 2 - 1

    f = memo(f)
    return Rational(f, lambda v: 1 / (f(v) + 1), top - mp.mpf("0.6405"), top, 7, 7)


def erfinv_far_fit() -> Rational:
    """erfinv(1 - exp(-s^2)) - s + 0.28125 in s - 1.25, up to the double next to 1; likewise."""

    def exact(v: mp.mpf) -> mp.mpf:
        rest = mp.exp(-((v + mp.mpf("1.25")) ** 2))
        return erfinv_exact(1 - rest, rest)

    exact = memo(exact)
    low = mp.sqrt(-mp.log(1 - mp.mpf("0.8"))) - mp.mpf("1.25")
    high = mp.mpf("6.062") - mp.mpf("1.25")
    more = mp.mpf("0.28125") - mp.mpf("1.25")
    return Rational(lambda v: exact(v) - v + more, lambda v: 1 / exact(v), low, high, 8, 8)


FITS: dict[str, Callable[[], Rational]] = {
    "erfinv_near.f64": erfinv_near_fit,
    "erfinv_far.f64": erfinv_far_fit,
}


def main(names: Sequence[str]) -> None:
    if not names:
        print("\n".join(FITS))
    for name in names:
        fit = FITS[name]()
        parts = solve(fit)
        short = [[rounded(each, 53) for each in part] for part in parts]
        check = [fit.a + (fit.b - fit.a) * (k + mp.mpf("0.37")) / 500 for k in range(500)]

        before, after = error(fit, parts, check), error(fit, short, check)
        print(f"{name}: 2^{float(mp.log(before, 2)):.1f}, rounded 2^{float(mp.log(after, 2)):.1f}")
        for title, part in zip(("above", "below"), short, strict=True):
            print(f"  {title}")
            print("\n".join(f"    {hexadecimal(x, 53)}" for x in reversed(part)), flush=True)


def error(fit: Rational, pair: Sequence[Sequence[mp.mpf]], points: Sequence[mp.mpf]) -> mp.mpf:
    """Return the largest weighted error at some points."""
    p, q = pair
    return max(abs(fit.w(x) * (_value(p, x) / _value(q, x) - fit.f(x))) for x in points)


def _value(c: Sequence[mp.mpf], x: mp.mpf) -> mp.mpf:
    return horner(c, range(len(c)), x)


if __name__ == "__main__":
    main(sys.argv[1:])
