"""Gradients that nobody asked for: of results of a graph that no loss depends on.

In eager they do not exist, and what only such results depend on has no gradient: ``.grad`` stays
None, and an optimizer leaves the parameter alone.  A function of autograd's is given zeros for
them, from which come gradients of zeros, by which momentum or weight decay moves parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusec.call.unasked_hooks import note_inputs, pass_none_by, pass_none_by_at

Form = tuple[torch.Size, torch.dtype, torch.device]


@dataclass(frozen=True)
class Filled:
    """Gradients of results, with zeros for those that nobody asked for.

    Attributes:
        gradients: All of them.
        reached: The inputs, as bits, that one which was asked for flows to: others have none.
        missing: Which of those that backward takes were not asked for, by their numbers, where
            what is computed from zeros is added to what is asked for: it may be no zeros.
    """

    gradients: list[Any]
    reached: int
    missing: frozenset[int]


@dataclass(frozen=True)
class UnaskedGradients:
    """Which gradients a backward graph takes, and to which inputs each of them flows.

    Attributes:
        positions: Of results, among all that forward returns, that backward takes a gradient of.
        flows: For each of them, as bits, the inputs that its gradient flows to.
        forms: Shape, type and device of each; None where sizes vary.
        never: The leaves that none of them flows to, by their places among all tensors given.
    """

    positions: tuple[int, ...]
    flows: tuple[int, ...]
    forms: tuple[Form, ...] | None = None
    never: tuple[int, ...] = ()

    def note(self, ctx: Any, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Note for backward what it has to know where not all gradients are asked for.

        Args:
            ctx: Autograd's, of one call of forward, whose ``materialize_grads`` is False.
            inputs: Of that.
            results: What it returns.
        """
        if self.forms is None:
            ctx.fusec_forms = [form_of(results[i]) for i in self.positions]
        if len(self.positions) > 1:  # of one, either all is asked for, or nothing runs
            note_inputs(ctx, inputs)

    def filled(self, ctx: Any, gradients: Sequence[Any]) -> Filled | None:
        """Return the gradients with zeros for those that nobody asked for; None if all were."""
        if self.never:
            pass_none_by_at(ctx, self.never)
        for i in self.positions:
            if gradients[i] is None:
                break
        else:
            return None  # nearly every call
        pass_none_by(ctx)
        missing = frozenset(k for k, i in enumerate(self.positions) if gradients[i] is None)
        found, reached, touched = list(gradients), 0, 0
        forms = ctx.fusec_forms if self.forms is None else self.forms
        for i, flows, (shape, dtype, device) in zip(self.positions, self.flows, forms, strict=True):
            if gradients[i] is None:
                found[i] = torch.zeros(shape, dtype=dtype, device=device)
                touched |= flows
            else:
                reached |= flows
        return Filled(found, reached, missing if reached & touched else frozenset())


def form_of(value: torch.Tensor) -> Form:
    """Return what a gradient of zeros is made by."""
    return value.shape, value.dtype, value.device


def without_unasked(gradients: Sequence[Any], reached: int) -> tuple[Any, ...]:
    """Return the gradients of inputs, with None for those that no gradient flows to.

    Args:
        gradients: As backward computes them from zeros for what nobody asked for.
        reached: As ``Filled`` has it.
    """
    return tuple(each if reached >> i & 1 else None for i, each in enumerate(gradients))


__all__ = ["Filled", "Form", "UnaskedGradients", "form_of", "without_unasked"]
