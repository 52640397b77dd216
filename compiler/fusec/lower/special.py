"""Special functions, composed of elementary ones.

The formulas and their cases are those of ATen's ``Math.h``, most of them from Cephes, so that
results agree with eager's to a few units in the last place, and exactly where they are zero,
infinite or NaN.  What is a branch there is a choice here: every case is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION

from fusec.ir import ops
from fusec.ir.node import Const, Node
from fusec.lower import polynomials as table
from fusec.lower.pointwise import element, map_elements, power, promoted
from fusec.lower.polynomials import Value, chebyshev, horner, ratio, select
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import Index, NotLowered, TensorValue, dense_meta

Operand = TensorValue | int | float | bool

_TO_FLOAT = PROMOTION.INT_TO_FLOAT
_ROOT = 1 / math.sqrt(math.pi)


# -- modified Bessel functions --------------------------------------------------------------


def _i_small(x: Value, order: int) -> Value:
    """Return exp(-x) I(x) for 0 <= x <= 8."""
    series = chebyshev(x / 2.0 - 2.0, table.I1_SMALL if order else table.I0_SMALL)
    return series * x if order else series


def _i_large(x: Value, order: int) -> Value:
    """Return exp(-x) sqrt(x) I(x) for x > 8."""
    return chebyshev(32.0 / x - 2.0, table.I1_LARGE if order else table.I0_LARGE)


def _bessel_i(x: Value, order: int, scaled: bool) -> Value:
    """Return I0 or I1, or that times exp(-abs(x))."""
    size = abs(x)
    small, large = _i_small(size, order), _i_large(size, order)
    if not scaled:
        growth = size.unary("exp")
        small, large = growth * small, growth * large
    result = select((size <= 8.0, small), otherwise=large / size.unary("sqrt"))
    return select((x < 0.0, -result), otherwise=result) if order else result


def _bessel_k(x: Value, order: int, scaled: bool) -> Value:
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


# -- Bessel functions -----------------------------------------------------------------------

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


def _bessel_y(x: Value, order: int) -> Value:
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


# -- Airy's function ------------------------------------------------------------------------


def airy_ai(x: Value) -> Value:
    """Return Airy's function Ai; NaN of infinities, as in eager."""
    root = x.unary("sqrt")
    exponent = 2.0 * x * root / 3.0
    decay = _ROOT * ratio(1.0 / exponent, table.AIRY_AN, table.AIRY_AD)
    decay = decay / (2.0 * root.unary("sqrt") * exponent.unary("exp"))

    root = (-x).unary("sqrt")
    angle = -2.0 * x * root / 3.0
    z = 1.0 / angle
    square = z * z
    shifted = angle + math.pi / 4
    f = 1.0 + square * horner(square, table.AIRY_AFN) / horner(square, table.AIRY_AFD)
    g = z * ratio(square, table.AIRY_AGN, table.AIRY_AGD)
    wave = shifted.unary("sin") * f - shifted.unary("cos") * g
    wave = _ROOT / root.unary("sqrt") * wave

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


# -- the normal distribution ----------------------------------------------------------------


def erfcx(x: Value) -> Value:
    """Return exp(x^2) erfc(x)."""
    size, square = abs(x), x * x
    growth, inverse = square.unary("exp"), 1.0 / square
    small = growth * (1.0 - size * ratio(square, table.ERF_P, table.ERF_Q))
    tail = inverse * ratio(inverse, table.ERFCX_FAR_P, table.ERFCX_FAR_Q)
    above = select(
        (size <= 0.46875, small),
        (size <= 4.0, ratio(size, table.ERFCX_P, table.ERFCX_Q)),
        # also for a NaN, which goes through
        otherwise=(_ROOT - tail) / size,
    )
    below = select((x < -26.7, math.inf), otherwise=2.0 * growth - above)
    return select((x < 0.0, below), otherwise=above)


