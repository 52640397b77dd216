"""Operators that a package's own library has: products, convolutions, attention on the CPU.

They are plain C++ (``native/operators.cpp``), as a package without torch needs them. Where torch
is, its libraries are quicker. What is not here, or in a form that is not, keeps a program from
running without torch; the reason is said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fusec.ir.index import Expr
from fusec.ir.printer import dtype_name
from fusec.ir.program import Extern, Program, TensorRef
from fusec.packages.runtime.expressions import Expression
from fusec.packages.sizes import expression

_TYPES = {torch.float32: "float", torch.float64: "double"}


@dataclass(frozen=True)
class Pointer:
    """A buffer's memory from an offset on; ``None`` for none at all."""

    buffer: int
    offset: Expression


@dataclass(frozen=True)
class OwnCall:
    """A call of a bundled function.

    Attributes:
        function: The C++ function, with its types.
        arguments: Pointers, sizes, numbers; in order. Results last among the pointers.
    """

    function: str
    arguments: tuple[Pointer | Expression | float | None, ...]


class _No(Exception):
    """There is no such function, with the reason."""


def own_call(
    step: Extern, program: Program, numbers: Mapping[str, int], used: Collection[str]
) -> tuple[OwnCall | None, str]:
    """Return the bundled call for a step, or None and why there is none.

    Args:
        step: The call of ATen.
        program: That it is from.
        numbers: Of its buffers.
        used: Buffers that somebody reads.
    """
    make = _MAKERS.get(str(step.target))
    if make is None:
        return None, "no function of the package's own computes it"
    refs = [a for a in (*step.args, *step.kwargs.values()) if isinstance(a, TensorRef)]
    if any(program.buffers[ref.buffer].device.type != "cpu" for ref in refs):
        return None, "it is not on the CPU"
    found = {ref.dtype for ref in refs if ref.dtype != torch.bool}
    if len(found) != 1 or not found <= set(_TYPES):
        names = ", ".join(sorted(map(dtype_name, found)))
        return None, f"the package's own is for float32 and float64, not {names}"
    if any(name in used for name in step.outputs[1:]):
        return None, "its further results are used"
    call = _Call(step, program, numbers, _TYPES[next(iter(found))])
    try:
        return make(call), ""
    except _No as problem:
        return None, str(problem)


class _Call:
    def __init__(
        self, step: Extern, program: Program, numbers: Mapping[str, int], kind: str
    ) -> None:
        self.step = step
        self.numbers = numbers
        self.kind = kind
        self.schema = {
            argument.name: step.args[i]
            if i < len(step.args)
            else step.kwargs.get(argument.name, argument.default_value)
            for i, argument in enumerate(step.target._schema.arguments)  # type: ignore[attr-defined]
        }
        buffer = program.buffers[step.outputs[0]]
        zero = Expr.of(0)
        self.out = TensorRef(buffer.name, buffer.shape, buffer.strides, zero, buffer.dtype)

    def ref(self, name: str) -> TensorRef:
        value = self.schema[name]
        if not isinstance(value, TensorRef):
            raise _No(f"its {name} is not a tensor")
        return value

    def optional(self, name: str) -> TensorRef | None:
        return self.ref(name) if self.schema[name] is not None else None

    def pointer(self, ref: TensorRef | None) -> Pointer | None:
        if ref is None:
            return None
        return Pointer(self.numbers[ref.buffer], expression(ref.offset))

    def numbers_of(self, name: str, count: int) -> list[Expression]:
        value = self.schema[name]
        if not isinstance(value, (list, tuple)) or len(value) not in (1, count):
            raise _No(f"its {name} is {value}")
        found = [expression(v) if isinstance(v, Expr) else v for v in value]
        if not all(type(v) is int for v in found):
            raise _No(f"its {name} is not known")
        return found * count if len(found) == 1 else found


def _strides(ref: TensorRef, count: int) -> list[Expression]:
    """Return strides, with zeros for dimensions that are broadcast, in front and within."""
    found: list[Expression] = [0] * (count - len(ref.strides))
    for size, stride in zip(ref.shape, ref.strides, strict=True):
        found.append(0 if size.constant == 1 else expression(stride))
    return found


def _product(call: _Call, left: str, right: str, bias: str = "") -> OwnCall:
    a, b, out = call.ref(left), call.ref(right), call.out
    added = call.ref(bias) if bias else None
    alpha = _number(call.schema.get("alpha", 1))
    beta = _number(call.schema.get("beta", 1))
    rank = len(a.shape)
    batch = expression(a.shape[0]) if rank == 3 else 1
    arguments: list[Pointer | Expression | float | None] = [call.pointer(a)]
    arguments += _strides_of(a, 3)
    arguments += [call.pointer(b), *_strides_of(b, 3)]
    if added is not None and any(
        size.constant != 1 and size != wanted
        for size, wanted in zip(reversed(added.shape), reversed(out.shape), strict=False)
    ):
        raise _No("what it adds is of another shape")
    arguments += [call.pointer(added), *(_strides(added, 3) if added else (0, 0, 0))]
    arguments += [call.pointer(out), *_strides_of(out, 3)]
    arguments += [batch, expression(a.shape[-2]), expression(b.shape[-1]), expression(a.shape[-1])]
    return OwnCall(f"fuse_product<{call.kind}>", (*arguments, alpha, beta))


