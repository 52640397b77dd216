"""Pointwise operators: arithmetic, elementary functions, comparisons, masks, casts."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import elementwise_dtypes
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.devices import CPU
from fusec.ir import ops
from fusec.ir.index import Expr
from fusec.ir.node import CheckKind, Const, Node
from fusec.lower.numbers import require_fitting
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import (
    SUPPORTED_DTYPES,
    Index,
    NotLowered,
    TensorValue,
    broadcast_index,
)

Operand = TensorValue | Expr | int | float | bool


def promoted(
    operands: tuple[object, ...], kind: PROMOTION = PROMOTION.DEFAULT
) -> tuple[torch.dtype, torch.dtype]:
    """Return torch's (computation, result) dtypes for mixed operands.

    The rule itself is torch's (``elementwise_dtypes``); symbolic integers count as ints.
    """
    tensors = [o for o in operands if isinstance(o, TensorValue)]
    if (
        kind is PROMOTION.DEFAULT
        and len(tensors) == len(operands)
        and len({t.dtype for t in tensors}) == 1
    ):
        return ops.compute_dtype(tensors[0].dtype), tensors[0].dtype
    stand_ins: list[object] = []
    for operand in operands:
        if isinstance(operand, TensorValue):
            shape = (1,) * operand.ndim
            stand_ins.append(torch.empty(shape, dtype=operand.dtype, device="meta"))
        elif isinstance(operand, Expr):
            stand_ins.append(1)
        elif operand is not None:
            stand_ins.append(operand)
    compute, result = elementwise_dtypes(*stand_ins, type_promotion_kind=kind)
    if compute not in SUPPORTED_DTYPES:
        raise NotLowered(f"{compute} has no kernels")
    return ops.compute_dtype(compute), result


def element(operand: object, index: Index, dtype: torch.dtype) -> Node:
    """Return an operand of a broadcasting operator at ``index``, as ``dtype``."""
    if isinstance(operand, TensorValue):
        value = operand.at(broadcast_index(index, operand.shape))
        # half values widen first; a promotion to an integer type never comes from a float
        return ops.cast(ops.cast(value, ops.compute_dtype(operand.dtype)), dtype)
    if isinstance(operand, Expr):
        return ops.cast(ops.index_value(operand, torch.int64), dtype)
    assert isinstance(operand, (int, float))
    return ops.const(operand, dtype)


def rounded(operand: object, value: Node, common: torch.dtype) -> Node:
    """Return an operand's element as eager compares it: rounded where its type is a wider one.

    A number, or a tensor of no dimensions, takes part in the others' type: ``x == 0.1`` holds for
    a half-precision x that is the nearest to 0.1.

    Args:
        operand: What it is an element of.
        value: The element, in the type that is computed in.
        common: The type that the operands have in common.
    """
    own = operand.dtype if isinstance(operand, TensorValue) else torch.float64
    if common.itemsize != 2 or not common.is_floating_point or own == common:
        return value
    if isinstance(value, Const):
        with unset_fake_temporarily():
            number = torch.tensor(value.value, dtype=torch.float64).to(common).item()
        return ops.const(number, value.dtype)
    return ops.cast(ops.cast(value, common), value.dtype)


def map_elements(
    lowering: Lowering,
    operands: tuple[object, ...],
    function: Callable[..., Node],
    kind: PROMOTION = PROMOTION.DEFAULT,
) -> TensorValue:
    """Emit ``function`` of the operands' elements, broadcast and promoted as torch does."""
    dtype, _ = promoted(operands, kind)

    def value(index: Index) -> Node:
        return function(*(element(o, index, dtype) for o in operands))

    return lowering.pointwise(value)


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


@register(aten.isnan, aten.isinf, aten.signbit)
def classify(lowering: Lowering, x: TensorValue) -> TensorValue:
    """Return a property of a number as a bool."""
    name = lowering.label

    def value(index: Index) -> Node:
        if not x.dtype.is_floating_point:
            if name != "signbit":
                return ops.const(False, torch.bool)
            if x.dtype in (torch.bool, torch.uint8):
                return ops.const(False, torch.bool)
            return ops.binary("lt", x.at(index), ops.const(0, x.dtype))
        return ops.unary(name, x.compute(index))

    return lowering.pointwise(value)


