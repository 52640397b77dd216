"""What a call that records for autograd does beside running its forward and backward graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusec.call.epilogue import Marks
from fusec.call.unasked import UnaskedGradients


@dataclass(frozen=True)
class RecordedPlan:
    """What a pair of graphs does, as positions.

    Attributes:
        updated: The inputs that the first outputs are copied into.
        returned: How many outputs are not saved for backward.
        symbols: How many of those that are saved, the last ones, are sizes.
        constant: Those of them that have no gradient.
        gradients: Positions of the gradients that the backward graph takes.
        layouts: Shape and strides of each of these, or its memory format.
        marks: What AOTAutograd puts on results whose sizes vary.
        hidden: Outputs that may lie in something computed within, which autograd is not told.
        unasked: Which inputs get no gradient where some results are not asked for theirs; None
            where that is not known, and they get zeros.
    """

    updated: tuple[int, ...]
    returned: int
    constant: tuple[int, ...]
    gradients: tuple[int, ...]
    layouts: tuple[tuple[Any, Any, torch.memory_format | None], ...]
    symbols: int
    marks: Marks
    hidden: tuple[int, ...]
    unasked: UnaskedGradients | None

    def saved(self, ctx: Any, inputs: Sequence[Any], outputs: list[Any]) -> tuple[Any, ...]:
        """Save for backward what forward computed for it; return what its caller gets.

        Args:
            ctx: Autograd's.
            inputs: Of the forward graph.
            outputs: Likewise, all of them.
        """
        # As AOTAutograd does it: a view would keep its base and its history.
        end = len(outputs) - self.symbols
        kept, ctx.symints = outputs[self.returned : end], outputs[end:]
        ctx.save_for_backward(*[t.detach() if t._is_view() else t for t in kept])
        for i, each in enumerate(self.updated):
            if outputs[i] is inputs[each]:
                outputs[i] = None  # its kernel has updated it; torch would return a view of it
        for i in self.hidden:
            # AOTAutograd's unsafe view has a version of its own: an update of the result would go
            # unseen where what it lies in is saved.
            outputs[i] = outputs[i].detach()
        if self.constant:
            values = [outputs[i] for i in self.constant]
            ctx.mark_non_differentiable(*[v for v in values if isinstance(v, torch.Tensor)])
        ctx._materialize_non_diff_grads = False
        if self.unasked is not None:
            ctx.materialize_grads = False
            if self.unasked.forms is None or len(self.unasked.positions) > 1:
                self.unasked.note(ctx, inputs, outputs)
        return tuple(outputs[: self.returned])


Save = Callable[[Any, Sequence[Any], list[Any]], tuple[Any, ...]]


def saving(plan: RecordedPlan) -> Save:
    """Return ``plan.saved``, or what does the same in fewer steps where that is little.

    The second leaves out what is not there by the plan: half a microsecond of seven. Where nothing
    is saved but tensors, it leaves ``ctx.symints`` alone.
    """
    unasked, returned = plan.unasked, plan.returned
    if plan.updated or plan.hidden or plan.constant or plan.symbols or unasked is None:
        return plan.saved
    note = unasked.note if unasked.forms is None or len(unasked.positions) > 1 else None
    is_view = torch.Tensor._is_view

    def saved(ctx: Any, inputs: Sequence[Any], outputs: list[Any]) -> tuple[Any, ...]:
        kept = outputs[returned:]
        if any(map(is_view, kept)):
            kept = [t.detach() if t._is_view() else t for t in kept]
        ctx.save_for_backward(*kept)
        ctx.materialize_grads = False
        if note is not None:
            note(ctx, inputs, outputs)
        return tuple(outputs[:returned])

    return saved


def laying_out(plan: RecordedPlan) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """Return what puts the gradients that the backward graph takes in the layouts it wants."""
    wanted = tuple(
        (position, *layout) for position, layout in zip(plan.gradients, plan.layouts, strict=True)
    )

    def laid_out(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        found = []
        for position, shape, strides, memory_format in wanted:
            gradient = gradients[position]
            if memory_format is not None:
                gradient = gradient.contiguous(memory_format=memory_format)
            elif gradient.shape != shape or gradient.stride() != strides:
                dtype, device = gradient.dtype, gradient.device
                made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
                gradient = made.copy_(gradient)
            found.append(gradient)
        return found

    return laid_out


__all__ = ["RecordedPlan", "laying_out", "saving"]
