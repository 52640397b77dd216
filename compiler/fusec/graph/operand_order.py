"""Results that lie in memory as eager's do, where torch's formulas lay them out otherwise.

Eager's kernel of an operator on elements goes by all of its operands, the first one before the
others.  A formula of ``torch.where`` goes by its condition first: of ``copysign``, the sign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._prims_common import (
    compute_elementwise_output_logical_to_physical_perm,
    is_contiguous_or_false,
)

aten = torch.ops.aten
Rule = Callable[..., Any]


def _as_operands_lie(
    operator: torch._ops.OpOverload, rule: Rule, deciding: int | None = None
) -> Rule:
    """Return a rule by which a result lies as the operands do, the first one before the others.

    Args:
        operator: Whose result it is.
        rule: What is to become of it where operands lie in order.
        deciding: How many of the operands are looked at; all by default.
    """

    def amended(*args: Any, **kwargs: Any) -> Any:
        found = [each for each in args if isinstance(each, torch.Tensor) and each.ndim]
        if all(is_contiguous_or_false(each) for each in found):
            return rule(*args, **kwargs)
        shape = torch.broadcast_shapes(*(each.shape for each in found))
        # from the outermost to the innermost in memory
        order, _ = compute_elementwise_output_logical_to_physical_perm(
            *(each.expand(shape) for each in found[:deciding])
        )

        def turned(value: Any) -> Any:
            if not (isinstance(value, torch.Tensor) and value.ndim):
                return value
            return value[(None,) * (len(shape) - value.ndim)].permute(order).contiguous()

        made = operator(*map(turned, args), **kwargs)
        return made.permute([order.index(n) for n in range(len(shape))])

    return amended


def _as_broadcast_operands_lie(operator: torch._ops.OpOverload, rule: Rule) -> Rule:
    """Return a rule by which a result lies as operands of several shapes do.

    Torch's formula multiplies the one by a number first, and what is repeated then lies in order.
    """
    by_operands = _as_operands_lie(operator, rule)

    def amended(*args: Any, **kwargs: Any) -> Any:
        shapes = [each.shape for each in args if isinstance(each, torch.Tensor) and each.ndim]
        same = all(len(each) == len(shapes[0]) for each in shapes) and all(
            a is b or (isinstance(a, int) and isinstance(b, int) and a == b)
            for each in shapes
            for a, b in zip(each, shapes[0], strict=True)
        )
        multiplied = kwargs.get("alpha", kwargs.get("value", 1)) != 1
        return (by_operands if multiplied and not same else rule)(*args, **kwargs)

    return amended


def _loss_as_input_lies(operator: torch._ops.OpOverload, rule: Rule) -> Rule:
    """Return a rule by which a loss of each element lies as the first operand does."""
    by_input = _as_operands_lie(operator, rule, 1)

    def amended(*args: Any, **kwargs: Any) -> Any:
        reduction = kwargs.get("reduction", args[3] if len(args) > 3 else 1)
        return (rule if reduction else by_input)(*args, **kwargs)

    return amended


def _in_rows(operator: torch._ops.OpOverload, rule: Rule) -> Rule:
    """Return a rule by which a result lies in order, however the operand does."""

    def amended(*args: Any, **kwargs: Any) -> Any:
        if all(is_contiguous_or_false(each) for each in args if isinstance(each, torch.Tensor)):
            return rule(*args, **kwargs)
        dense = (each.contiguous() if isinstance(each, torch.Tensor) else each for each in args)
        return operator(*dense, **kwargs)

    return amended


def _leave(*args: Any, **kwargs: Any) -> Any:
    return NotImplemented  # to the lowering


_BY_OPERANDS = (
    aten.copysign.Tensor,
    aten.div.Tensor_mode,
    aten.floor_divide.default,
    aten.heaviside.default,
    aten.logaddexp.default,
    aten.logaddexp2.default,
    aten.logical_xor.default,
    aten.special_xlog1py.default,
    aten.xlogy.Tensor,
)
_MULTIPLIED = (aten.add.Tensor, aten.sub.Tensor, aten.addcmul.default)
_IN_ROWS = (aten.isin.Tensor_Scalar, aten.pow.Scalar)


def ordering_rules(rules: Mapping[torch._ops.OperatorBase, Rule]) -> dict[Any, Rule]:
    """Return rules for the operators whose results lie otherwise by torch's formulas.

    Args:
        rules: What is to become of operators whose operands lie in order.
    """
    made = {each: _as_operands_lie(each, rules.get(each, _leave)) for each in _BY_OPERANDS}
    for each in _MULTIPLIED:
        made[each] = _as_broadcast_operands_lie(each, rules.get(each, _leave))
    loss = aten.binary_cross_entropy.default
    made[loss] = _loss_as_input_lies(loss, rules.get(loss, _leave))
    return made | {each: _in_rows(each, rules.get(each, _leave)) for each in _IN_ROWS}


__all__ = ["ordering_rules"]