@register(aten.logical_not)
def logical_not(lowering: Lowering, x: TensorValue) -> TensorValue:
    """Return not x."""
    return lowering.pointwise(lambda index: ops.logical_not(truth(x.compute(index))))


def truth(value: Node) -> Node:
    """Return whether a number is not zero (NaN is true)."""
    if value.dtype == torch.bool:
        return value
    return ops.binary("ne", value, ops.const(0, value.dtype))


@register(aten.logical_and, aten.logical_or, aten.logical_xor)
def logical(lowering: Lowering, x: TensorValue, y: TensorValue) -> TensorValue:
    """Return a logical connective of the operands' truth, in the type that they share.

    There a number of no dimensions may become zero: 256 is, beside a uint8 tensor.
    """
    name = lowering.label
    dtype, common = promoted((x, y))

    def value(index: Index) -> Node:
        a, b = (truth(rounded(o, element(o, index, dtype), common)) for o in (x, y))
        return ops.binary(name, a, b)

    return lowering.pointwise(value)


# -- arithmetic ---------------------------------------------------------------------------


def _scaled(y: Node, alpha: object) -> Node:
    if alpha in (1, 1.0):
        return y
    if isinstance(alpha, Expr):
        factor = ops.cast(ops.index_value(alpha, torch.int64), y.dtype)
        return ops.binary("mul", y, factor)
    assert isinstance(alpha, (int, float))
    return ops.binary("mul", y, ops.const(alpha, y.dtype))


def _bool_result(name: str, x: Node, y: Node) -> Node:
    """Addition and multiplication of bools are or and and."""
    if x.dtype == torch.bool and name in ("add", "mul", "maximum", "minimum"):
        connective = "logical_or" if name in ("add", "maximum") else "logical_and"
        return ops.binary(connective, x, y)
    return ops.binary(name, x, y)


@register(aten.add)
def add(lowering: Lowering, x: Operand, y: Operand, *, alpha: Operand = 1) -> TensorValue:
    """Return x + alpha * y."""
    return map_elements(lowering, (x, y), lambda a, b: _bool_result("add", a, _scaled(b, alpha)))


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
    return map_elements(lowering, (x, y), lambda a, b: _bool_result(name, a, b))


@register(aten.fmax, aten.fmin)
def fmax_fmin(lowering: Lowering, x: Operand, y: Operand) -> TensorValue:
    """Return the larger or smaller of two; a NaN loses."""
    name = lowering.label

    def value(a: Node, b: Node) -> Node:
        if a.dtype.is_floating_point:
            return ops.binary(name, a, b)
        return _bool_result("maximum" if name == "fmax" else "minimum", a, b)

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


def _nonzero(y: Node) -> Node:
    holds = ops.binary("ne", y, ops.const(0, y.dtype))
    return ops.check(holds, y, "ZeroDivisionError", CheckKind.DIVISION)


def _truncated_quotient(x: Node, y: Node) -> Node:
    if x.dtype.is_floating_point:
        return ops.unary("trunc", ops.binary("truediv", x, y))
    return ops.binary("truncdiv", x, _nonzero(y))


def floor_quotient(x: Node, y: Node) -> Node:
    """Return floor(x / y) as ATen computes it.

    For floats that is CPython's algorithm: the quotient of ``x - fmod(x, y)``, corrected, which
    differs from ``floor(x / y)`` where the division rounds up to an integer.
    """
    if not x.dtype.is_floating_point:
        return ops.binary("floordiv", x, _nonzero(y))
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
            b = _nonzero(b)
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


@register(aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)
def compare(lowering: Lowering, x: Operand, y: Operand) -> TensorValue:
    """Return a comparison; mixed operands are promoted first."""
    name = lowering.label
    dtype, common = promoted((x, y))

    def value(index: Index) -> Node:
        a, b = (rounded(o, element(o, index, dtype), common) for o in (x, y))
        if dtype == torch.bool:
            a, b = ops.cast(a, torch.uint8), ops.cast(b, torch.uint8)
        return ops.binary(name, a, b)

    return lowering.pointwise(value)


