"""Runs a captured graph by torch's own functions, leaving torch's state as it was if one raises.

TorchDynamo writes a ``with`` block as a function that enters it and one that leaves it.  What
raises in between would leave autocast on, or inference mode, for all that comes after.

The operator that it writes for ``torch.utils.checkpoint`` is made for tracing: what it computes
again draws other random numbers than before, which a compiler is to see to, and it looks at what
operators do from below autograd.  Here it is the function that it stands for.
"""

from __future__ import annotations

import copy
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils.checkpoint import checkpoint

# What enters a block, by name; what leaves it, and whether that takes what the former returned.
_LEFT_BY = {
    "_enter_autocast": ("_exit_autocast", True),
    "_enter_inference_mode": ("_exit_inference_mode", True),
    "_grad_increment_nesting": ("_grad_decrement_nesting", False),
    "_vmap_increment_nesting": ("_vmap_decrement_nesting", False),
    "_jvp_increment_nesting": ("_jvp_decrement_nesting", False),
    "_enter_dual_level": ("_exit_dual_level", True),
    "_saved_tensors_hooks_disable": ("_saved_tensors_hooks_enable", False),
}
_LEAVES = frozenset(name for name, _ in _LEFT_BY.values())

_CHECKPOINT = "tag_activation_checkpoint"
# Graphs by those that were captured, with checkpoints as they run in eager.
_MADE: weakref.WeakKeyDictionary[fx.GraphModule, fx.GraphModule] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


class _Run(fx.Interpreter):
    """One call of a graph; it knows which blocks it is in."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.entered: list[Callable[[], object]] = []

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, args, kwargs)
        name = _name(target)
        if name in _LEAVES:
            self.entered.pop()  # blocks are nested
        elif name in _LEFT_BY:
            left_by, takes = _LEFT_BY[name]
            leave = _beside(target, left_by)
            if left_by == "_exit_dual_level":
                self.entered.append(partial(leave, level=result))
            else:
                self.entered.append(partial(leave, *([result] if takes else [])))
        elif name == "_unpack_dual" and result[1] is None:
            # Nothing is recorded in inference mode; tracing took it for granted that it is.
            return result[0], torch.zeros_like(result[0])
        return result


def _name(target: object) -> str:
    return str(getattr(target, "__name__", ""))


def _beside(target: Any, name: str) -> Callable[..., object]:
    """Return another function of a function's module."""
    found: Callable[..., object] = getattr(sys.modules[target.__module__], name)
    return found


def run_eagerly(module: fx.GraphModule) -> Callable[..., Any]:
    """Return a captured graph as a function.

    Args:
        module: The graph.
    """
    module = _with_checkpoints(module)
    if not any(_name(n.target) in {*_LEFT_BY, "_set_grad_enabled"} for n in module.graph.nodes):
        # Its class's function: a module that is called prints what raises, beside raising it.
        _LazyGraphModule.force_recompile(module)
        return partial(type(module).forward, module)

    def call(*inputs: Any) -> Any:
        run, records = _Run(module), torch.is_grad_enabled()
        try:
            return run.run(*inputs)
        except BaseException:
            for leave in reversed(run.entered):
                leave()
            torch._C._set_grad_enabled(records)
            raise

    return call


def _with_checkpoints(module: fx.GraphModule) -> fx.GraphModule:
    """Return a captured graph whose checkpoints are those of ``torch.utils.checkpoint``."""
    parts = [each for each in module.modules() if isinstance(each, fx.GraphModule)]
    if not any(_CHECKPOINT in str(node.target) for each in parts for node in each.graph.nodes):
        return module
    with _LOCK:
        if module not in _MADE:
            _MADE[module] = _changed(module)
        return _MADE[module]


def _changed(module: fx.GraphModule) -> fx.GraphModule:
    changed = copy.copy(module)
    changed.graph = copy.deepcopy(module.graph)
    for name, part in module.named_children():
        if isinstance(part, fx.GraphModule):
            setattr(changed, name, _changed(part))
    for node in changed.graph.nodes:
        if node.op == "call_function" and _CHECKPOINT in str(node.target):
            node.target = _checkpointed
    changed.recompile()
    return changed


def _checkpointed(module: fx.GraphModule, *args: Any, **options: Any) -> Any:
    """Run a part of a graph, of which backward computes again what it needs."""
    given = module.meta.get("_checkpoint_context_fn")
    others = {name: value for name, value in options.items() if name != "context_fn"}
    others["use_reentrant"] = False  # as it is compiled
    if given is not None:
        others["context_fn"] = given
    return checkpoint(run_eagerly(module), *args, **others)


__all__ = ["run_eagerly"]
