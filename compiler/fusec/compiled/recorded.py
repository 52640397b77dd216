"""A graph that records for autograd and was written down: its class of autograd's, made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusec.call.autocast import without_autocast
from fusec.call.epilogue import Marks, put_marks
from fusec.call.recorded_plan import RecordedPlan, laying_out
from fusec.call.unasked import UnaskedGradients, without_unasked
from fusec.call.updates import note_updates
from fusec.compiled.references import JSON, NotKept, constant, constant_value

Run = Callable[[list[Any]], list[Any]]
_TWICE = "torch.compile with aot_autograd does not currently support double backward"


def written_plan(plan: RecordedPlan) -> JSON:
    """Return a plan as JSON.

    Raises:
        NotKept: A gradient's layout is not known.
    """
    layouts = []
    for shape, strides, memory_format in plan.layouts:
        sizes = [*(shape or ()), *(strides or ())]
        if not all(type(size) is int for size in sizes):
            raise NotKept("the layout of a gradient has symbolic sizes")
        known = None if shape is None else [list(shape), list(strides)]
        layouts.append([known, constant(memory_format)])
    return {
        "updated": list(plan.updated),
        "returned": plan.returned,
        "constant": list(plan.constant),
        "gradients": list(plan.gradients),
        "layouts": layouts,
        "symbols": plan.symbols,
        "marks": written_marks(plan.marks),
        "hidden": list(plan.hidden),
        "unasked": plan.unasked and _written_unasked(plan.unasked),
    }


def written_marks(marks: Marks) -> JSON:
    """Return as JSON what is put on results whose sizes vary."""
    return [[at, name, sorted(dims)] for at, name, dims in marks]


def read_marks(data: JSON) -> Marks:
    """Return what ``written_marks`` wrote."""
    return tuple((at, name, frozenset(dims)) for at, name, dims in data)


def read_plan(data: JSON) -> RecordedPlan:
    """Return what ``written_plan`` wrote."""
    layouts, unasked = [], data.get("unasked")
    for known, memory_format in data["layouts"]:
        shape, strides = (None, None) if known is None else map(tuple, known)
        layouts.append((shape, strides, constant_value(memory_format)))
    return RecordedPlan(
        tuple(data["updated"]),
        int(data["returned"]),
        tuple(data["constant"]),
        tuple(data["gradients"]),
        tuple(layouts),
        int(data["symbols"]),
        read_marks(data["marks"]),
        tuple(data["hidden"]),
        _read_unasked(*unasked) if unasked else None,
    )


def _written_unasked(unasked: UnaskedGradients) -> JSON:
    return [list(unasked.positions), list(unasked.flows), list(unasked.never)]


def _read_unasked(positions: JSON, flows: JSON, never: JSON = ()) -> UnaskedGradients:
    return UnaskedGradients(tuple(positions), tuple(flows), never=tuple(never))


def recorded(plan: RecordedPlan, run_forward: Run, run_backward: Run) -> Callable[..., Any]:
    """Return what calls a forward part and records its backward part for autograd.

    Args:
        plan: What is done beside running them.
        run_forward: Takes the inputs in a list, returns results and what is saved.
        run_backward: Takes what was saved and gradients, returns those of the inputs.
    """
    run_forward, run_backward = without_autocast(run_forward), without_autocast(run_backward)
    laid_out = laying_out(plan)

    def run(ctx: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
        given = laid_out(_plain(plan, gradients))
        return tuple(run_backward([*ctx.symints, *ctx.saved_tensors, *given]))

    class Recorded(torch.autograd.Function):
        """The graph, for autograd."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            return plan.saved(ctx, inputs, run_forward(list(inputs)))

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if torch.is_grad_enabled():
                raise RuntimeError(_TWICE)  # as AOTAutograd says it
            filled = plan.unasked and plan.unasked.filled(ctx, gradients)
            if not filled:
                return run(ctx, gradients)
            if not filled.reached:
                return (None,) * len(ctx.needs_input_grad)
            return without_unasked(run(ctx, filled.gradients), filled.reached)

    apply: Callable[..., Any] = Recorded.apply
    updated = plan.updated

    def call(*inputs: Any) -> Any:
        outputs = apply(*inputs)
        put_marks(plan.marks, outputs[len(updated) :])
        if not updated:
            return outputs
        note_updates([inputs[i] for i in updated], outputs)
        return outputs[len(updated) :]

    return call


def _plain(plan: RecordedPlan, gradients: Sequence[Any]) -> list[Any]:
    """Return the gradients as plain tensors; those that nobody takes are left as they are."""
    found = list(gradients)
    for position in plan.gradients:
        gradient = found[position]
        if type(gradient) is not torch.Tensor:
            raise RuntimeError(f"a gradient is a {type(gradient).__name__}, not a plain tensor")
        if gradient.layout is not torch.strided:
            found[position] = gradient.to_dense()
    return found


__all__ = ["read_marks", "read_plan", "recorded", "written_marks", "written_plan"]
