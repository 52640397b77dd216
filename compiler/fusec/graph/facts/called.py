"""Which operator was called, where a graph has what that was taken apart into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._pytree import tree_map

from fusec.graph.facts.element_strides import has_few, is_on_elements, is_reduction

_KEY = "fusec called"
# What lies in the format that its operand seems to have while torch traces it.
_BY_FORMAT = frozenset((torch.ops.aten.roll.default,))
Call = tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]
Rule = Callable[..., Any]


def remembering(operator: object, rule: Rule) -> Rule:
    """Return a decomposition whose result says which operator it is one of.

    It is so where that says more than what it was taken apart into: how few elements lie.
    """
    # What a reduction is taken apart into ends in one, which lies in order as well.
    if not (is_on_elements(operator) or operator in _BY_FORMAT) or is_reduction(operator):
        return rule

    def remembered(*args: Any, **kwargs: Any) -> Any:
        made = rule(*args, **kwargs)
        first = made[0] if isinstance(made, tuple) else made
        if has_few(first):
            _note(first, operator, args, kwargs)
        return made

    return remembered


def _note(made: torch.Tensor, operator: Any, args: Any, kwargs: Any) -> None:
    mode = get_proxy_mode()
    if mode is None:
        return

    def node(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        found: Any = get_proxy_slot(value, mode.tracer, None)
        return value if found is None else found.proxy.node

    result, given = node(made), tree_map(node, (tuple(args), dict(kwargs)))
    if isinstance(result, fx.Node) and not any(each is result for each in given[0]):
        result.meta[_KEY] = (operator, *given)


def take_called(node: fx.Node) -> Call | None:
    """Return the operator that a node's result is of, with its arguments; forget it."""
    found: Call | None = node.meta.pop(_KEY, None)
    return found


__all__ = ["Call", "remembering", "take_called"]
