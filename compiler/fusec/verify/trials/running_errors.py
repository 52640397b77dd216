"""How far roundings can carry each value of a kernel's loops, found on the way beside the value.

A product and a sum that are rounded once, terms added in another order, a factor taken out of a
sum: such a text is as right as eager, and where all cancels neither has a digit.  What every step
may round is known, and so is what the steps behind it make of it: a running error analysis
(Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.3).  Inputs are exact: a
formula that needs digits which the inputs have not is none that roundings excuse.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fusec.ir.body import Body
from fusec.ir.index import Symbol
from fusec.ir.interpret import Evaluator
from fusec.ir.node import Const, IndexValue, Load, Node, Op, Reduce, Scan

# How sums of many terms are rounded is told elsewhere (``other_orders``).
_UNROUNDED = (Const, Load, IndexValue, Reduce, Scan)
# They jump where their argument changes in its last digit, which roundings do not excuse.
_JUMPS = frozenset("sign remainder fmod floor ceil trunc round copysign nextafter".split())
# Nothing of theirs is rounded, whatever the argument.
_EXACT = frozenset("neg abs maximum minimum where fmax fmin".split()) | _JUMPS
# Of these it counts how large what is added is: in another order other sums of it are rounded.
_SUMS = frozenset({"add", "sub"})


class RunningErrors(Evaluator):
    """Evaluates a body in float64; what it stores is as far off as roundings bring it at most.

    To first order: each argument is moved to either end of what it may be, alone.
    """

    def __init__(
        self,
        body: Body,
        tensors: Mapping[str, torch.Tensor],
        sizes: Mapping[Symbol, int],
        precision: torch.dtype | None,
        device: torch.device,
    ) -> None:
        self._reach: dict[int, torch.Tensor] = {}
        super().__init__(body, tensors, sizes, precision, device)
        for key, reach in self._reach.items():
            moved = self.values[key] + reach
            self.values[key] = torch.where(moved.isfinite(), moved, self.values[key])

    def compute(self, node: Node) -> torch.Tensor:
        """Return a node's value, and remember how far off it may be."""
        value = super().compute(node)
        if value.is_floating_point():
            reach = self._carried(node, value) + self._rounded(node, value)
            self._reach[id(node)] = torch.where(reach.isfinite(), reach, 0.0)
        return value

    def _rounded(self, node: Node, value: torch.Tensor) -> torch.Tensor | float:
        """Return what the step itself may round."""
        name = node.name if isinstance(node, Op) else ""
        if isinstance(node, _UNROUNDED) or name in _EXACT:
            return 0.0
        size = value.abs()
        if name in _SUMS:
            left, right = (self.values[id(arg)].abs() for arg in node.args)
            size = left + right
        return torch.finfo(node.dtype).eps * size

    def _carried(self, node: Node, value: torch.Tensor) -> torch.Tensor:
        """Return what becomes of how far the arguments may be off."""
        total = torch.zeros_like(value)
        if isinstance(node, Op) and node.name in _JUMPS:
            return total
        for arg in dict.fromkeys(node.args):
            reach = self._reach.get(id(arg))
            if reach is None or not bool(reach.any()):
                continue
            kept, most = self.values[id(arg)], torch.zeros_like(value)
            for off in (reach, -reach):
                self.values[id(arg)] = kept + off
                moved = (super().compute(node) - value).abs()
                most = torch.maximum(most, torch.where(moved.isfinite(), moved, 0.0))
            self.values[id(arg)] = kept
            total = total + most
        if isinstance(node, Op) and node.name == "where":
            return self._of_either(node.args[1], node.args[2], total)
        return total

    def _of_either(self, yes: Node, no: Node, chosen: torch.Tensor) -> torch.Tensor:
        """Return how far off a choice may be: of what cannot be told apart either may be chosen.

        So it is where a ``relu`` begins, whatever its condition asks.
        """
        apart = (self.values[id(yes)] - self.values[id(no)]).abs()
        reach = self._reach.get(id(yes), 0.0) + self._reach.get(id(no), torch.zeros(()))
        return torch.where(apart <= reach, torch.maximum(chosen, apart + reach), chosen)


__all__ = ["RunningErrors"]
