"""Operators that take functions: cond, while_loop, scan, map, flex_attention; calls in an order.

Each stays a call of torch's own, with the traced functions as they are; what stands around it
becomes kernels as ever.  Such a call promises less than an operator does about where its results
lie, so they are laid out as they were traced, in memory of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from fusec.lower.values import GraphNotLowered, Lowering, ResultMeta, TensorValue

_CALLED = frozenset(
    "cond while_loop while_loop_stack_output scan map_impl associative_scan flex_attention "
    "flex_attention_backward with_effects invoke_quant invoke_quant_packed".split()
)


class Subgraph:
    """A traced function among the arguments of a call."""

    def __init__(self, name: str, module: fx.GraphModule) -> None:
        self.name = name
        self.module = module

    def __repr__(self) -> str:
        return self.name


class HigherOrderCall:
    """Calls an operator that takes functions.

    Args:
        target: The operator.
        strides: Of each result; None for what is no tensor.
        name: What people call it, where that is not the operator's own name.
    """

    def __init__(
        self,
        target: torch._ops.HigherOrderOperator,
        strides: Sequence[tuple[int, ...] | None],
        name: str = "",
    ) -> None:
        self.target = target
        self.name = name or str(target.name())
        self.strides = tuple(strides)

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return its results: a tuple without tuples in it, or the only one."""
        args, kwargs = tree_map(_module, (args, kwargs))
        with torch.no_grad():
            results = self.target(*args, **kwargs)
        flat = tree_leaves(results)
        given = {_memory(v) for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)}
        made: list[Any] = []
        for result, strides in zip(flat, self.strides, strict=True):
            if result is None:  # a gradient that tracing took for one, and nobody has
                made.append(None)
                continue
            laid_out = result if strides is None else _laid_out(result, strides, given)
            if strides is not None:
                given.add(_memory(laid_out))
            made.append(laid_out)
        return made[0] if len(made) == 1 else tuple(made)


def _module(value: object) -> object:
    return value.module if isinstance(value, Subgraph) else value


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _laid_out(value: torch.Tensor, strides: tuple[int, ...], given: set[int]) -> torch.Tensor:
    """Return a result with the strides that were traced, at the beginning of its own memory."""
    if value.stride() == strides and not value.storage_offset() and _memory(value) not in given:
        return value
    placed = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return placed.copy_(value)


def call_whole(
    lowering: Lowering,
    target: torch._ops.HigherOrderOperator,
    args: Sequence[object],
    kwargs: dict[str, object],
    because: str = "",
) -> tuple[TensorValue | None, ...]:
    """Emit a call of an operator that takes functions; return its results.

    Args:
        lowering: Where to.
        target: The operator.
        args: Its arguments, as values.
        kwargs: The named ones.
        because: Why the operator has no kernel, where it could have one.

    Raises:
        GraphNotLowered: It is one that nobody knows here, or the sizes of its results are symbolic.
    """
    if target.name() not in _CALLED:
        raise GraphNotLowered(f"{target} has no lowering")
    strides = tuple(_constant_strides(target, meta) for meta in lowering.results)
    name = str(target.name())
    if name == "with_effects" and isinstance(args[1], torch._ops.OpOverload):
        name = str(args[1])  # which it calls in the order written
    whole = HigherOrderCall(target, strides, name)
    reason = f"{name.removesuffix('.default')} runs as torch's own"
    return lowering.extern(whole, args, kwargs, f"{reason}: {because}" if because else reason)


def _constant_strides(
    target: torch._ops.HigherOrderOperator, meta: ResultMeta | None
) -> tuple[int, ...] | None:
    if meta is None:
        return None
    known = [stride.constant for stride in meta.strides]
    if any(expr.constant is None for expr in (*meta.strides, *meta.shape)) or meta.offset != 0:
        raise GraphNotLowered(f"{target} has results of symbolic sizes")
    return tuple(stride for stride in known if stride is not None)


__all__ = ["HigherOrderCall", "Subgraph", "call_whole"]
