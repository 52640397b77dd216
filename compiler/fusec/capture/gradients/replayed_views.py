"""A detached result that lies as a view that is a result, too: AOTAutograd makes that view twice.

Where a view of a value made within is returned, AOTAutograd makes it anew of that value.  A result
of ``detach()`` that lies just so it takes for that view, and does to it once more what was done to
the value: ``v, v.detach()`` of ``v = y.t()`` are ``y.t(), y``, and of ``v = y[1:]`` it raises.
"""

from __future__ import annotations

import torch
from torch import fx

from fusec.capture.gradients.result_modes import results_of, storage_of, tensors_of

# What a value may go through twice: it is told all of its new shape.
_RESHAPES = frozenset({"view", "view_as", "reshape", "reshape_as", "flatten"})
_SAME = frozenset({"detach", "_get_data_attr", "alias"})


def repeats_views(module: fx.GraphModule) -> str:
    """Return why a captured graph has to run in eager for a detached view that it returns."""
    results = results_of(module)
    views = {_place(v) for v in results.values() if v.requires_grad and v._is_view()}
    if not views:
        return ""
    given = {
        storage_of(v) for n in module.graph.find_nodes(op="placeholder") for v in tensors_of(n)
    }
    (output,) = module.graph.find_nodes(op="output")
    for position, value in results.items():
        if value.requires_grad or _place(value) not in views or storage_of(value) in given:
            continue
        if _is_made_twice(output.args[0][position]):
            return "AOTAutograd would make a detached view of what is a view already"
    return ""


def _place(value: torch.Tensor) -> tuple[object, ...]:
    """Return which memory a fake tensor is, and how it lies there, without a guard."""
    numbers = (value.storage_offset(), *value.shape, "by", *value.stride())
    return storage_of(value), value.dtype, *map(str, numbers)


def _is_made_twice(node: object) -> bool:
    """Whether a result was detached, and more than its shape changed on the way."""
    detached = changed = False
    while isinstance(node, fx.Node) and node.op in ("call_method", "call_function"):
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        value = node.meta.get("example_value")
        if name in _SAME:
            detached = True
        elif isinstance(value, torch.Tensor) and not value._is_view():
            break  # it is computed here
        else:
            changed |= name not in _RESHAPES
        node = node.args[0] if node.args else None
    return detached and changed


__all__ = ["repeats_views"]
