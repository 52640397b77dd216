"""Updates that eager refuses: of a tensor whose type cannot hold what is computed.

``x.mul_(1.5)`` of integers, or ``out=`` of another type.  Fake tensors let some of them pass, and a
functional graph converts without a word.  A graph that has one runs in eager, which raises there.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

# In place, with a result of the type that the operands have in common.
_IN_PLACE = frozenset(("mul_", "multiply_", "__imul__", operator.imul))
# Into ``out=`` of just the type of the result; other functions convert where that is safe.
_EXACT = frozenset((torch.amax, torch.amin, torch.aminmax, torch.complex, torch.polar))


def refused_update(module: fx.GraphModule) -> str:
    """Return which update of a captured graph eager refuses, or an empty string."""
    for node in module.graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        if node.target in _IN_PLACE and _is_too_wide(node):
            return f"{node.name} has a result that its tensor cannot hold"
        if node.target in _EXACT and _writes_another_type(node):
            return f"{node.name} writes into a tensor of another type"
    return ""


def _is_too_wide(node: fx.Node) -> bool:
    target, *others = (_value(arg) for arg in node.args)
    if not isinstance(target, torch.Tensor) or not others:
        return False
    if not isinstance(others[0], (torch.Tensor, int, float, complex)):
        return False
    return not torch.can_cast(torch.result_type(target, others[0]), target.dtype)


def _writes_another_type(node: fx.Node) -> bool:
    out = list(_types(node.kwargs.get("out")))
    if not out:
        return False
    given = next(_types(node.args), None)
    if given is not None and node.target in (torch.complex, torch.polar):
        given = torch.complex128 if given == torch.float64 else torch.complex64
    return given is not None and any(dtype != given for dtype in out)


def _types(values: object) -> Iterator[torch.dtype]:
    for leaf in tree_leaves(values):
        value = _value(leaf)
        if isinstance(value, torch.Tensor):
            yield value.dtype


def _value(arg: object) -> object:
    return arg.meta.get("example_value") if isinstance(arg, fx.Node) else arg


__all__ = ["refused_update"]
