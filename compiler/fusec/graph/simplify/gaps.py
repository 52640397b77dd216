"""Memory with gaps that a program makes and writes into, as a view of memory without.

What ``torch.empty_strided((5,), (2,)).fill_(1)`` returns has strides of 2.  AOTAutograd makes an
operator of the update that returns something new, whose elements lie side by side.  Of an update
of a view it knows how the view lies.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusec.graph.facts.captured import written_by

_FUNCTIONS = (
    torch.empty_strided,
    torch.ops.aten.empty_strided,
    torch.ops.aten.empty_strided.default,
)
_METHOD = "new_empty_strided"


def view_what_has_gaps(module: fx.GraphModule) -> fx.GraphModule:
    """Return a captured graph in which whatever has gaps and is written into is a view.

    Args:
        module: As TorchDynamo captured it; not changed.
    """
    made = [node for node in module.graph.nodes if _has_gaps(node)]
    if not made:
        return module
    written = set().union(*(written_by(node) for node in module.graph.nodes))
    changed = copy.copy(module)
    changed.graph = copy.deepcopy(module.graph)
    copies = dict(zip(module.graph.nodes, changed.graph.nodes, strict=True))
    for node in made:
        if node in written:
            _replace(copies[node])
    return changed


def _has_gaps(node: fx.Node) -> bool:
    """Whether a node makes memory in which elements may not lie side by side, or on each other."""
    if not (node.target in _FUNCTIONS or (node.op == "call_method" and node.target == _METHOD)):
        return False
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or node.kwargs.get("requires_grad"):
        return False
    pairs = list(zip(value.shape, value.stride(), strict=True))
    if any(isinstance(step, int) and step == 0 for _, step in pairs):
        return False
    extent = sum(((size - 1) * step for size, step in pairs), start=1)
    return not statically_known_true(extent == value.numel())


def _layout(node: fx.Node) -> tuple[Any, Any]:
    """Return the sizes and strides that are asked for."""
    given = node.args[node.op == "call_method" :]
    named = dict(zip(("size", "stride"), given, strict=False)) | node.kwargs
    return named.get("size"), named.get("stride")


def _replace(node: fx.Node) -> None:
    graph, given = node.graph, _layout(node)
    rank = node.meta["example_value"].dim()
    options = {name: v for name, v in node.kwargs.items() if name not in ("size", "stride")}
    with graph.inserting_before(node):
        sizes, strides = (
            [graph.call_function(operator.getitem, (each, n)) for n in range(rank)]
            if isinstance(each, fx.Node)  # x.size(), if that is symbolic
            else list(each)
            for each in given
        )
        extent: Any = 1
        for size, step in zip(sizes, strides, strict=True):
            below = graph.call_function(operator.sub, (size, 1))
            reach = graph.call_function(operator.mul, (below, step))
            extent = graph.call_function(operator.add, (extent, reach))
        if any(isinstance(size, int) and size == 0 for size in sizes):
            extent = 0
        if node.op == "call_method":
            whole = graph.call_method("new_empty", (node.args[0], (extent,)), options)
        else:
            whole = graph.call_function(torch.empty, ((extent,),), options)
        view = graph.call_function(torch.as_strided, (whole, sizes, strides))
    view.meta = dict(node.meta)
    node.replace_all_uses_with(view)
    graph.erase_node(node)


__all__ = ["view_what_has_gaps"]