def ndtri(x: Value) -> Value:
    """Return the argument at which the normal distribution function is x."""
    edge = 0.13533528323661269189  # exp(-2)
    upper = x > 1.0 - edge
    y = select((upper, 1.0 - x), otherwise=x)
    middle = y - 0.5
    square = middle * middle
    bend = square * horner(square, table.NDTRI_P0) / horner(square, table.NDTRI_Q0)
    middle = (middle + middle * bend) * 2.50662827463100050242

    large = (-2.0 * y.unary("log")).unary("sqrt")
    z = 1.0 / large
    fix = select(
        (large < 8.0, z * horner(z, table.NDTRI_P1) / horner(z, table.NDTRI_Q1)),
        otherwise=z * horner(z, table.NDTRI_P2) / horner(z, table.NDTRI_Q2),
    )
    tail = large - large.unary("log") / large - fix
    return select(
        (x.equals(0.0), -math.inf),
        (x.equals(1.0), math.inf),
        (x < 0.0, math.nan),
        (x > 1.0, math.nan),
        (y > edge, middle),
        (upper, tail),
        otherwise=-tail,
    )


def log_ndtr(x: Value) -> Value:
    """Return the logarithm of the normal distribution function."""
    t = x * math.sqrt(0.5)
    tail = (erfcx(-t) / 2.0).unary("log") - t * t
    return select((x < -1.0, tail), otherwise=(-(t.unary("erfc") / 2.0)).unary("log1p"))


_FUNCTIONS: dict[object, Callable[[Value], Value]] = {
    aten.i0: lambda x: _bessel_i(x, 0, scaled=False),
    aten.special_i0e: lambda x: _bessel_i(x, 0, scaled=True),
    aten.special_i1: lambda x: _bessel_i(x, 1, scaled=False),
    aten.special_i1e: lambda x: _bessel_i(x, 1, scaled=True),
    aten.special_modified_bessel_i0: lambda x: _bessel_i(x, 0, scaled=False),
    aten.special_modified_bessel_i1: lambda x: _bessel_i(x, 1, scaled=False),
    aten.special_modified_bessel_k0: lambda x: _bessel_k(x, 0, scaled=False),
    aten.special_modified_bessel_k1: lambda x: _bessel_k(x, 1, scaled=False),
    aten.special_scaled_modified_bessel_k0: lambda x: _bessel_k(x, 0, scaled=True),
    aten.special_scaled_modified_bessel_k1: lambda x: _bessel_k(x, 1, scaled=True),
    aten.special_bessel_j0: bessel_j0,
    aten.special_bessel_j1: bessel_j1,
    aten.special_bessel_y0: lambda x: _bessel_y(x, 0),
    aten.special_bessel_y1: lambda x: _bessel_y(x, 1),
    aten.special_spherical_bessel_j0: spherical_bessel_j0,
    aten.special_airy_ai: airy_ai,
    aten.special_erfcx: erfcx,
    aten.special_ndtri: ndtri,
    aten.special_log_ndtr: log_ndtr,
    aten.angle: lambda x: select((x < 0.0, math.pi), (x.unary("isnan"), x), otherwise=x.of(0.0)),
}


def _register(target: object, function: Callable[[Value], Value]) -> None:
    @register(target)
    def rule(lowering: Lowering, x: Operand) -> TensorValue:
        return map_elements(lowering, (x,), lambda v: function(Value(v)).node, _TO_FLOAT)


for _target, _function in _FUNCTIONS.items():
    _register(_target, _function)


# -- zeta and polygamma ---------------------------------------------------------------------


def hurwitz(s: Value, q: Value) -> Value:
    """Return the sum of (q + k)^-s over k >= 0 for s > 1 and q > 0: Cephes' ``zeta``.

    Nine terms more, and what Euler and Maclaurin's formula says of those that follow.
    """
    total, a = _inverse_power(q, s), q
    for _ in range(9):
        a = a + 1.0
        term = _inverse_power(a, s)
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


def _is_whole(x: Value) -> Value:
    if isinstance(x.node, Const):
        return Value(ops.const(x.node.value % 1 == 0, torch.bool))
    return x.equals(x.unary("floor"))