@register(
    aten.bitwise_and,
    aten.bitwise_or,
    aten.bitwise_xor,
    aten.bitwise_left_shift,
    aten.bitwise_right_shift,
    aten.__lshift__,  # what ``<<`` and ``>>`` are traced as
    aten.__rshift__,
)
def bitwise(lowering: Lowering, x: Operand, y: Operand) -> TensorValue:
    """Return a bitwise operation; on bools, the logical one."""
    name = lowering.label.replace("bitwise_left_", "l").replace("bitwise_right_", "r").strip("_")
    if promoted((x, y))[0].is_floating_point:
        raise NotLowered("eager refuses the bits of fractions", refused=True)

    def value(a: Node, b: Node) -> Node:
        if a.dtype == torch.bool:
            return ops.binary(name.replace("bitwise", "logical"), a, b)
        return ops.binary(name, a, b)

    return map_elements(lowering, (x, y), value)


# -- selection ----------------------------------------------------------------------------


@register(aten.where.self)
def where(lowering: Lowering, condition: TensorValue, x: Operand, y: Operand) -> TensorValue:
    """Return x where the condition holds, else y."""
    dtype, common = promoted((x, y))

    def value(index: Index) -> Node:
        c = truth(condition.compute(broadcast_index(index, condition.shape)))
        a, b = (rounded(o, element(o, index, dtype), common) for o in (x, y))
        return ops.where(c, a, b)

    return lowering.pointwise(value)


@register(aten.masked_fill)
def masked_fill(
    lowering: Lowering, x: TensorValue, mask: TensorValue, fill: Operand
) -> TensorValue:
    """Return x with ``fill`` where the mask holds; the result has x's dtype."""
    dtype = ops.compute_dtype(x.dtype)
    number = fill.at(()) if isinstance(fill, TensorValue) and fill.is_number else None
    require_fitting(x.dtype, number.value if isinstance(number, Const) else fill)

    def value(index: Index) -> Node:
        m = truth(mask.compute(broadcast_index(index, mask.shape)))
        chosen = rounded(fill, element(fill, index, dtype), x.dtype)
        return ops.where(m, chosen, element(x, index, dtype))

    return lowering.pointwise(value)


@register(aten.clamp, aten.clamp_min, aten.clamp_max)
def clamp(
    lowering: Lowering, x: TensorValue, low: Operand | None = None, high: Operand | None = None
) -> TensorValue:
    """Return x limited to [low, high]; where low > high it is high; NaN stays, as x or a bound."""
    if lowering.label == "clamp_max":
        low, high = None, low
    operands = tuple(o for o in (x, low, high) if o is not None)
    dtype, common = promoted(operands)
    require_fitting(common, low, high)
    if common == torch.bool and lowering.label == "clamp":
        raise NotLowered("eager refuses to clamp bools", refused=True)
    if any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high)):
        return lowering.pointwise(lambda index: ops.const(math.nan, dtype))  # as eager fills it

    def value(index: Index) -> Node:
        result = element(x, index, dtype)
        for bound, beyond in ((low, "lt"), (high, "gt")):
            if bound is not None:
                limit = rounded(bound, element(bound, index, dtype), common)
                result = _bounded(result, bound, limit, beyond)
        return result

    return lowering.pointwise(value)


def _bounded(value: Node, bound: Operand, limit: Node, beyond: str) -> Node:
    """Return ``value``, or ``limit`` where value lies beyond it.

    A number as a bound is not NaN, and a comparison keeps NaN and the sign of zero as eager
    does; a tensor's elements may be NaN, which wins.
    """
    if value.dtype == torch.bool or isinstance(bound, TensorValue):
        return _bool_result("maximum" if beyond == "lt" else "minimum", value, limit)
    return ops.where(ops.binary(beyond, value, limit), limit, value)


