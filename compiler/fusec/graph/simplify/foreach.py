"""Operators on lists of tensors become operators on tensors, which then share kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
Rule = Callable[..., list[torch.Tensor]]

# Where the operator on one tensor has another name, or takes a number by name.
_SPECIAL: dict[str, Callable[..., torch.Tensor]] = {
    "addcmul": lambda x, a, b, value=1: _with_value(torch.addcmul, x, a * b, (x, a, b), value),
    "addcdiv": lambda x, a, b, value=1: _with_value(torch.addcdiv, x, a / b, (x, a, b), value),
    "norm": lambda x, order=2, dtype=None: torch.linalg.vector_norm(x, order, dtype=dtype),
    "copy": lambda x, source, non_blocking=False: source.to(x.dtype).expand_as(x).clone(),
    "zero": torch.zeros_like,
    "maximum": torch.clamp_min,  # of a number as well
    "minimum": torch.clamp_max,
}


def _with_value(
    function: Callable[..., torch.Tensor],
    x: torch.Tensor,
    product: torch.Tensor,
    tensors: tuple[torch.Tensor, ...],
    value: Any,
) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return x + value * product
    return function(*tensors, value=value)


def _one_by_one(function: Callable[..., torch.Tensor]) -> Rule:
    def rule(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        count = next(len(a) for a in args if isinstance(a, (list, tuple)))

        def pick(value: Any, position: int) -> Any:
            if isinstance(value, (list, tuple)):
                return value[position]
            if isinstance(value, torch.Tensor) and value.ndim == 1:
                return value[position]  # one number for each tensor, in a tensor
            return value

        return [
            function(*(pick(a, n) for a in args), **{key: pick(a, n) for key, a in kwargs.items()})
            for n in range(count)
        ]

    return rule


def foreach_decompositions() -> dict[torch._ops.OperatorBase, Rule]:
    """Return how each functional operator on lists is taken apart, by overload."""
    table: dict[torch._ops.OperatorBase, Rule] = {}
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    for full in sorted(names):
        name = full.removeprefix("aten::")
        if not name.startswith("_foreach_"):
            continue
        single = name.removeprefix("_foreach_")
        function = _SPECIAL.get(single) or getattr(torch, single, None)
        if function is None or inspect.ismodule(function):
            continue
        packet = getattr(aten, name)
        for overload in packet.overloads():
            if not _writes(getattr(packet, overload)):
                table[getattr(packet, overload)] = _one_by_one(function)
    return table


def _writes(overload: torch._ops.OpOverload) -> bool:
    arguments: Sequence[Any] = overload._schema.arguments
    return any(a.alias_info is not None and a.alias_info.is_write for a in arguments)


__all__ = ["foreach_decompositions"]
