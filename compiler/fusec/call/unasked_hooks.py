"""Hooks on tensors that get no gradient: in eager nobody calls them.

Autograd's engine runs what comes before a function of its own even where that function has given it
no gradient, and calls the hooks there with None.  In eager the way to such tensors does not exist,
and a hook that multiplies its gradient would raise.  So where a compiled graph gives no gradient to
some of its inputs (never to one that only code without gradients uses), the hooks that can be found
are made to pass None by: those of the inputs, and of the leaves that these come from.  Hooks on
tensors between them cannot be found.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

# Nodes of autograd's that are looked at for leaves; a long way is not worth its time.
_MOST_NODES = 1000


class _UnlessNone:
    """A tensor's hook, for gradients that are there."""

    def __init__(self, hook: Callable[[Any], Any]) -> None:
        self.hook = hook

    def __call__(self, gradient: torch.Tensor | None) -> Any:
        return None if gradient is None else self.hook(gradient)


def note_inputs(ctx: Any, inputs: Sequence[Any]) -> None:
    """Note for backward the inputs that are no leaves: from there, leaves alone can be found.

    Args:
        ctx: Autograd's, of one call of forward.
        inputs: Of the forward graph.
    """
    ctx.fusec_inputs = [
        weakref.ref(each)
        for each in inputs
        if isinstance(each, torch.Tensor) and each.grad_fn is not None
    ]


def pass_none_by(ctx: Any) -> None:
    """Make hooks pass None by, on inputs and on the leaves that these come from.

    Hooks of ``register_multi_grad_hook`` stay: those are to be called with None.

    Args:
        ctx: Autograd's, in backward.
    """
    for reference in getattr(ctx, "fusec_inputs", ()):
        _wrap(reference())
    for leaf in _leaves(ctx):
        _wrap(leaf)


def pass_none_by_at(ctx: Any, places: Sequence[int]) -> None:
    """Make hooks pass None by, on leaves that no result's gradient flows to.

    Args:
        ctx: Autograd's, in backward.
        places: Of the leaves, among all tensors that forward was given.
    """
    for place in places:
        node = ctx.next_functions[place][0]
        if node is not None:
            _wrap(getattr(node, "variable", None))


def _leaves(ctx: Any) -> Iterator[Any]:
    waiting = [node for node, _ in ctx.next_functions if node is not None]
    seen = set(waiting)
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                waiting.append(after)


def _wrap(tensor: Any) -> None:
    hooks = getattr(tensor, "_backward_hooks", None) or {}
    for key, hook in list(hooks.items()):
        if not isinstance(hook, _UnlessNone) and "multi_grad" not in _name(hook):
            hooks[key] = _UnlessNone(hook)


def _name(hook: object) -> str:
    return str(getattr(hook, "__qualname__", ""))


__all__ = ["note_inputs", "pass_none_by", "pass_none_by_at"]
