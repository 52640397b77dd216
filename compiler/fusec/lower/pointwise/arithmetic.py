"""Pointwise operators: arithmetic, elementary functions, comparisons, masks, casts."""

from __future__ import annotations

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION

from fusec.devices import CPU
from fusec.ir import ops
from fusec.ir.index import Expr
from fusec.ir.node import Node
from fusec.lower.numbers import require_fitting
from fusec.lower.pointwise.activations import bool_result
from fusec.lower.pointwise.elementwise import (
    Operand,
    convert,
    element,
    map_elements,
    nonzero,
    promoted,
    rounded,
)
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import NotLowered, NumberValue, TensorValue, broadcast_index


def _register_unary(name: str, kind: PROMOTION, *targets: object) -> None:
    @register(*targets)
    def rule(lowering: Lowering, x: Operand) -> TensorValue:
        return map_elements(lowering, (x,), lambda v: ops.unary(name, v), kind)


_TO_FLOAT = PROMOTION.INT_TO_FLOAT
for _name in (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt tanh sigmoid erf erfc sin cos tan sinh cosh "
    "asin acos atan asinh acosh atanh lgamma digamma"
).split():
    _register_unary(_name, _TO_FLOAT, getattr(aten, _name))
_register_unary("erfinv", _TO_FLOAT, aten.erfinv)
_register_unary("bitwise_not", PROMOTION.DEFAULT, aten.bitwise_not)


@register(aten.neg)
def neg(lowering: Lowering, x: Operand) -> TensorValue:
    """Return -x."""
    return map_elements(lowering, (x,), lambda v: ops.unary("neg", v))


@register(aten.abs, aten.sign, aten.sgn)
def abs_or_sign(lowering: Lowering, x: TensorValue) -> TensorValue:
    """Return |x| or the sign of x; unsigned types and bools need no work for abs."""
    name = "abs" if lowering.label == "abs" else "sign"
    if x.dtype == torch.bool or (x.dtype == torch.uint8 and name == "abs"):
        return map_elements(lowering, (x,), lambda v: v)
    return map_elements(lowering, (x,), lambda v: ops.unary(name, v))


@register(aten.floor, aten.ceil, aten.trunc, aten.round.default)
def rounding(lowering: Lowering, x: TensorValue) -> TensorValue:
    """Round to an integer value; integers stay as they are."""
    name = {"floor": "floor", "ceil": "ceil", "trunc": "trunc"}.get(lowering.label, "round")
    if not x.dtype.is_floating_point:
        return map_elements(lowering, (x,), lambda v: v)
    return map_elements(lowering, (x,), lambda v: ops.unary(name, v))


@register(aten.reciprocal)
def reciprocal(lowering: Lowering, x: Operand) -> TensorValue:
    """Return 1 / x."""

    def value(v: Node) -> Node:
        return ops.binary("truediv", ops.const(1, v.dtype), v)

    return map_elements(lowering, (x,), value, _TO_FLOAT)


# -- arithmetic ---------------------------------------------------------------------------


def _scaled(y: Node, alpha: object) -> Node:
    if alpha in (1, 1.0):
        return y
    if isinstance(alpha, Expr):
        factor = ops.cast(ops.index_value(alpha, torch.int64), y.dtype)
        return ops.binary("mul", y, factor)
    if isinstance(alpha, NumberValue):
        return ops.binary("mul", y, ops.cast(alpha.at(()), y.dtype))
    assert isinstance(alpha, (int, float))
    return ops.binary("mul", y, ops.const(alpha, y.dtype))


@register(aten.add)
def add(lowering: Lowering, x: Operand, y: Operand, *, alpha: Operand = 1) -> TensorValue:
    """Return x + alpha * y."""
    return map_elements(lowering, (x, y), lambda a, b: bool_result("add", a, _scaled(b, alpha)))


def _require_no_bool(*operands: Operand) -> None:
    if any(isinstance(operand, bool) for operand in operands):
        raise NotLowered("eager refuses to subtract a bool", refused=True)


@register(aten.sub)
def sub(lowering: Lowering, x: Operand, y: Operand, *, alpha: Operand = 1) -> TensorValue:
    """Return x - alpha * y."""
    _require_no_bool(x, y)
    return map_elements(lowering, (x, y), lambda a, b: ops.binary("sub", a, _scaled(b, alpha)))


