"""The table from ATen operators to their lowerings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from fusec.lower.values import Lowering

Rule = Callable[..., Any]
_RULES: dict[object, Rule] = {}
_F = TypeVar("_F", bound=Rule)

aten = torch.ops.aten


def register(*targets: object) -> Callable[[_F], _F]:
    """Register a lowering: ``rule(lowering, *args, **kwargs)`` for each of ``targets``.

    A target is an overload (``aten.add.Tensor``) or a packet (``aten.exp``), which stands for
    all of its overloads that have no rule of their own; or the name of an operator that is there
    only once something of torch has been imported (``prims::fma``).  Tensor arguments arrive as
    ``TensorValue``, symbolic integers as ``Expr``, everything else as in the graph.  The rule
    returns a ``TensorValue``, or a tuple of them for an operator with several results.
    """

    def decorate(rule: _F) -> _F:
        for target in targets:
            if target in _RULES:
                raise ValueError(f"two lowerings of {target}")
            _RULES[target] = rule
        return rule

    return decorate


def find_rule(target: object) -> Rule | None:
    """Return the lowering of an operator, or None."""
    rule = _RULES.get(target)
    if rule is None and isinstance(target, torch._ops.OpOverload):
        rule = _RULES.get(target._schema.name)
    # out= variants write to their arguments and need a rule of their own
    if (
        rule is None
        and isinstance(target, torch._ops.OpOverload)
        and "out" not in target._overloadname.split("_")
    ):
        return _RULES.get(target.overloadpacket)
    return rule


def registered() -> tuple[object, ...]:
    """Return every target that has a lowering."""
    return tuple(_RULES)


__all__ = ["Lowering", "aten", "find_rule", "register", "registered"]
