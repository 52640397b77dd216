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


def _as_operands_lie(operator: torch._ops.OpOverload, rule: Rule) -> Rule:
    """Return a rule by which a result lies as the operands do, the first one before the others."""

    def amended(*args: Any, **kwargs: Any) -> Any:
        found = [each for each in args if isinstance(each, torch.Tensor) and each.ndim]
        if all(is_contiguous_or_false(each) for each in found):
            return rule(*args, **kwargs)
        shape = torch.broadcast_shapes(*(each.shape for each in found))
        # from the outermost to the innermost in memory
        order, _ = compute_elementwise_output_logical_to_physical_perm(
            *(each.expand(shape) for each in found)
        )

        def turned(value: Any) -> Any:
            if not (isinstance(value, torch.Tensor) and value.ndim):
                return value
            return value[(None,) * (len(shape) - value.ndim)].permute(order).contiguous()

        made = operator(*map(turned, args), **kwargs)
        return made.permute([order.index(n) for n in range(len(shape))])

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
    aten.special_xlog1py.default,
    aten.xlogy.Tensor,
)
_IN_ROWS = (aten.isin.Tensor_Scalar, aten.pow.Scalar)


def ordering_rules(rules: Mapping[torch._ops.OperatorBase, Rule]) -> dict[Any, Rule]:
    """Return rules for the operators whose results lie otherwise by torch's formulas.

    Args:
        rules: What is to become of operators whose operands lie in order.
    """
    made = {each: _as_operands_lie(each, rules.get(each, _leave)) for each in _BY_OPERANDS}
    return made | {each: _in_rows(each, rules.get(each, _leave)) for each in _IN_ROWS}


__all__ = ["ordering_rules"]
