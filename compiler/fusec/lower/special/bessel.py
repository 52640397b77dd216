"""Bessel and Airy functions, as expressions."""

from __future__ import annotations

import math

import torch

from fusec.lower.special import polynomials as table
from fusec.lower.special.polynomials import Value, chebyshev, horner, ratio, select

ROOT_HALF = 1 / math.sqrt(math.pi)


def _i_small(x: Value, order: int) -> Value:
    """Return exp(-x) I(x) for 0 <= x <= 8."""
    series = chebyshev(x / 2.0 - 2.0, table.I1_SMALL if order else table.I0_SMALL)
    return series * x if order else series


def _i_large(x: Value, order: int) -> Value:
    """Return exp(-x) sqrt(x) I(x) for x > 8."""
    return chebyshev(32.0 / x - 2.0, table.I1_LARGE if order else table.I0_LARGE)


def bessel_i(x: Value, order: int, scaled: bool) -> Value:
    """Return I0 or I1, or that times exp(-abs(x))."""
    size = abs(x)
    small, large = _i_small(size, order), _i_large(size, order)
    if not scaled:
        growth = size.unary("exp")
        small, large = growth * small, growth * large
    result = select((size <= 8.0, small), otherwise=large / size.unary("sqrt"))
    return select((x < 0.0, -result), otherwise=result) if order else result


def bessel_k(x: Value, order: int, scaled: bool) -> Value:
    """Return K0 or K1, or that times exp(x)."""
    series = chebyshev(x * x - 2.0, table.K1_SMALL if order else table.K0_SMALL)
    growth = x.unary("exp")
    finite = growth * _i_small(x, order)
    if order:
        small = (0.5 * x).unary("log") * finite + series / x
    elif scaled:
        small = series - (0.5 * x).unary("log") * finite
    else:  # as eager has it: this logarithm, and what follows, in float64
        logarithm = (0.5 * x.cast(torch.float64)).unary("log")
        small = series.cast(torch.float64) - logarithm * finite.cast(torch.float64)
        small = small.cast(x.dtype)
    large = chebyshev(8.0 / x - 2.0, table.K1_LARGE if order else table.K0_LARGE) / x.unary("sqrt")
    if scaled:
        small = small * growth
    else:
        large = (-x).unary("exp") * large
    return select(
        (x.equals(0.0), math.inf), (x < 0.0, math.nan), (x <= 2.0, small), otherwise=large
    )


_FAR = (
    (table.BESSEL0_PP, table.BESSEL0_PQ, table.BESSEL0_QP, table.BESSEL0_QQ, math.pi / 4),
    (table.BESSEL1_PP, table.BESSEL1_PQ, table.BESSEL1_QP, table.BESSEL1_QQ, 3 * math.pi / 4),
)


def _oscillation(x: Value, order: int, second: bool) -> Value:
    """Return J(x), or Y(x) for the ``second`` kind, for x > 5."""
    top_p, bottom_p, top_q, bottom_q, phase = _FAR[order]
    inverse = 5.0 / x
    square = inverse * inverse
    p = ratio(square, top_p, bottom_p)
    q = inverse * ratio(square, top_q, bottom_q)
    sine, cosine = (x - phase).unary("sin"), (x - phase).unary("cos")
    wave = p * sine + q * cosine if second else p * cosine - q * sine
    return wave * math.sqrt(2 / math.pi) / x.unary("sqrt")


def _j0_small(x: Value) -> Value:
    square = x * x
    zeros = (square - 5.78318596294678452118) * (square - 30.4712623436620863991)
    return zeros * horner(square, table.J0_RP) / horner(square, table.J0_RQ)


def _j1_small(x: Value) -> Value:
    square = x * x
    zeros = (square - 14.6819706421238932572, square - 49.2184563216946036703)
    return ratio(square, table.J1_RP, table.J1_RQ) * x * zeros[0] * zeros[1]


