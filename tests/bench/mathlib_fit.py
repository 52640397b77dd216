"""Where the constants of the C++ maths library come from: minimax fits with rounded coefficients.

`python tests/bench/mathlib_fit.py NAME...` prints the polynomial of each fit as C, highest power
first, with its error before and after rounding; with no name, the list. Remez's exchange at 60
digits finds the best polynomial. Its coefficients are then rounded one by one from the lowest
power, and the rest is fitted again each time, so that it makes up for what rounding took away;
where that is worse, because 0 is inside the interval, all are rounded at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import mpmath as mp

mp.mp.dps = 60
Function = Callable[[mp.mpf], mp.mpf]


@dataclass(frozen=True)
class Fit:
    """Approximate `f` on [a, b] by the sum of c_i x^i, i < `terms`; `w` weighs the error."""

    f: Function
    w: Function
    a: object
    b: object
    terms: int
    bits: int = 24


def memo(function: Function) -> Function:
    seen: dict[mp.mpf, mp.mpf] = {}

    def call(x: mp.mpf) -> mp.mpf:
        if x not in seen:
            seen[x] = function(x)
        return seen[x]

    return call


def remez(f: Function, w: Function, powers: Sequence[int], a: mp.mpf, b: mp.mpf) -> list[mp.mpf]:
    """Return the coefficients that make the largest |w (p - f)| on [a, b] smallest."""
    n = len(powers)

    def nodes(count: int) -> list[mp.mpf]:
        middle, reach = (a + b) / 2, (b - a) / 2
        return sorted(middle + reach * mp.cos(mp.pi * (k + 0.5) / count) for k in range(count))

    points, grid = nodes(n + 1), nodes(max(120, 16 * n))
    best, best_error = [mp.mpf(0)] * n, mp.inf
    for _ in range(15):
        matrix, right = mp.matrix(n + 1, n + 1), mp.matrix(n + 1, 1)
        for i, x in enumerate(points):
            for j, power in enumerate(powers):
                matrix[i, j] = w(x) * x**power
            matrix[i, n] = (-1) ** i
            right[i] = w(x) * f(x)
        solution = mp.lu_solve(matrix, right)
        c = [solution[j] for j in range(n)]
        error = [w(x) * (horner(c, powers, x) - f(x)) for x in grid]
        largest = max(abs(e) for e in error)
        if largest < best_error:
            best, best_error = c, largest
        if largest < abs(solution[n]) * 1.0001:
            break
        extrema: list[int] = []
        for i, e in enumerate(error):
            if not extrema or (e > 0) != (error[extrema[-1]] > 0):
                extrema.append(i)
            elif abs(e) > abs(error[extrema[-1]]):
                extrema[-1] = i
        while len(extrema) > n + 1:
            extrema.pop(0 if abs(error[extrema[0]]) < abs(error[extrema[-1]]) else -1)
        if len(extrema) < n + 1:
            break
        points = [grid[i] for i in extrema]
    return best


def horner(c: Sequence[mp.mpf], powers: Sequence[int], x: mp.mpf) -> mp.mpf:
    result = mp.mpf(0)
    for i in range(len(c) - 1, -1, -1):
        below = powers[i - 1] if i else 0
        result = (result + c[i]) * x ** (powers[i] - below)
    return result


def rounded(x: mp.mpf, bits: int) -> mp.mpf:
    mantissa, exponent = mp.frexp(x)
    return mp.ldexp(mp.nint(mp.ldexp(mantissa, bits)), exponent - bits)


def solve(fit: Fit) -> tuple[list[mp.mpf], mp.mpf, mp.mpf]:
    """Return the rounded coefficients, lowest first, and the error before and after rounding."""
    f, w, a, b = memo(fit.f), memo(fit.w), mp.mpf(fit.a), mp.mpf(fit.b)
    powers = list(range(fit.terms))
    check = [a + (b - a) * (k + mp.mpf("0.37")) / 500 for k in range(500)]

    def error(c: Sequence[mp.mpf]) -> mp.mpf:
        return max(abs(w(x) * (horner(c, range(len(c)), x) - f(x))) for x in check)

    fixed: list[mp.mpf] = []
    free = remez(f, w, powers, a, b)
    before = error(free)
    at_once = [rounded(c, fit.bits) for c in free]
    while len(fixed) < fit.terms:
        fixed.append(rounded(free[0], fit.bits))
        left = powers[len(fixed) :]
        if left:
            free = remez(less(f, fixed), w, left, a, b)
    return min((fixed, before, error(fixed)), (at_once, before, error(at_once)), key=lambda r: r[2])


def less(f: Function, c: Sequence[mp.mpf]) -> Function:
    """Return what a polynomial with these coefficients leaves of f."""
    done = list(c)
    return memo(lambda x: f(x) - horner(done, range(len(done)), x))


def hexadecimal(c: mp.mpf, bits: int) -> str:
    text = float(c).hex()
    mantissa, exponent = text.split("p")
    digits = 6 if bits == 24 else 13
    whole, _, fraction = mantissa.partition(".")
    return f"{whole}.{fraction[:digits].ljust(digits, '0')}p{exponent}" + "f" * (bits == 24)


def near_zero(f: Function, limit: object) -> Function:
    """Give a removable singularity at 0 its value."""
    return lambda x: f(x) if abs(x) > mp.mpf(10) ** -16 else mp.mpf(limit)


LN2 = mp.log(2)
HALF_LN2 = LN2 / 2 * mp.mpf("1.003")
LOW, HIGH = mp.sqrt(mp.mpf("0.5")) - 1, mp.sqrt(mp.mpf(2)) - 1
root = mp.sqrt


def exp_tail(r: mp.mpf) -> mp.mpf:
    return mp.hyp1f1(1, 3, r) / 2  # (exp(r) - 1 - r) / r^2


def log_tail(f: mp.mpf) -> mp.mpf:
    return mp.hyp2f1(1, 3, 4, -f) / 3  # (log(1 + f) - f + f^2 / 2) / f^3


def log_s_tail(z: mp.mpf) -> mp.mpf:
    s = root(z)
    return near_zero(lambda z: (2 * mp.atanh(s) / s - 2) / z, mp.mpf(2) / 3)(z)


def exp_fit(terms: int, bits: int) -> Fit:
    return Fit(exp_tail, lambda r: r * r / mp.exp(r), -HALF_LN2, HALF_LN2, terms, bits)


def expm1_fit(terms: int, bits: int) -> Fit:
    weight = near_zero(lambda r: r * r / mp.expm1(r), 0)
    return Fit(exp_tail, weight, -HALF_LN2, HALF_LN2, terms, bits)


def exp2_fit(terms: int, bits: int) -> Fit:
    return Fit(
        near_zero(lambda r: mp.expm1(r * LN2) / r, LN2), lambda r: r / 2**r, -0.5, 0.5, terms, bits
    )


def twice_exp2_fit(terms: int, bits: int) -> Fit:
    """Twice the power of 2; that of 0 is as near as the others."""
    return Fit(lambda r: 2 ** (r + 1), lambda r: 2 ** (-r - 1), -0.5, 0.5, terms, bits)


def log_fit(terms: int, bits: int) -> Fit:
    weight = near_zero(lambda f: f**3 / mp.log1p(f), 0)
    return Fit(log_tail, weight, LOW, HIGH, terms, bits)


def log_s_fit(terms: int, bits: int) -> Fit:
    """(log((1 + s) / (1 - s)) / s - 2) / s^2 in s^2, error relative to the logarithm."""
    top = (HIGH / (2 + HIGH)) ** 2 * mp.mpf("1.01")
    return Fit(log_s_tail, lambda z: z / 2, 0, top, terms, bits)


def log_parts_fit(terms: int, bits: int) -> Fit:
    """As above for 1 + f from 3/4 to 3/2."""
    return Fit(log_s_tail, lambda z: z / 2, 0, mp.mpf("0.0401"), terms, bits)


def log_tail_fit(terms: int, bits: int) -> Fit:
    """((log((1 + s) / (1 - s)) / s - 2) / s^2 - 2/3) / s^2 in s^2, error as above."""
    top = (HIGH / (2 + HIGH)) ** 2 * mp.mpf("1.01")
    f = near_zero(lambda z: (log_s_tail(z) - mp.mpf(2) / 3) / z, mp.mpf(2) / 5)
    return Fit(f, lambda z: z * z / 2, 0, top, terms, bits)


def log2_fit(terms: int, bits: int) -> Fit:
    """log2(1 + f) / f in f, error relative to the logarithm."""
    f = near_zero(lambda f: mp.log1p(f) / f / LN2, 1 / LN2)
    return Fit(f, lambda x: 1 / f(x), LOW, HIGH, terms, bits)


def tanh_fit(top: str, terms: int, bits: int) -> Fit:
    f = near_zero(lambda z: (mp.tanh(root(z)) / root(z) - 1) / z, -mp.mpf(1) / 3)
    weight = near_zero(lambda z: z * root(z) / mp.tanh(root(z)), 0)
    return Fit(f, weight, 0, mp.mpf(top) ** 2, terms, bits)


def sinh_fit(terms: int, bits: int) -> Fit:
    f = near_zero(lambda z: (mp.sinh(root(z)) / root(z) - 1) / z, mp.mpf(1) / 6)
    weight = near_zero(lambda z: z * root(z) / mp.sinh(root(z)), 0)
    return Fit(f, weight, 0, 1, terms, bits)


def erf_near_fit(top: str, terms: int, bits: int) -> Fit:
    f = near_zero(lambda z: mp.erf(root(z)) / root(z) - 1, 2 / root(mp.pi) - 1)
    return Fit(f, lambda z: 1 / (f(z) + 1), 0, mp.mpf(top) ** 2, terms, bits)


def erf_far_fit(low: str, high: str, terms: int, bits: int) -> Fit:
    """log(erfc(t)) / t + 1 in t, error relative to erf."""
    return Fit(
        lambda t: mp.log(mp.erfc(t)) / t + 1,
        lambda t: mp.erfc(t) * t / mp.erf(t),
        mp.mpf(low),
        mp.mpf(high),
        terms,
        bits,
    )


def erf_power_fit(low: str, high: str, terms: int, bits: int) -> Fit:
    """log2(erfc(t)) / t in t, error relative to erf."""
    return Fit(
        lambda t: mp.log(mp.erfc(t), 2) / t,
        lambda t: mp.erfc(t) * t * LN2 / mp.erf(t),
        mp.mpf(low),
        mp.mpf(high),
        terms,
        bits,
    )


def one_plus_erf_fit(high: str, terms: int, bits: int) -> Fit:
    """log2(erfc(t)) / t in t, absolute error of erfc."""
    start = -2 / root(mp.pi) / mp.log(2)
    return Fit(
        lambda t: mp.log(mp.erfc(t), 2) / t if t else start,
        lambda t: mp.erfc(t) * t * LN2,
        mp.mpf(0),
        mp.mpf(high),
        terms,
        bits,
    )


def gelu_slope_fit(scale: str, high: str, terms: int, bits: int) -> Fit:
    """exp(x^2 / 2) (1 - normal distribution) in 1 / (1 + scale x), absolute error of that tail."""

    def x(t: mp.mpf) -> mp.mpf:
        return (1 / t - 1) / mp.mpf(scale)

    return Fit(
        lambda t: mp.exp(x(t) ** 2 / 2) * mp.erfc(x(t) / root(2)) / 2,
        lambda t: mp.exp(-(x(t) ** 2) / 2),
        1 / (1 + mp.mpf(scale) * mp.mpf(high)),
        1,
        terms,
        bits,
    )


def one_plus_erf_for_half_fit(high: str, terms: int, bits: int, least: int) -> Fit:
    """log2(erfc(t)) / t in t, error relative to erfc, or to 2^least where that is more."""
    plain = one_plus_erf_fit(high, terms, bits)
    floor = mp.mpf(2) ** least
    return replace(plain, w=lambda t: min(1, mp.erfc(t) / floor) * t * LN2)


def erfcx_fit(centre: int, high: str, terms: int, bits: int) -> Fit:
    """(1 + 2 x) exp(x^2) erfc(x) in u = (x - c) / (x + c), relative error."""

    def f(u: mp.mpf) -> mp.mpf:
        x = centre * (1 + u) / (1 - u)
        return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)

    top = mp.mpf(high)
    return Fit(f, lambda u: 1 / f(u), -1, (top - centre) / (top + centre), terms, bits)


def erfcx_sum_fit(centre: int, high: str, terms: int, bits: int) -> Fit:
    """(c + x) exp(x^2) erfc(x) in u = (x - c) / (x + c), relative error; its first term is used
    in two parts, of which this prints one."""

    def f(u: mp.mpf) -> mp.mpf:
        x = centre * (1 + u) / (1 - u)
        return (centre + x) * mp.exp(x * x) * mp.erfc(x)

    top = mp.mpf(high)
    return Fit(f, lambda u: 1 / f(u), -1, (top - centre) / (top + centre), terms, bits)


def atan_fit(terms: int, bits: int) -> Fit:
    f = near_zero(lambda z: (mp.atan(root(z)) / root(z) - 1) / z, -mp.mpf(1) / 3)
    weight = near_zero(lambda z: z * root(z) / mp.atan(root(z)), 0)
    return Fit(f, weight, 0, 1, terms, bits)


def asin_fit(terms: int, bits: int) -> Fit:
    f = near_zero(lambda z: (mp.asin(root(z)) / root(z) - 1) / z, mp.mpf(1) / 6)
    weight = near_zero(lambda z: z * root(z) / mp.asin(root(z)), 0)
    return Fit(f, weight, 0, mp.mpf("0.3601"), terms, bits)


def erfinv_of(w: mp.mpf) -> mp.mpf:
    """erfinv(y) / y as a function of w = -log(1 - y^2)."""
    y = root(-mp.expm1(-w))
    return mp.erfinv(y) / y if w > mp.mpf(10) ** -30 else root(mp.pi) / 2


def erfinv_single_near_fit(terms: int, bits: int) -> Fit:
    """erfinv(y) / y - 1 in -w, for w < 6, as for floats; error relative to erfinv."""
    return Fit(lambda v: erfinv_of(-v) - 1, lambda v: 1 / erfinv_of(-v), -6, 0, terms, bits)


def erfinv_single_far_fit(center: str, terms: int, bits: int) -> Fit:
    """As above in sqrt(w) less a number of which it is a float, for w > 6, which ends at 16.0."""
    c = mp.mpf(float.fromhex(center))

    def f(v: mp.mpf) -> mp.mpf:
        return erfinv_of((v + c) ** 2) - 1

    return Fit(f, lambda v: 1 / (f(v) + 1), root(6) - c, root(mp.mpf("16.1")) - c, terms, bits)


def log_rough_fit(terms: int, bits: int) -> Fit:
    """(log(1 + f) - f) / f^2 in f, absolute error of the logarithm."""
    f = near_zero(lambda f: (mp.log1p(f) - f) / f**2, -mp.mpf(1) / 2)
    return Fit(f, lambda f: f * f, LOW, HIGH, terms, bits)


def lgamma_fit(terms: int, bits: int) -> Fit:
    """lgamma(2 + t) / t in t, relative error."""
    f = near_zero(lambda t: mp.loggamma(2 + t) / t, 1 - mp.euler)
    return Fit(f, lambda t: 1 / f(t), mp.mpf("-0.5"), mp.mpf("0.5"), terms, bits)


def stirling_fit(terms: int, bits: int) -> Fit:
    """z times what Stirling's formula lacks, in 1 / z^2 for z > 8, error relative to lgamma(z)."""

    def f(u: mp.mpf) -> mp.mpf:
        if u < mp.mpf(10) ** -12:
            return mp.mpf(1) / 12 - u / 360
        z = 1 / root(u)
        formula = (z - mp.mpf("0.5")) * mp.log(z) - z + mp.log(2 * mp.pi) / 2
        return (mp.loggamma(z) - formula) * z

    def weight(u: mp.mpf) -> mp.mpf:
        z = 1 / root(max(u, mp.mpf(10) ** -12))
        return 1 / (z * mp.loggamma(z))

    return Fit(f, weight, 0, mp.mpf(1) / 64, terms, bits)