@register(aten.rsub)
def rsub(lowering: Lowering, x: Operand, y: Operand, alpha: Operand = 1) -> TensorValue:
    """Return y - alpha * x."""
    _require_no_bool(x, y)
    return map_elements(lowering, (x, y), lambda a, b: ops.binary("sub", b, _scaled(a, alpha)))


@register("prims::fma")  # TorchDynamo's form of addcmul_ and addcdiv_, as optimizers call them
def multiply_add(lowering: Lowering, x: Operand, y: Operand, z: Operand) -> TensorValue:
    """Return x * y + z, as eager computes it on a CPU."""

    def value(a: Node, b: Node, c: Node) -> Node:
        product = lowering.round(ops.binary("mul", a, b), lowering.meta().dtype)
        return ops.binary("add", ops.cast(product, a.dtype), c)

    return map_elements(lowering, (x, y, z), value)


@register(aten.mul, aten.maximum, aten.minimum)
def simple_binary(lowering: Lowering, x: Operand, y: Operand) -> TensorValue:
    """Return the product, or the larger or smaller of two (NaN wins)."""
    name = lowering.label
    return map_elements(lowering, (x, y), lambda a, b: bool_result(name, a, b))


@register(aten.fmax, aten.fmin)
def fmax_fmin(lowering: Lowering, x: Operand, y: Operand) -> TensorValue:
    """Return the larger or smaller of two; a NaN loses."""
    name = lowering.label

    def value(a: Node, b: Node) -> Node:
        if a.dtype.is_floating_point:
            return ops.binary(name, a, b)
        return bool_result("maximum" if name == "fmax" else "minimum", a, b)

    return map_elements(lowering, (x, y), value)


@register(aten.div.Tensor, aten.div.Scalar, aten.true_divide)
def true_divide(lowering: Lowering, x: Operand, y: Operand) -> TensorValue:
    """Return x / y in floating point."""
    return map_elements(lowering, (x, y), lambda a, b: ops.binary("truediv", a, b), _TO_FLOAT)


@register(aten.div.Tensor_mode, aten.div.Scalar_mode)
def divide_rounded(
    lowering: Lowering, x: Operand, y: Operand, *, rounding_mode: str | None
) -> TensorValue:
    """Return x / y, truncated or floored."""
    if rounding_mode is None:
        return true_divide(lowering, x, y)
    if rounding_mode == "trunc":
        return map_elements(lowering, (x, y), _truncated_quotient)
    return map_elements(lowering, (x, y), floor_quotient)


@register(aten.floor_divide)
def floor_divide(lowering: Lowering, x: Operand, y: Operand) -> TensorValue:
    """Return the floor of x / y."""
    return map_elements(lowering, (x, y), floor_quotient)


def _truncated_quotient(x: Node, y: Node) -> Node:
    if x.dtype.is_floating_point:
        return ops.unary("trunc", ops.binary("truediv", x, y))
    return ops.binary("truncdiv", x, nonzero(y))


def floor_quotient(x: Node, y: Node) -> Node:
    """Return floor(x / y) as ATen computes it.

    For floats that is CPython's algorithm: the quotient of ``x - fmod(x, y)``, corrected, which
    differs from ``floor(x / y)`` where the division rounds up to an integer.
    """
    if not x.dtype.is_floating_point:
        return ops.binary("floordiv", x, nonzero(y))
    zero, one, half = (ops.const(v, x.dtype) for v in (0.0, 1.0, 0.5))
    rest = ops.binary("fmod", x, y)
    quotient = ops.binary("truediv", ops.binary("sub", x, rest), y)
    adjust = ops.logical_and(
        ops.binary("ne", rest, zero),
        ops.binary("ne", ops.binary("lt", rest, zero), ops.binary("lt", y, zero)),
    )
    assert adjust is not None
    quotient = ops.where(adjust, ops.binary("sub", quotient, one), quotient)
    floor = ops.unary("floor", quotient)
    up = ops.binary("gt", ops.binary("sub", quotient, floor), half)
    floor = ops.where(up, ops.binary("add", floor, one), floor)
    signed_zero = ops.binary("copysign", zero, ops.binary("truediv", x, y))
    result = ops.where(ops.binary("ne", quotient, zero), floor, signed_zero)
    by_zero = ops.binary("eq", y, zero)
    return ops.where(by_zero, ops.binary("truediv", x, y), result)


@register(aten.remainder, aten.fmod)
def modulo(lowering: Lowering, x: Operand, y: Operand) -> TensorValue:
    """Return the remainder, with the divisor's sign (remainder) or the dividend's (fmod)."""
    name = lowering.label

    _, common = promoted((x, y))

    def value(a: Node, b: Node) -> Node:
        if not a.dtype.is_floating_point:
            b = nonzero(b)
        return ops.binary(name, rounded(x, a, common), rounded(y, b, common))

    return map_elements(lowering, (x, y), value)