def zeta(s: Value, q: Value) -> Value:
    """Return Hurwitz' zeta function; below 0 it is there for whole s only.

    There, ATen adds up all terms from q on.  With f = q - floor(q), those of q + k > 0 are
    zeta(s, f), and the others are, but for their sign, zeta(s, 1 - f) without zeta(s, 1 - q).
    """
    positive = q > 0.0
    # 1 - f is exact where it matters, close to the pole at 0
    above = hurwitz(s, select((positive, q), otherwise=q - q.unary("floor")))
    below, rest = hurwitz(s, q.unary("ceil") - q), hurwitz(s, 1.0 - q)
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
    return total * _rounded(math.gamma(order + 1.0) * (1 if order % 2 else -1), x.node)


def _accumulated(lowering: Lowering, node: Node) -> Value:
    """Return an argument of zeta in the type that eager adds up in: on a CPU, float64."""
    wide = node.dtype == torch.float32 and lowering.meta().dtype == torch.float32
    wide = wide and lowering.meta().device.type == "cpu"
    return Value(ops.cast(node, torch.float64) if wide else node)


@register(aten.special_zeta)
def special_zeta(lowering: Lowering, s: Operand, q: Operand) -> TensorValue:
    """Return Hurwitz' zeta function."""

    def value(a: Node, b: Node) -> Node:
        return zeta(_accumulated(lowering, a), _accumulated(lowering, b)).node

    return map_elements(lowering, (s, q), value, _TO_FLOAT)


@register(aten.polygamma)
def polygamma_rule(lowering: Lowering, order: int, x: TensorValue) -> TensorValue:
    """Return a derivative of the digamma function."""
    if order > 170:
        raise NotLowered("polygamma of an order whose factorial overflows")

    def value(v: Node) -> Node:
        return polygamma(order, _accumulated(lowering, v) if order > 1 else Value(v)).node

    return map_elements(lowering, (x,), value, _TO_FLOAT)


# -- powers, exponents and rounding ---------------------------------------------------------


@register(aten.ldexp)
def ldexp(lowering: Lowering, x: TensorValue, other: TensorValue) -> TensorValue:
    """Return x * 2^other: of a float and an integer exactly, else by a power and a product."""
    if x.dtype.is_floating_point and not other.dtype.is_floating_point:
        if other.dtype == torch.bool:
            raise NotLowered("eager takes no bool for an exponent")

        def value(index: Index) -> Node:
            exponent = ops.cast(element(other, index, other.dtype), torch.int32)
            return _scaled(Value(element(x, index, ops.compute_dtype(x.dtype))), exponent).node

        return lowering.pointwise(value)
    compute, dtype = promoted((2.0, other))

    def power_of_two(index: Index) -> Node:
        # the power has a type, and a rounding, of its own
        return ops.cast(ops.unary("exp2", element(other, index, compute)), dtype)

    factor = lowering.lazy(power_of_two, dense_meta(other.shape, dtype, other.device))
    return map_elements(lowering, (x, factor), lambda a, b: ops.binary("mul", a, b))


def _scaled(x: Value, exponent: Node) -> Value:
    """Return x * 2^exponent, rounded once.

    Three factors that are powers of two in the type's range; the largest one comes last, and
    leaves nothing of what an earlier one had to round.
    """
    largest = 1000.0 if x.dtype == torch.float64 else 120.0
    rest, factors = Value(ops.cast(exponent, x.dtype)), []
    for limit in (largest, largest, largest / 2):
        part = rest.binary("minimum", limit).binary("maximum", -limit)
        factors.append(part.unary("exp2"))
        rest = rest - part
    for factor in reversed(factors):
        x = x * factor
    return x


