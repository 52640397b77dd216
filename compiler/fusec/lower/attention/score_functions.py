"""Functions of single elements among an operator's arguments: what attention's scores become."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fusec.ir import ops
from fusec.ir.body import Body
from fusec.ir.index import Expr
from fusec.ir.node import Node
from fusec.lower.higher_order import Subgraph
from fusec.lower.movement.indexing import Selection
from fusec.lower.pointwise.elementwise import element as lowered
from fusec.lower.values import (
    Element,
    GraphNotLowered,
    Index,
    Lowering,
    NotLowered,
    NumberValue,
    TensorValue,
)

F64 = torch.float64
NUMBERS = (NumberValue, int, float)
ARITHMETIC: dict[object, str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "truediv",
}


@dataclass(frozen=True)
class Scattered:
    """The gradient of a captured tensor: numbers that are added at places of it.

    Attributes:
        parts: Each place, and what is added there.
    """

    parts: tuple[tuple[Index, Node], ...]


def _scatter(
    lowering: Lowering, shape: Sequence[int], places: Sequence[TensorValue], value: TensorValue
) -> Scattered:
    """Return the gradient of one reading of a captured tensor."""
    sizes = tuple(Expr.of(size) for size in shape)
    selection = Selection.of(sizes, places)
    if selection.shape or value.shape:
        raise NotLowered("a function of scores reads several numbers of a captured tensor at once")
    return Scattered(((selection.place(()), value.compute(())),))


def _add(lowering: Lowering, x: Scattered, y: Scattered) -> Scattered:
    """Return the gradient of a tensor that is read more than once."""
    return Scattered((*x.parts, *y.parts))


class Elements(Lowering):
    """Lowers a function of single elements: what it computes is a value, and no step."""

    def number(self, target: object, args: Sequence[object]) -> NumberValue | None:
        """Return a number that the user's function captured, or what it makes of such numbers.

        TorchDynamo makes a float64 tensor of a number that changes from call to call.
        """
        if target is torch.ops.aten._local_scalar_dense.default:
            (x,) = args
            if not isinstance(x, TensorValue) or x.shape or not x.dtype.is_floating_point:
                return None
            given = ops.cast(x.at(()), F64)
            return NumberValue((), F64, x.device, lambda index: given)
        numbers = [each for each in args if isinstance(each, NumberValue)]
        if target is operator.neg and numbers:
            args, target = (-1.0, *args), operator.mul
        name = ARITHMETIC.get(target)
        if not numbers or isinstance(target, torch._ops.OpOverload):
            return None
        known = name is not None and all(isinstance(each, NUMBERS) for each in args)
        # Python raises where it divides by zero
        if not known or (name == "truediv" and (isinstance(args[1], NumberValue) or not args[1])):
            called = getattr(target, "__name__", target)
            raise NotLowered(f"a function of scores computes {called} of a captured number")
        assert name is not None
        given = ops.binary(name, *(lowered(each, (), F64) for each in args))
        return NumberValue((), F64, numbers[0].device, lambda index: given)

    def own_rule(self, target: object, args: Sequence[object]) -> Callable[..., object] | None:
        """Return what lowers the gradients of captured tensors."""
        if str(target) == "flex_lib.zeros_and_scatter.default":
            return _scatter
        several = [isinstance(each, Scattered) for each in args]
        if not any(several):
            return None
        if target is torch.ops.aten.add.Tensor and all(several):
            return _add
        raise NotLowered(f"{self.label} of the gradient of a captured tensor")

    def pointwise(self, element: Element, number: int = 0) -> TensorValue:
        """Return a computed value; see ``Lowering.pointwise``."""
        meta = self.meta(number)
        if meta.shape:
            return self.lazy(lambda index: self.round(element(index), meta.dtype), meta)
        node = self.round(element(()), meta.dtype)
        return self.lazy(lambda index: node, meta)

    def emit(self, body: Body) -> None:
        """Refuse a computation of its own.

        Raises:
            NotLowered: Always.
        """
        raise NotLowered(f"a function of scores calls {self.label}")

    def extern(self, *args: object, **kwargs: object) -> tuple[TensorValue | None, ...]:
        """Refuse a call.

        Raises:
            NotLowered: Always.
        """
        raise NotLowered(f"a function of scores calls {self.label}")


def scalar(lowering: Lowering, node: Node, dtype: torch.dtype, device: torch.device) -> TensorValue:
    """Return a float32 value as the 0-d tensor of ``dtype`` that a function was traced with."""
    rounded = ops.cast(node, dtype, implicit=True)
    return TensorValue((), dtype, device, lambda index: rounded)


def number_of(node: Node, device: torch.device) -> TensorValue:
    """Return a value as a tensor of no dimensions."""
    return TensorValue((), node.dtype, device, lambda index: node)


def call(lowering: Lowering, function: Subgraph, values: Sequence[object]) -> Node:
    """Return what a function of elements gives: its only result, as it is computed."""
    (result,) = call_all(lowering, function, values)
    if not isinstance(result, TensorValue):
        raise NotLowered("a function of scores does not give a tensor")
    return result.compute(())


def call_all(lowering: Lowering, function: Subgraph, values: Sequence[object]) -> list[object]:
    """Return all that a traced function gives."""
    assert lowering.inline is not None
    try:
        return lowering.inline(function.module, values, Elements)
    except GraphNotLowered as reason:
        raise NotLowered(str(reason)) from None


__all__ = ["Elements", "Scattered", "call", "call_all", "number_of", "scalar"]