def bessel_j0(x: Value) -> Value:
    """Return the Bessel function of the first kind of order 0."""
    x = select((x < 0.0, -x), otherwise=x)
    return select(
        (x < 1e-5, 1.0 - x * x / 4.0),
        (x <= 5.0, _j0_small(x)),
        otherwise=_oscillation(x, 0, second=False),
    )


def bessel_j1(x: Value) -> Value:
    """Return the Bessel function of the first kind of order 1."""
    size = select((x < 0.0, -x), otherwise=x)
    result = select((size <= 5.0, _j1_small(size)), otherwise=_oscillation(size, 1, second=False))
    return select((x < 0.0, -result), otherwise=result)


def bessel_y(x: Value, order: int) -> Value:
    """Return the Bessel function of the second kind."""
    square = x * x
    logarithm = x.unary("log")
    if order:
        regular = x * ratio(square, table.Y1_YP, table.Y1_YQ)
        singular = _j1_small(x) * logarithm - 1.0 / x
    else:
        regular = ratio(square, table.Y0_YP, table.Y0_YQ)
        # J0 of the tiniest is 1, also where it is computed from the zeros
        singular = logarithm * select((x < 1e-5, 1.0 - square / 4.0), otherwise=_j0_small(x))
    return select(
        (x.equals(0.0), -math.inf),
        (x < 0.0, math.nan),
        (x <= 5.0, regular + 2 / math.pi * singular),
        otherwise=_oscillation(x, order, second=True),
    )


def spherical_bessel_j0(x: Value) -> Value:
    """Return sin(x) / x."""
    series = [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)]
    return select(
        (x.unary("isinf"), 0.0),
        (abs(x) < 0.5, horner(x * x, series)),
        otherwise=x.unary("sin") / x,
    )


def airy_ai(x: Value) -> Value:
    """Return Airy's function Ai; NaN of infinities, as in eager."""
    root = x.unary("sqrt")
    exponent = 2.0 * x * root / 3.0
    decay = ROOT_HALF * ratio(1.0 / exponent, table.AIRY_AN, table.AIRY_AD)
    decay = decay / (2.0 * root.unary("sqrt") * exponent.unary("exp"))

    root = (-x).unary("sqrt")
    angle = -2.0 * x * root / 3.0
    z = 1.0 / angle
    square = z * z
    shifted = angle + math.pi / 4
    f = 1.0 + square * horner(square, table.AIRY_AFN) / horner(square, table.AIRY_AFD)
    g = z * ratio(square, table.AIRY_AGN, table.AIRY_AGD)
    wave = shifted.unary("sin") * f - shifted.unary("cos") * g
    wave = ROOT_HALF / root.unary("sqrt") * wave

    cube = x * x * x
    even, odd = _airy_series(x.dtype)
    middle = _AIRY_AT_0 * horner(cube, even) - _AIRY_SLOPE * (x * horner(cube, odd))
    return select(
        (x.unary("isinf"), math.nan),
        (x > 103.892, 0.0),
        (x < -2.09, wave),
        (x >= 2.09, decay),
        otherwise=middle,
    )


_AIRY_AT_0, _AIRY_SLOPE = 0.355028053887817239260, 0.258819403792806798405


def _airy_series(dtype: torch.dtype) -> tuple[list[float], list[float]]:
    """Return the two power series, in x^3, that solve Airy's equation.

    They have as many terms as matter below 2.09, where ATen sums until nothing changes.
    """
    even, odd = [1.0], [1.0]
    limit = torch.finfo(dtype).eps / 4
    while even[-1] * 2.09 ** (3 * len(even) - 3) > limit:
        k = 3 * len(even)
        even.append(even[-1] / (k * (k - 1)))
        odd.append(odd[-1] / (k * (k + 1)))
    return even[::-1], odd[::-1]


__all__ = [
    "ROOT_HALF",
    "airy_ai",
    "bessel_i",
    "bessel_j0",
    "bessel_j1",
    "bessel_k",
    "bessel_y",
    "spherical_bessel_j0",
]