@register(aten.pow)
def power(lowering: Lowering, x: Operand, y: Operand) -> TensorValue:
    """Return x ** y; small constant exponents become what ATen makes of them."""
    exponent = y if isinstance(y, (int, float)) and not isinstance(y, bool) else None
    # There ATen asks the C library, by which the root of -0.0 is 0.0, and of -inf it is inf.
    asks = isinstance(x, TensorValue) and x.dtype == torch.float16 and x.device.type == CPU
    known = None if asks and exponent in (0.5, -0.5) else exponent

    def value(a: Node, b: Node) -> Node:
        special = _constant_power(a, known)
        return special if special is not None else ops.binary("pow", a, b)

    dtype, _ = promoted((x, y))
    if not dtype.is_floating_point and exponent is None:
        raise NotLowered("an integer power with a tensor exponent")
    if not dtype.is_floating_point and (exponent is None or exponent < 0):
        raise NotLowered("a negative integer power")
    if not dtype.is_floating_point:
        require_fitting(dtype, exponent)
    return map_elements(lowering, (x, y), value)


def _constant_power(x: Node, exponent: float | None) -> Node | None:
    if exponent == 2:
        return ops.binary("mul", x, x)
    if exponent == 3:
        return ops.binary("mul", ops.binary("mul", x, x), x)
    if exponent == 1:
        return x
    if exponent == 0:
        return ops.const(1, x.dtype)
    if not x.dtype.is_floating_point:
        if exponent is None or exponent > 64:
            return None
        total = x
        for _ in range(int(exponent) - 1):
            total = ops.binary("mul", total, x)
        return total
    one = ops.const(1, x.dtype)
    if exponent == 0.5:
        return ops.unary("sqrt", x)
    if exponent == -0.5:
        return ops.unary("rsqrt", x)
    if exponent == -1:
        return ops.binary("truediv", one, x)
    if exponent == -2:
        return ops.binary("truediv", one, ops.binary("mul", x, x))
    return None


@register(aten.atan2, aten.copysign, aten.hypot, aten.nextafter)
def float_binary(lowering: Lowering, x: Operand, y: Operand) -> TensorValue:
    """Return a function of two floats."""
    name = lowering.label
    kind = _TO_FLOAT if name in ("atan2", "copysign") else PROMOTION.DEFAULT
    tensors = [o for o in (x, y) if isinstance(o, TensorValue)]
    if name == "nextafter" and any(t.dtype.itemsize == 2 for t in tensors):
        raise NotLowered("nextafter of a half type steps in that type")
    return map_elements(lowering, (x, y), lambda a, b: ops.binary(name, a, b), kind)


# -- selection ----------------------------------------------------------------------------


@register(aten.clone, aten.lift_fresh_copy, aten.copy, aten._to_copy, aten.to)
def copy(lowering: Lowering, x: Operand, *args: object, **kwargs: object) -> TensorValue:
    """Return a copy, in the result's dtype and layout."""
    if lowering.label == "copy":  # copy(destination, source): the source's values
        source = args[0]
        assert isinstance(source, TensorValue)
        x = source
    meta = lowering.meta()
    if not isinstance(x, TensorValue):  # of a number
        return lowering.lazy(lambda index: element(x, (), meta.dtype))
    if lowering.label == "lift_fresh_copy" and x.is_number:
        return lowering.lazy(lambda index: x.at(()))
    if meta.device != x.device and not x.is_number:
        raise NotLowered("a copy between devices")
    return lowering.pointwise(
        lambda index: convert(x.at(broadcast_index(index, x.shape)), meta.dtype)
    )


@register(torch.ops.prims.convert_element_type)
def convert_element_type(lowering: Lowering, x: TensorValue, dtype: torch.dtype) -> TensorValue:
    """Return x as ``dtype``."""
    if lowering.stored:  # nobody's cast, but a rounding for memory's sake
        return lowering.pointwise(lambda index: lowering.round(x.at(index), dtype))
    return lowering.pointwise(lambda index: convert(x.at(index), dtype))


@register(aten.alias, aten.detach, aten.lift_fresh, aten.lift)
def same(lowering: Lowering, x: TensorValue) -> TensorValue:
    """Return x itself: functionalized graphs have no aliasing left to keep."""
    return x
