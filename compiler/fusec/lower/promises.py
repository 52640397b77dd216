"""What a program promises of itself: assertions, and numbers that are read from tensors."""

from __future__ import annotations

import torch

from fusec.errors import BrokenPromise
from fusec.graph.refusals import values  # noqa: F401  (defines fusec::checked)
from fusec.ir import ops
from fusec.ir.program import ExternKind
from fusec.lower.registry import aten, register
from fusec.lower.values import Lowering, TensorValue


class PromisedNumber:
    """What a step calls where the program reads a number that ``torch._check`` has settled."""

    tags = (torch.Tag.data_dependent_output,)

    def __init__(self, where: object) -> None:
        self.where = where

    def __call__(self, tensor: torch.Tensor, promised: int) -> None:
        """Raise if the number is not the one that the kernels were compiled for.

        Args:
            tensor: Of one element.
            promised: What it must be.

        Raises:
            BrokenPromise: It is something else.
        """
        found = tensor.item()
        if found != promised:
            raise BrokenPromise(
                f"{self} is {found}, where {promised} was promised",
                "by a torch._check that does not hold",
            )

    def __repr__(self) -> str:
        return f"the number that is read in {self.where}" if self.where else "a number that is read"


@register(aten._assert_scalar.default)
def assert_scalar(lowering: Lowering, condition: object, message: str) -> None:
    """Raise unless a condition holds; one that holds for the sizes of this graph needs no step.

    A condition on data is none that can be lowered: such a graph runs in eager.
    """
    if condition is not True:
        lowering.extern(aten._assert_scalar.default, (condition, message), {}, ExternKind.PROMISE)


@register(aten._assert_tensor_metadata.default)
def assert_tensor_metadata(
    lowering: Lowering, tensor: TensorValue, *_: object, **__: object
) -> None:
    """Nothing: inputs and results of operators are looked at before a kernel starts on them."""


@register(aten._assert_async.msg, aten._assert_async.default)
def assert_async(lowering: Lowering, condition: TensorValue, *message: str) -> None:
    """Raise unless an element is true, as ATen does it on each device."""
    target = aten._assert_async.msg if message else aten._assert_async.default
    lowering.extern(target, (condition, *message), {}, ExternKind.PROMISE)


@register(torch.ops.fusec.checked.default)
def checked(
    lowering: Lowering, condition: TensorValue, x: TensorValue, message: str
) -> TensorValue:
    """Return x; the kernel that reads it fails where a condition does not hold."""
    return lowering.pointwise(
        lambda index: ops.check(condition.compute(index), x.compute(index), message)
    )


__all__ = ["PromisedNumber"]
