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
from fusec.ir.node import Node
from fusec.lower.pointwise.arithmetic import power
from fusec.lower.pointwise.elementwise import element, map_elements, promoted
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.special import polynomials as table
from fusec.lower.special.bessel import (
    ROOT_HALF,
    airy_ai,
    bessel_i,
    bessel_j0,
    bessel_j1,
    bessel_k,
    bessel_y,
    spherical_bessel_j0,
)
from fusec.lower.special.polynomials import Value, horner, ratio, select
from fusec.lower.special.zeta import nearest_whole, polygamma, zeta
from fusec.lower.values import Index, NotLowered, TensorValue, dense_meta

Operand = TensorValue | int | float | bool

_TO_FLOAT = PROMOTION.INT_TO_FLOAT


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
        otherwise=(ROOT_HALF - tail) / size,
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
    aten.i0: lambda x: bessel_i(x, 0, scaled=False),
    aten.special_i0e: lambda x: bessel_i(x, 0, scaled=True),
    aten.special_i1: lambda x: bessel_i(x, 1, scaled=False),
    aten.special_i1e: lambda x: bessel_i(x, 1, scaled=True),
    aten.special_modified_bessel_i0: lambda x: bessel_i(x, 0, scaled=False),
    aten.special_modified_bessel_i1: lambda x: bessel_i(x, 1, scaled=False),
    aten.special_modified_bessel_k0: lambda x: bessel_k(x, 0, scaled=False),
    aten.special_modified_bessel_k1: lambda x: bessel_k(x, 1, scaled=False),
    aten.special_scaled_modified_bessel_k0: lambda x: bessel_k(x, 0, scaled=True),
    aten.special_scaled_modified_bessel_k1: lambda x: bessel_k(x, 1, scaled=True),
    aten.special_bessel_j0: bessel_j0,
    aten.special_bessel_j1: bessel_j1,
    aten.special_bessel_y0: lambda x: bessel_y(x, 0),
    aten.special_bessel_y1: lambda x: bessel_y(x, 1),
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


def _adds_up_in_float64(lowering: Lowering) -> bool:
    """Whether eager adds up the terms of float32's zeta in float64: on a CPU."""
    return lowering.meta().dtype == torch.float32 and lowering.meta().device.type == "cpu"


@register(aten.special_zeta)
def special_zeta(lowering: Lowering, s: Operand, q: Operand) -> TensorValue:
    """Return Hurwitz' zeta function."""
    wide = _adds_up_in_float64(lowering)

    def value(*arguments: Node) -> Node:
        if wide:
            arguments = tuple(ops.cast(each, torch.float64) for each in arguments)
        return zeta(*map(Value, arguments), rounded=wide).node

    return map_elements(lowering, (s, q), value, _TO_FLOAT)


@register(aten.polygamma)
def polygamma_rule(lowering: Lowering, order: int, x: TensorValue) -> TensorValue:
    """Return a derivative of the digamma function."""
    if order > 170:
        raise NotLowered("polygamma of an order whose factorial overflows")

    wide = order > 1 and _adds_up_in_float64(lowering)

    def value(v: Node) -> Node:
        return polygamma(order, Value(ops.cast(v, torch.float64) if wide else v)).node

    return map_elements(lowering, (x,), value, _TO_FLOAT)


# -- powers, exponents and rounding ---------------------------------------------------------


@register(aten.ldexp)
def ldexp(lowering: Lowering, x: TensorValue, other: TensorValue) -> TensorValue:
    """Return x * 2^other: of a float and an integer exactly, else by a power and a product."""
    if x.dtype.is_floating_point and not other.dtype.is_floating_point:
        if other.dtype == torch.bool:
            raise NotLowered("eager does not take a bool for an exponent")

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
        scale = nearest_whole(float(f"1e{abs(decimals)}"), v)
        if decimals < 0:
            return ((exact / scale).unary("round") * scale).node
        return ((exact * scale).unary("round") / scale).node

    return map_elements(lowering, (x,), value)


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
