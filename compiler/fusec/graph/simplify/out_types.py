"""Sums into a tensor of another type, which are added up in that type.

``torch.sum(x, 0, out=integers)`` converts each element first.  AOTAutograd adds up in the type of
``x`` and converts the sum.
"""

from __future__ import annotations

import copy

import torch
from torch import fx

_SUMS = (torch.sum, torch.nansum, torch.prod, torch.mean, torch.cumsum, torch.cumprod)


def sum_in_the_type_of_out(module: fx.GraphModule) -> fx.GraphModule:
    """Return a captured graph in which a sum says the type that its ``out=`` has.

    Args:
        module: As TorchDynamo captured it; not changed.
    """
    if not any(_is_untold(node) for node in module.graph.nodes):
        return module
    changed = copy.copy(module)
    changed.graph = copy.deepcopy(module.graph)
    for node in changed.graph.nodes:
        if _is_untold(node):
            dtype = node.kwargs["out"].meta["example_value"].dtype
            node.kwargs = {**node.kwargs, "dtype": dtype}
    return changed


def _is_untold(node: fx.Node) -> bool:
    if node.target not in _SUMS or node.kwargs.get("dtype") is not None:
        return False
    out = node.kwargs.get("out")
    return isinstance(out, fx.Node) and isinstance(out.meta.get("example_value"), torch.Tensor)


__all__ = ["sum_in_the_type_of_out"]
