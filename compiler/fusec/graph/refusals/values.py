"""Values that eager refuses on a CPU, and that torch's decompositions take whatever they are.

A negative index of ``index_add`` counts from the end there, ``binary_cross_entropy`` of 2 is some
number. Here they go through ``fusec::checked`` first: a check within the kernel that reads them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import get_decompositions

from fusec.devices import CPU
from fusec.errors import ValueRefused

Tensor = torch.Tensor
Rule = Callable[..., Any]
aten = torch.ops.aten


def _checked(condition: Tensor, value: Tensor, message: str) -> Tensor:
    """Return a copy of a value; raise where a condition of the same shape does not hold."""
    if not bool(condition.all()):
        raise ValueRefused(message)
    return value.clone()


_LIBRARY = torch.library.Library("fusec", "FRAGMENT")
_LIBRARY.define("checked(Tensor condition, Tensor value, str message) -> Tensor")
_LIBRARY.impl("checked", _checked, "CompositeExplicitAutograd")
_LIBRARY.impl("checked", lambda condition, value, message: torch.empty_like(value), "Meta")


def within(x: Tensor, low: Any, high: Any, message: str) -> Tensor:
    """Return a tensor of which each element is found to be from ``low`` to ``high``, both included.

    On a GPU it is the tensor itself: eager's own assertions end every later call there.
    """
    if x.device.type != CPU:
        return x
    inside = (x >= low) & (x <= high)
    return torch.ops.fusec.checked.default(inside, x, message)  # type: ignore[no-any-return]


def _binary_cross_entropy(rule: Rule) -> Rule:
    def amended(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Any:
        x = within(x, 0, 1, "all elements of input should be between 0 and 1")
        target = within(target, 0, 1, "all elements of target should be between 0 and 1")
        if weight is None or weight.dtype == x.dtype:
            return rule(x, target, weight, reduction)
        loss = (rule(x, target, None, 0) * weight).to(x.dtype)  # eager multiplies in place
        return {0: lambda: loss, 1: loss.mean, 2: loss.sum}[reduction]()

    return amended


def _indexed(rule: Rule) -> Rule:
    """Return a rule of ``index_add`` or ``index_copy`` that counts no index from the end."""

    def amended(x: Tensor, dim: int, index: Tensor, source: Tensor, **rest: Any) -> Any:
        size = x.shape[dim] if x.ndim else 1
        return rule(x, dim, within(index, 0, size - 1, "index out of range"), source, **rest)

    return amended


def _unpooled(rule: Rule) -> Rule:
    """Return a rule of ``max_unpool`` that puts nothing into another channel."""

    def amended(x: Tensor, indices: Tensor, size: Sequence[int], *rest: Any) -> Any:
        last = functools.reduce(lambda a, b: a * b, size) - 1
        return rule(x, within(indices, 0, last, "Found an invalid max index"), size, *rest)

    return amended


_WRAPPERS: dict[torch._ops.OpOverload, Callable[[Rule], Rule]] = {
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    aten.index_add.default: _indexed,
    aten.index_copy.default: _indexed,
    aten.max_unpool2d.default: _unpooled,
    aten.max_unpool3d.default: _unpooled,
}


def value_checking_rules() -> dict[torch._ops.OperatorBase, Rule]:
    """Return torch's decompositions of such operators, with the checks of eager's kernels."""
    rules = get_decompositions(list(_WRAPPERS))
    return {each: wrapper(rules[each]) for each, wrapper in _WRAPPERS.items()}


__all__ = ["value_checking_rules", "within"]