def sine_of_pi_fit(terms: int, bits: int) -> Fit:
    """sin(pi r) / (pi r) in r^2 for r up to 1/2, relative error."""
    f = near_zero(lambda z: mp.sinpi(root(z)) / (mp.pi * root(z)), 1)
    return Fit(f, lambda z: 1 / f(z), 0, mp.mpf("0.2501"), terms, bits)


QUARTER = (mp.pi / 4) ** 2 * mp.mpf("1.001")


def sin_fit(terms: int, bits: int) -> Fit:
    f = near_zero(lambda z: (mp.sin(root(z)) / root(z) - 1) / z, -mp.mpf(1) / 6)
    weight = near_zero(lambda z: z * root(z) / mp.sin(root(z)), 0)
    return Fit(f, weight, 0, QUARTER, terms, bits)


def cos_fit(terms: int, bits: int) -> Fit:
    f = near_zero(lambda z: (mp.cos(root(z)) - 1 + z / 2) / z**2, mp.mpf(1) / 24)
    return Fit(f, lambda z: z * z / mp.cos(root(z)), 0, QUARTER, terms, bits)


def tan_fit(terms: int, bits: int) -> Fit:
    f = near_zero(lambda z: (mp.tan(root(z)) / root(z) - 1) / z, mp.mpf(1) / 3)
    weight = near_zero(lambda z: z * root(z) / mp.tan(root(z)), 0)
    return Fit(f, weight, 0, QUARTER, terms, bits)