@register(aten.frexp.Tensor)
def frexp(lowering: Lowering, x: TensorValue) -> tuple[TensorValue, TensorValue]:
    """Return the mantissa, at least 0.5 and less than 1 in size, and the exponent of 2."""

    def parts(index: Index) -> tuple[Value, Value]:
        value = Value(x.compute(index))
        # rounded, so that it may be off by one
        exponent = abs(value).unary("log2").unary("floor") + 1.0
        # in two steps, neither of which leaves the range of the type
        half = (0.5 * exponent).unary("floor")
        mantissa = value * (-half).unary("exp2") * (half - exponent).unary("exp2")
        size = abs(mantissa)
        high, low = size >= 1.0, size < 0.5
        mantissa = select((high, 0.5 * mantissa), (low, 2.0 * mantissa), otherwise=mantissa)
        exponent = select((high, exponent + 1.0), (low, exponent - 1.0), otherwise=exponent)
        regular = (abs(value) > 0.0) & (abs(value) < math.inf)
        return (
            select((regular, mantissa), otherwise=value),
            select((regular, exponent), otherwise=value.of(0.0)),
        )

    mantissa = lowering.pointwise(lambda index: parts(index)[0].node, 0)
    exponent = lowering.pointwise(lambda index: ops.cast(parts(index)[1].node, torch.int32), 1)
    return mantissa, exponent


@register(aten.round.decimals)
def round_decimals(lowering: Lowering, x: TensorValue, *, decimals: int = 0) -> TensorValue:
    """Round to a number of decimals, or to tens, hundreds, ... where it is negative."""
    if not x.dtype.is_floating_point:
        raise NotLowered("integers are rounded to decimals")

    def value(v: Node) -> Node:
        exact = Value(v)
        if decimals == 0:
            return exact.unary("round").node
        scale = _rounded(float(f"1e{abs(decimals)}"), v)
        if decimals < 0:
            return ((exact / scale).unary("round") * scale).node
        return ((exact * scale).unary("round") / scale).node

    return map_elements(lowering, (x,), value)


def _rounded(number: float, like: Node) -> float:
    """Return a number as the type of a node has it: infinite, where that ends earlier."""
    return torch.tensor(number, dtype=torch.float64).to(like.dtype).item()


@register(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def tensor_power(lowering: Lowering, x: Operand, y: TensorValue) -> TensorValue:
    """Return x ** y; of integers, 1 / x ** -y rounded to zero for a negative y."""
    dtype, _ = promoted((x, y))
    if dtype.is_floating_point:
        return power(lowering, x, y)
    if dtype == torch.bool:
        raise NotLowered("a power of bools")
    return map_elements(lowering, (x, y), lambda a, b: ops.binary("pow", a, b))


# -- common divisors ------------------------------------------------------------------------


def _divisor(x: Node, y: Node) -> Node:
    """Return the greatest common divisor by Euclid's algorithm, with the steps it may need."""
    bits = torch.iinfo(x.dtype).bits
    zero, one = ops.const(0, x.dtype), ops.const(1, x.dtype)
    # neighbors in Fibonacci's sequence need the most
    steps, a, b = 1, 1, 1
    while b <= 2**bits:
        steps, a, b = steps + 1, b, a + b
    for _ in range(steps):
        done = ops.binary("eq", x, zero)
        rest = ops.binary("fmod", y, ops.where(done, one, x))
        x, y = rest, ops.where(done, y, x)
    return y


@register(aten.gcd.default, aten.lcm.default)
def gcd_lcm(lowering: Lowering, x: TensorValue, y: TensorValue) -> TensorValue:
    """Return the greatest common divisor, or the least common multiple."""
    dtype, _ = promoted((x, y))
    if dtype.itemsize > 4:
        raise NotLowered(
            "gcd of 64-bit integers takes up to 91 divisions; ATen's loop mostly ends after a few"
        )

    def value(a: Node, b: Node) -> Node:
        if dtype.is_signed:
            a, b = ops.unary("abs", a), ops.unary("abs", b)
        divisor = _divisor(a, b)
        if lowering.label == "gcd":
            return divisor
        zero = ops.binary("eq", divisor, ops.const(0, dtype))
        divisor = ops.where(zero, ops.const(1, dtype), divisor)
        product = ops.binary("mul", ops.binary("truncdiv", a, divisor), b)
        # of narrower types, eager takes the product's size as an int and cuts it off then
        return ops.unary("abs", product) if dtype == torch.int32 else product

    return map_elements(lowering, (x, y), value)
