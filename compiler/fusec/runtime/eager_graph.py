"""Runs a captured graph by torch's own functions, leaving torch's state as it was if one raises.

TorchDynamo writes a ``with`` block as a function that enters it and one that leaves it.  What
raises in between would leave autocast on, or inference mode, for all that comes after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.amp import autocast_mode
from torch.autograd import grad_mode

# What enters a block, and what leaves it, given what the former returned.
_LEFT_BY: dict[Any, Callable[[Any], Any]] = {
    autocast_mode._enter_autocast: autocast_mode._exit_autocast,  # type: ignore[attr-defined]
    grad_mode._enter_inference_mode: grad_mode._exit_inference_mode,  # type: ignore[attr-defined]
}


class _Run(fx.Interpreter):
    """One call of a graph; it knows which blocks it is in."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.entered: list[tuple[Callable[[Any], Any], Any]] = []

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in _LEFT_BY.values():
            self.entered = [each for each in self.entered if each[1] is not args[0]]
        result = super().call_function(target, args, kwargs)
        if target in _LEFT_BY:
            self.entered.append((_LEFT_BY[target], result))
        return result


def run_eagerly(module: fx.GraphModule) -> Callable[..., Any]:
    """Return a captured graph as a function.

    Args:
        module: The graph.
    """
    if not any(node.target in _LEFT_BY or _sets_gradients(node) for node in module.graph.nodes):
        return module.forward

    def call(*inputs: Any) -> Any:
        run, records = _Run(module), torch.is_grad_enabled()
        try:
            return run.run(*inputs)
        except BaseException:
            for leave, what in reversed(run.entered):
                leave(what)
            torch._C._set_grad_enabled(records)
            raise

    return call


def _sets_gradients(node: fx.Node) -> bool:
    return node.target is torch._C._set_grad_enabled


__all__ = ["run_eagerly"]
