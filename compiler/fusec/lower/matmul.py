"""Products of matrices, and what else runs as ATen's own kernels by intent.

A product is lowered twice: as the call of BLAS that eager would make, and as a loop nest around a
``Dot``, which a generated kernel may compute together with what comes before and after it.  The
scheduler takes one of the two.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce

import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store, new_axes
from fusec.ir.index import Expr
from fusec.ir.node import Node, const, dot
from fusec.ir.program import Extern, ExternKind
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import Index, NotLowered, ResultMeta, TensorValue, broadcast_index

BLAS = "a matrix product runs best in BLAS"

# What tensor cores multiply and add up in float32; float32 itself by the user's choice.
PRODUCT_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})

# Matrices of no more rows, columns and terms than this, many of them, are multiplied on a CPU where
# their elements are needed: a sum of so few terms is written out.  BLAS looks at each matrix anew.
SMALL_SIDE = 8
# Multiplications of one such product where it takes more to read a factor than to load a vector: a
# half is converted, and what is transposed is gathered.  7 x 7 of bfloat16 took 1.1 of BLAS's time
# and 8 x 8 transposed 1.3, 6 x 5 x 7 0.8, 4 x 4 a quarter.  Float16 has no quick conversion of a
# few elements; it took twice to ten times as long.
SLOWLY_READ = 216
WRITTEN_OUT_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16})

_REASONS: dict[str | ExternKind, tuple[object, ...]] = {
    BLAS: (aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.addbmm, aten.addmv, aten._trilinear),
    # by its name, for builds without it; in place of BLAS by graph/products/onednn.py
    "a matrix product runs best in oneDNN": ("mkldnn::_linear_pointwise",),
    ExternKind.UNINITIALIZED: (aten.empty_permuted, aten.new_empty_strided),
    "attention runs as ATen's fused kernel": (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_efficient_attention,
    ),
    # made by graph/losses/in_parts.py
    "products, losses and gradients of some rows after those of others": (
        "fusec::linear_cross_entropy",
    ),
    # made by graph/products/grouped.py
    "products of groups of rows find their rows themselves": (
        "fusec::grouped_product",
        "fusec::grouped_product_backward",
    ),
    "what forward computed, times what backward is given": ("fusec::scaled_gradient",),
    "random numbers come from eager's own stream": (
        aten.rand,
        aten.randn,
        aten.rand_like,
        aten.randn_like,
        aten.bernoulli,
        aten.native_dropout,
        aten.randint,
        aten.randint_like,
        aten.randperm,
        aten.multinomial,
    ),
}


def _register(why: str | ExternKind, targets: tuple[object, ...]) -> None:
    @register(*targets)
    def rule(lowering: Lowering, *_: object, **__: object) -> None:
        raise NotLowered(why)


for _why, _targets in _REASONS.items():
    _register(_why, _targets)


@register(aten.mm.default)
def mm(lowering: Lowering, left: TensorValue, right: TensorValue) -> TensorValue:
    """``left @ right``."""
    return _product(lowering, aten.mm.default, (left, right), left, right)


@register(aten.bmm.default)
def bmm(lowering: Lowering, left: TensorValue, right: TensorValue) -> TensorValue:
    """``left[b] @ right[b]`` for each b."""
    return _product(lowering, aten.bmm.default, (left, right), left, right)


@register(aten.addmm.default)
def addmm(
    lowering: Lowering,
    bias: TensorValue,
    left: TensorValue,
    right: TensorValue,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> TensorValue:
    """``beta * bias + alpha * (left @ right)``."""
    arguments = (bias, left, right)
    return _product(lowering, aten.addmm.default, arguments, left, right, bias, beta, alpha)


@register(aten.baddbmm.default)
def baddbmm(
    lowering: Lowering,
    bias: TensorValue,
    left: TensorValue,
    right: TensorValue,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> TensorValue:
    """``beta * bias[b] + alpha * (left[b] @ right[b])`` for each b."""
    arguments = (bias, left, right)
    return _product(lowering, aten.baddbmm.default, arguments, left, right, bias, beta, alpha)


def _product(
    lowering: Lowering,
    target: torch._ops.OpOverload,
    arguments: tuple[TensorValue, ...],
    left: TensorValue,
    right: TensorValue,
    bias: TensorValue | None = None,
    beta: object = 1,
    alpha: object = 1,
) -> TensorValue:
    """Emit the call of BLAS, with the loop nest that could take its place."""
    factors = {"beta": beta, "alpha": alpha} if bias is not None else {}
    meta = lowering.meta()
    sizes = (*meta.shape, left.shape[-1])
    if _is_written_out(meta, left, right, factors):
        return _written_out(lowering, left, right, bias, beta, alpha)
    if (
        not lowering.can(meta.device).products
        or meta.dtype not in PRODUCT_DTYPES
        or any(value.dtype != meta.dtype for value in arguments)
        or not all(isinstance(factor, int | float) for factor in factors.values())
        or any(size.constant == 0 for size in sizes)
        or sizes[-1].constant == 1
    ):
        raise NotLowered(BLAS)
    arguments = tuple(lowering.realize(value) for value in arguments)
    left, right = arguments[-2:]
    given = {name: factor for name, factor in factors.items() if factor != 1}
    (result,) = lowering.extern(target, arguments, given, BLAS)
    assert result is not None
    assert result.ref is not None
    step = lowering.steps[-1]
    assert isinstance(step, Extern)

    axes, reduced = new_axes(meta.shape), new_axes((left.shape[-1],), "k")
    index = tuple(Expr.of(0) if axis.size == 1 else Expr.of(axis) for axis in axes)
    (inner,) = (Expr.of(axis) for axis in reduced)
    *batch, row, column = index
    dtype = ops.compute_dtype(meta.dtype)
    value: Node = dot(
        left.at((*batch, row, inner)),
        right.at((*batch, inner, column)),
        reduced,
        dtype,
        float32_precision(),
    )
    if bias is not None:
        value = _with_bias(value, arguments[0], index, beta, alpha)
    value = lowering.round(value, meta.dtype)
    body = Body(axes, reduced, (Store(result.ref.buffer, index, value),))
    lowering.steps[-1] = replace(step, body=body, label=lowering.label)
    return result


def _with_bias(value: Node, bias: TensorValue, index: Index, beta: object, alpha: object) -> Node:
    value = _scaled(value, alpha)
    if beta == 0:  # then not even NaN counts
        return value
    return ops.binary("add", _scaled(bias.compute(broadcast_index(index, bias.shape)), beta), value)


def _is_written_out(
    meta: ResultMeta, left: TensorValue, right: TensorValue, factors: dict[str, object]
) -> bool:
    """Whether products are of many matrices so small that each element's sum is written out."""
    if meta.device.type != "cpu" or len(meta.shape) != 3 or left.ndim != 3:
        return False
    if meta.dtype not in WRITTEN_OUT_DTYPES or not left.dtype == right.dtype == meta.dtype:
        return False
    if not all(isinstance(factor, int | float) for factor in factors.values()):
        return False
    sides = [size.constant for size in (*meta.shape[1:], left.shape[-1])]
    if not all(side is not None and 0 < side <= SMALL_SIDE for side in sides):
        return False
    turned = right.ref is not None and right.ref.strides[-1] != 1
    slowly = turned or meta.dtype == torch.bfloat16
    return not slowly or math.prod(side or 0 for side in sides) <= SLOWLY_READ


def _written_out(
    lowering: Lowering,
    left: TensorValue,
    right: TensorValue,
    bias: TensorValue | None,
    beta: object,
    alpha: object,
) -> TensorValue:
    """Return the products of small matrices as values that whatever reads them may compute."""
    left, right = lowering.realize(left), lowering.realize(right)
    terms = left.shape[-1].constant
    assert terms is not None

    def element(index: Index) -> Node:
        batch, row, column = index
        products = [
            ops.binary(
                "mul",
                left.compute((batch, row, Expr.of(k))),
                right.compute((batch, Expr.of(k), column)),
            )
            for k in range(terms)
        ]
        value = reduce(lambda total, product: ops.binary("add", total, product), products)
        return value if bias is None else _with_bias(value, bias, index, beta, alpha)

    return lowering.pointwise(element)


def _scaled(value: Node, factor: object) -> Node:
    assert isinstance(factor, int | float)
    return value if factor == 1 else ops.binary("mul", value, const(factor, value.dtype))


def float32_precision() -> str:
    """Return how float32 matrices are multiplied, as eager would: ``ieee`` or ``tf32``.

    TorchDynamo guards on the user's choice.
    """
    # the older allow_tf32 and set_float32_matmul_precision set this one too
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