def _linear(call: _Call) -> OwnCall:
    """Return oneDNN's product: ``x @ w.T + b``, whatever dimensions come before x's last one."""
    x, weight, bias = call.ref("X"), call.ref("W"), call.optional("B")
    if call.schema["attr"] != "none":
        raise _No(f"it applies {call.schema['attr']}")
    if len(x.shape) not in (2, 3):
        raise _No(f"its left matrix has {len(x.shape)} dimensions")
    rows, columns = map(expression, weight.strides)
    arguments: list[Pointer | Expression | float | None] = [call.pointer(x), *_strides_of(x, 3)]
    arguments += [call.pointer(weight), 0, columns, rows]
    arguments += [call.pointer(bias), 0, 0, expression(bias.strides[0]) if bias else 0]
    arguments += [call.pointer(call.out), *_strides_of(call.out, 3)]
    arguments += [expression(x.shape[0]) if len(x.shape) == 3 else 1]
    arguments += [expression(x.shape[-2]), expression(weight.shape[0]), expression(x.shape[-1])]
    return OwnCall(f"fuse_product<{call.kind}>", (*arguments, 1.0, 1.0))


def _strides_of(ref: TensorRef, count: int) -> list[Expression]:
    return [0] * (count - len(ref.strides)) + [expression(stride) for stride in ref.strides]


def _number(value: object) -> float:
    if isinstance(value, (bool, int, float)):
        return float(value)
    raise _No("it has a factor that is not known")


def _convolution(call: _Call) -> OwnCall:
    x, weight, bias, out = call.ref("input"), call.ref("weight"), call.optional("bias"), call.out
    if call.schema["transposed"]:
        raise _No("the package's own convolution is not transposed")
    rank = len(x.shape) - 2
    if rank not in (1, 2):
        raise _No(f"the package's own convolution has one or two dimensions, not {rank}")
    numbers: list[Expression] = []
    for name, missing in (("stride", 1), ("padding", 0), ("dilation", 1)):
        found = call.numbers_of(name, rank)
        numbers += ([missing] if rank == 1 else []) + found
    groups = call.schema["groups"]
    if type(groups) is not int:
        raise _No("its groups are not known")

    def four(ref: TensorRef, values: Any, missing: int) -> list[Expression]:
        found = [expression(v) for v in values]
        return found if rank == 2 else [*found[:2], missing, found[2]]

    arguments: list[Pointer | Expression | float | None] = []
    for ref in (x, weight, out):
        arguments += [call.pointer(ref), *four(ref, ref.shape, 1), *four(ref, ref.strides, 0)]
    arguments += [call.pointer(bias), expression(bias.strides[0]) if bias is not None else 0]
    return OwnCall(f"fuse_convolution<{call.kind}>", (*arguments, *numbers, groups))


def _attention(call: _Call) -> OwnCall:
    query, key, value = call.ref("query"), call.ref("key"), call.ref("value")
    if call.schema["dropout_p"]:
        raise _No("it draws random numbers")
    mask, scale = call.optional("attn_mask"), call.schema["scale"]
    if mask is not None and mask.dtype != query.dtype:
        raise _No(f"its mask is {dtype_name(mask.dtype)}")
    depth = query.shape[-1].constant
    if scale is None:
        if depth is None:
            raise _No("its scale is not known")
        scale = depth**-0.5
    arguments: list[Pointer | Expression | float | None] = []
    for ref in (query, key, value, call.out):
        arguments += [call.pointer(ref), *_strides_of(ref, 4)]
    arguments += [call.pointer(mask), *(_strides(mask, 4) if mask else (0, 0, 0, 0))]
    arguments += [expression(size) for size in (*query.shape, key.shape[2], value.shape[3])]
    return OwnCall(
        f"fuse_attention<{call.kind}>",
        (*arguments, int(bool(call.schema["is_causal"])), _number(scale)),
    )


_MAKERS: dict[str, Callable[[_Call], OwnCall]] = {
    "aten.mm.default": lambda call: _product(call, "self", "mat2"),
    "aten.bmm.default": lambda call: _product(call, "self", "mat2"),
    "aten.addmm.default": lambda call: _product(call, "mat1", "mat2", "self"),
    "aten.baddbmm.default": lambda call: _product(call, "batch1", "batch2", "self"),
    "aten.convolution.default": _convolution,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "mkldnn._linear_pointwise.default": _linear,
}

__all__ = ["OwnCall", "Pointer", "own_call"]