FITS: dict[str, Callable[[], Fit]] = {
    "exp.f32": lambda: exp_fit(5, 24),
    "exp.f64": lambda: exp_fit(10, 53),
    "exp2.f32": lambda: exp2_fit(6, 24),
    "exp2.f64": lambda: exp2_fit(11, 53),
    "expm1.f32": lambda: expm1_fit(6, 24),
    "expm1.f64": lambda: expm1_fit(11, 53),
    "log.f32": lambda: log_fit(8, 24),
    "log.f64": lambda: log_s_fit(7, 53),
    "log_short.f64": lambda: log_s_fit(4, 53),
    "exp_short.f64": lambda: exp_fit(5, 53),
    "expm1_short.f64": lambda: expm1_fit(6, 53),
    "tanh.f32": lambda: tanh_fit("0.6", 5, 24),
    "sinh.f32": lambda: sinh_fit(4, 24),
    "sinh.f64": lambda: sinh_fit(8, 53),
    "erf_near.f32": lambda: erf_near_fit("0.93", 6, 24),
    "erf_far.f32": lambda: erf_power_fit("0.92", "4", 7, 24),
    "one_plus_erf.f32": lambda: one_plus_erf_fit("4.2", 8, 24),
    "gelu_slope.f32": lambda: gelu_slope_fit("0.36", "7", 7, 24),
    "one_plus_erf_for_half.f32": lambda: one_plus_erf_for_half_fit("4.6", 7, 24, -20),
    "one_plus_erf_for_bfloat16.f32": lambda: one_plus_erf_for_half_fit("4.6", 5, 24, -17),
    "exp2_for_half.f32": lambda: exp2_fit(4, 24),
    "twice_exp2_for_bfloat16.f32": lambda: twice_exp2_fit(4, 24),
    "exp2_short.f32": lambda: exp2_fit(5, 24),
    "erf_near.f64": lambda: erf_near_fit("1", 12, 53),
    "erf_half.f64": lambda: erf_near_fit("0.5", 9, 53),
    "erf_far.f64": lambda: erf_far_fit("1", "6.1", 20, 53),
    "erfcx.f32": lambda: erfcx_sum_fit(2, "10.12", 11, 24),
    "erfcx.f64": lambda: erfcx_fit(4, "27.5", 24, 53),
    "erfcx_short.f64": lambda: erfcx_fit(4, "10.6", 12, 53),
    "atan.f32": lambda: atan_fit(8, 24),
    "atan.f64": lambda: atan_fit(19, 53),
    "asin.f32": lambda: asin_fit(6, 24),
    "asin.f64": lambda: asin_fit(15, 53),
    "sin.f32": lambda: sin_fit(4, 24),
    "cos.f32": lambda: cos_fit(3, 24),
    "sin.f64": lambda: sin_fit(7, 53),
    "cos.f64": lambda: cos_fit(7, 53),
    "tan.f32": lambda: tan_fit(7, 24),
    "erfinv_log.f64": lambda: log_rough_fit(18, 53),
    "erfinv_near.f32": lambda: erfinv_single_near_fit(11, 24),
    "erfinv_log.f32": lambda: log_rough_fit(7, 24),
    "erfinv_far.f32": lambda: erfinv_single_far_fit("0x1.800056p+1", 9, 24),
    "lgamma.f64": lambda: lgamma_fit(20, 53),
    "lgamma_short.f64": lambda: lgamma_fit(14, 53),
    "stirling.f64": lambda: stirling_fit(7, 53),
    "stirling_short.f64": lambda: stirling_fit(4, 53),
    "sine_of_pi.f64": lambda: sine_of_pi_fit(9, 53),
    "sine_of_pi_short.f64": lambda: sine_of_pi_fit(7, 53),
    "log_parts.f64": lambda: log_parts_fit(8, 53),
    "log_middle.f64": lambda: log_s_fit(5, 53),
    "log_tail.f64": lambda: log_tail_fit(8, 53),
    "log2_pow.f64": lambda: log2_fit(14, 53),
    "exp2_pow.f64": lambda: exp2_fit(7, 53),
}


def main(names: Sequence[str]) -> None:
    if not names:
        print("\n".join(FITS))
    for name in names:
        c, before, after = solve(FITS[name]())
        bits = FITS[name]().bits
        print(f"{name}: 2^{float(mp.log(before, 2)):.1f}, rounded 2^{float(mp.log(after, 2)):.1f}")
        print("\n".join(f"    {hexadecimal(x, bits)}" for x in reversed(c)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
