"""Zeta and polygamma functions, as expressions."""

from __future__ import annotations

import math

import torch

from fusec.ir import ops
from fusec.ir.node import Const, Node
from fusec.lower.special import polynomials as table
from fusec.lower.special.polynomials import Value, horner, select


def hurwitz(s: Value, q: Value, *, rounded: bool = False) -> Value:
    """Return the sum of (q + k)^-s over k >= 0 for s > 1 and q > 0: Cephes' ``zeta``.

    Nine terms more, and what Euler and Maclaurin's formula says of those that follow.

    Args:
        s: The exponent.
        q: Where the sum begins.
        rounded: Whether the result is rounded to half of its digits, which hides what powers by
            plain logarithms are off by; ten exact ones take a compiler very long.
    """
    power = _rounded_power if rounded else _inverse_power
    total, a = power(q, s), q
    if rounded:  # infinity times the logarithm of 1 is no number
        total = select((q.equals(1.0), 1.0), otherwise=total)
    for _ in range(9):
        a = a + 1.0
        term = power(a, s)
        total = total + term
    # as in Cephes, no formula where no further term matters: it might be infinity times 0
    converged, first = term < 2.0**-53 * total, total
    total = total + term * a / (s - 1.0) - 0.5 * term
    square = 1.0 / (a * a)
    term, factor = term / a, s
    for k, denominator in enumerate(table.ZETA):
        total = total + factor * (1.0 / denominator) * term
        factor = factor * (s + (2.0 * k + 1.0)) * (s + (2.0 * k + 2.0))
        term = term * square
    return select((converged, first), otherwise=total)


def _inverse_power(x: Value, s: Value) -> Value:
    """Return x^-s, by multiplications where s is a small number known at compile time."""
    known = s.node.value if isinstance(s.node, Const) else 0.0
    if not 1 <= known <= 16 or known % 1:
        return x.binary("pow", -s)
    total = inverse = 1.0 / x  # x^s might overflow where x^-s is still there
    for bit in f"{int(known):b}"[1:]:
        total = total * total
        total = total * inverse if bit == "1" else total
    return total


def _rounded_power(x: Value, s: Value) -> Value:
    """Return x^-s to half of its digits."""
    return (-s * x.unary("log")).unary("exp")


def _is_whole(x: Value) -> Value:
    if isinstance(x.node, Const):
        return Value(ops.const(x.node.value % 1 == 0, torch.bool))
    return x.equals(x.unary("floor"))


def zeta(s: Value, q: Value, *, rounded: bool = False) -> Value:
    """Return Hurwitz' zeta function; below 0 it is there for whole s only. As for ``hurwitz``.

    There, ATen adds up all terms from q on.  With f = q - floor(q), those of q + k > 0 are
    zeta(s, f), and the others are, but for their sign, zeta(s, 1 - f) without zeta(s, 1 - q).
    """
    positive = q > 0.0
    # 1 - f is exact where it matters, close to the pole at 0
    starts = (
        select((positive, q), otherwise=q - q.unary("floor")),
        q.unary("ceil") - q,
        1.0 - q,
    )
    above, below, rest = (hurwitz(s, start, rounded=rounded) for start in starts)
    rest = select((rest.equals(rest), rest), otherwise=s.of(0.0))  # NaN where all underflows
    # added in this order, what cancels at f = 1/2 does so exactly
    even, odd = above + below - rest, above - below + rest
    return select(
        (s.equals(1.0), math.inf),
        (s < 1.0, math.nan),
        (positive, above),
        (_is_whole(q), math.inf),
        (_is_whole(0.5 * s), even),
        (_is_whole(s), odd),
        otherwise=s.of(math.nan),
    )


def _lattice(order: int, q: Value) -> Value:
    """Return the sum of (q + k)^-order over all integers k, negative ones as well.

    It is a derivative of pi cot(pi q), and so a polynomial of y = pi cot(pi q), since
    y' = -(pi^2 + y^2): L1 = y and L(s+1) = (pi^2 + y^2) / s * dLs/dy.
    """
    terms = [1.0]  # of y^s, y^(s-2) pi^2, y^(s-4) pi^4, ...
    for s in range(1, order):
        kept = [c * (s - 2 * j) / s for j, c in enumerate(terms)]
        terms = [a + b for a, b in zip([*kept, 0.0], [0.0, *kept], strict=True)]
        if s % 2 == 0:
            terms.pop()  # a power below the first
    rest = q - q.unary("round")
    size = abs(rest)
    # the angle is exact close to the poles and close to the zeros of the cotangent
    close = size < 0.25
    angle = select((close, size), otherwise=0.5 - size) * math.pi
    sine, cosine = angle.unary("sin"), angle.unary("cos")
    y = math.pi * select((close, cosine), otherwise=sine)
    y = y / select((close, sine), otherwise=cosine)
    total = horner(y * y, [c * math.pi ** (2 * j) for j, c in enumerate(terms)])
    return (total * y).binary("copysign", rest) if order % 2 else total


def _trigamma(x: Value) -> Value:
    """Return the second derivative of log(gamma(x)), by ATen's formula."""
    mirrored = x < 0.5
    sine = (math.pi * x).unary("sin")
    reflected = math.pi * math.pi / (sine * sine)
    x = select((mirrored, 1.0 - x), otherwise=x)
    total = select((mirrored, -reflected), otherwise=x.of(0.0))
    for _ in range(6):
        total = total + 1.0 / (x * x)
        x = x + 1.0
    inverse = 1.0 / (x * x)
    series = 1.0 + 1.0 / (2.0 * x)
    series = series + inverse * (1 / 6 - inverse * (1 / 30 - inverse * (1 / 42)))
    total = total + series / x
    return select((mirrored, -total), otherwise=total)


def polygamma(order: int, x: Value) -> Value:
    """Return the ``order``-th derivative of the digamma function, from zeta(order + 1, x)."""
    if order == 0:
        return x.unary("digamma")
    if order == 1:
        return _trigamma(x)
    s = x.of(order + 1)
    positive = x > 0.0
    tail = hurwitz(s, select((positive, x), otherwise=1.0 - x))
    lattice = _lattice(order + 1, x)
    total = select(
        (positive, tail),
        (_is_whole(x), math.inf),
        otherwise=lattice + tail if order % 2 == 0 else lattice - tail,
    )
    return total * nearest_whole(math.gamma(order + 1.0) * (1 if order % 2 else -1), x.node)


def nearest_whole(number: float, like: Node) -> float:
    """Return a number as the type of a node has it: infinite, where that ends earlier."""
    return torch.tensor(number, dtype=torch.float64).to(like.dtype).item()


__all__ = ["hurwitz", "nearest_whole", "polygamma", "zeta"]