@register(aten.clone, aten.lift_fresh_copy, aten.copy, aten._to_copy, aten.to)
def copy(lowering: Lowering, x: TensorValue, *args: object, **kwargs: object) -> TensorValue:
    """Return a copy, in the result's dtype and layout."""
    if lowering.label == "copy":  # copy(destination, source): the source's values
        source = args[0]
        assert isinstance(source, TensorValue)
        x = source
    meta = lowering.meta()
    if lowering.label == "lift_fresh_copy" and x.is_number:
        return lowering.lazy(lambda index: x.at(()))
    if meta.device != x.device and not x.is_number:
        raise NotLowered("a copy between devices")
    return lowering.pointwise(
        lambda index: convert(x.at(broadcast_index(index, x.shape)), meta.dtype)
    )


def convert(value: Node, dtype: torch.dtype) -> Node:
    """Return a user's own cast, rounding where he asked for it."""
    if value.dtype == dtype:
        return value
    if dtype == torch.bool:
        return truth(ops.cast(value, ops.compute_dtype(value.dtype)))
    return ops.cast(value, dtype)


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


# -- activations --------------------------------------------------------------------------


@register(aten.relu)
def relu(lowering: Lowering, x: TensorValue) -> TensorValue:
    """Return max(x, 0); NaN and negative zero stay."""
    if x.dtype == torch.bool:
        return map_elements(lowering, (x,), lambda v: v)
    return map_elements(lowering, (x,), lambda v: _bounded(v, 0, ops.const(0, v.dtype), "lt"))


@register(aten.gelu)
def gelu(lowering: Lowering, x: TensorValue, *, approximate: str = "none") -> TensorValue:
    """Return x * Phi(x), or its tanh approximation."""

    def value(v: Node) -> Node:
        half, one = ops.const(0.5, v.dtype), ops.const(1.0, v.dtype)
        if approximate == "tanh":
            cube = ops.binary("mul", ops.binary("mul", v, v), v)
            inner = ops.binary("add", v, ops.binary("mul", ops.const(0.044715, v.dtype), cube))
            scaled = ops.binary("mul", ops.const(math.sqrt(2 / math.pi), v.dtype), inner)
            tail = ops.binary("add", one, ops.unary("tanh", scaled))
        else:
            scaled = ops.binary("mul", v, ops.const(math.sqrt(0.5), v.dtype))
            tail = ops.binary("add", one, ops.unary("erf", scaled))
        return ops.binary("mul", ops.binary("mul", v, half), tail)

    return map_elements(lowering, (x,), value)


@register(aten.silu)
def silu(lowering: Lowering, x: TensorValue) -> TensorValue:
    """Return x * sigmoid(x), as ATen does: x / (1 + exp(-x))."""

    def value(v: Node) -> Node:
        decayed = ops.unary("exp", ops.unary("neg", v))
        return ops.binary("truediv", v, ops.binary("add", ops.const(1, v.dtype), decayed))

    return map_elements(lowering, (x,), value)


@register(aten.leaky_relu)
def leaky_relu(lowering: Lowering, x: TensorValue, negative_slope: float = 0.01) -> TensorValue:
    """Return x, its negative part scaled."""

    def value(v: Node) -> Node:
        scaled = ops.binary("mul", v, ops.const(negative_slope, v.dtype))
        return ops.where(ops.binary("gt", v, ops.const(0, v.dtype)), v, scaled)

    return map_elements(lowering, (x,), value)


@register(aten.elu)
def elu(
    lowering: Lowering,
    x: TensorValue,
    alpha: float = 1.0,
    scale: float = 1.0,
    input_scale: float = 1.0,
) -> TensorValue:
    """Return scale * (x where x > 0, else alpha * (exp(input_scale * x) - 1))."""

    def value(v: Node) -> Node:
        scaled_input = ops.binary("mul", v, ops.const(input_scale, v.dtype))
        below = ops.binary(
            "mul", ops.const(alpha * scale, v.dtype), ops.unary("expm1", scaled_input)
        )
        above = ops.binary("mul", v, ops.const(scale, v.dtype))
        return ops.where(ops.binary("le", v, ops.const(0, v.dtype)), below, above)

    return map_elements(lowering, (x,), value)


@register(aten.hardtanh)
def hardtanh(
    lowering: Lowering, x: TensorValue, low: float = -1.0, high: float = 1.0
) -> TensorValue:
    """Return x limited to [low, high]."""
    return clamp(lowering, x, low, high)
