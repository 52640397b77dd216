"""Gradients of the gradients that AOTAutograd's backward gives: computed in eager, or refused.

AOTAutograd computes first gradients alone.  Where somebody asks for gradients of them, it raises,
but only if autograd comes to its node; what it returns is joined to values that its forward saved,
not to the inputs.  ``torch.autograd.grad(g, x, allow_unused=True)`` therefore finds no way from
``g`` to ``x`` and says that there is none: ``torch.autograd.functional.hessian`` makes zeros of it.
Eager has a gradient there. Gradients are joined to the inputs therefore: to leaves, which autograd
knows, and to others as long as somebody holds them, for who asks for a gradient of one has it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch.autograd import functional

from fusec.capture.fast_path.given_inputs import given_inputs, note_given
from fusec.capture.fast_path.recorded import never_traced
from fusec.capture.gradients.behind_breaks import (
    behind_the_break,
    ends_at_a_break,
    may_be_given,
)
from fusec.capture.gradients.result_modes import results_of
from fusec.capture.gradients.unasked import autograd_functions

_TWICE = "torch.compile with aot_autograd does not currently support double backward"
_ALWAYS = frozenset(["hessian", "hvp", "jvp", "vhp"])  # which differentiate gradients themselves
_DEPTH = 3  # how far functions are followed that are called behind the break
_UNKNOWN = (AttributeError, ImportError, LookupError, TypeError, ValueError)


def asks_for_second_gradients() -> str:
    """Return why a graph that is captured now runs in eager: for what it is called by, or ""."""
    name = _asking(sys._getframe())
    return name and (
        f"torch.autograd.functional.{name} calls it, which asks for gradients of gradients, "
        "and AOTAutograd has none: torch.func has them within one graph"
    )


def keeps_gradients(module: fx.GraphModule) -> str:
    """Return why a captured graph runs in eager for what is asked behind the break that ends it.

    ``torch.autograd.grad(..., create_graph=True)`` ends the graph that it takes gradients of, in
    the function that is compiled.  Where it is a constant, eager's gradient has no history.
    """
    if not ends_at_a_break(module) or not any(
        value.requires_grad for value in results_of(module).values()
    ):
        return ""
    behind = behind_the_break()
    if behind is None or not may_be_given("create_graph", behind, _DEPTH):
        return ""
    return (
        "create_graph=True stands behind the graph break that ends it and asks for gradients of "
        "gradients, of which AOTAutograd has none: torch.func has them within one graph"
    )


def refuse_second_gradients(compiled: Callable[..., Any]) -> None:
    """Have gradients of gradients raise where AOTAutograd would let them be taken for none.

    Args:
        compiled: What AOTAutograd made of a graph.
    """
    for function in autograd_functions(compiled):
        try:
            _install(function)
        except _UNKNOWN:
            continue  # another release of torch has other classes


def _asking(frame: FrameType | None) -> str:
    """Return which of torch.autograd.functional's functions that differentiate twice was called."""
    space, found = vars(functional), ""
    while frame is not None:
        if frame.f_globals is space:
            name = frame.f_code.co_name
            if name in _ALWAYS or (
                name in ("jacobian", "vjp") and frame.f_locals.get("create_graph")
            ):
                found = name  # hessian calls jacobian
        frame = frame.f_back
    return found


class _Joined(torch.autograd.Function):
    """Gradients as they are, and a way from them to the inputs, on which whoever takes it fails."""

    @staticmethod
    def forward(ctx: Any, leaves: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(each.detach() for each in tensors[leaves:])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(_TWICE)


def _install(function: Any) -> None:
    run: Callable[..., Any] = function.forward
    first: Callable[..., Any] = function.backward

    def forward(ctx: Any, *given: Any) -> Any:
        note_given(ctx, given)
        return run(ctx, *given)

    def backward(ctx: Any, *given: Any) -> Any:
        results = first(ctx, *given)
        return _joined(ctx, results) if torch.is_grad_enabled() else results

    never_traced()(forward.__code__)
    never_traced()(backward.__code__)
    function.forward = staticmethod(functools.wraps(run)(forward))
    function.backward = staticmethod(backward)


def _joined(ctx: Any, results: Any) -> Any:
    """Join gradients to the inputs of the graph, and to the leaves that these come from."""
    if asking := _asking(sys._getframe()):
        raise RuntimeError(
            f"functional.{asking} asks for gradients of gradients of a graph that was compiled for "
            f"other calls: {_TWICE}; call torch._dynamo.reset() first, or use torch.func"
        )
    places = [i for i, each in enumerate(results) if isinstance(each, torch.Tensor)]
    inputs = [*given_inputs(ctx), *_leaves(ctx)]
    if not inputs or not places:
        return results
    found = list(results)
    joined = _Joined.apply(len(inputs), *inputs, *(found[i] for i in places))  # type: ignore[no-untyped-call]
    for i, each in zip(places, joined, strict=True):
        found[i] = each
    return tuple(found)


def _leaves(node: Any) -> Iterator[torch.Tensor]:
    """Yield the leaves that a node's gradients go to, each once."""
    waiting, seen = [node], {node}
    while waiting:
        for each, _ in waiting.pop().next_functions:
            if each is None or each in seen:
                continue
            seen.add(each)
            if hasattr(each, "variable"):
                yield each.variable
            else:
                waiting.append(each)


__all__ = ["asks_for_second_gradients", "keeps_gradients", "refuse_second_gradients"]
