"""Results that nobody reads, of which a program promises a size.

``torch._check(x.nonzero().size(0) == 3)`` holds of every size that a graph was traced with, so that
AOTAutograd may drop it, and the ``nonzero`` too (torch 2.11 does).  The promise is then never held
against the numbers.
"""

from __future__ import annotations

import copy
import operator

import torch
from torch import fx

aten = torch.ops.aten


def keep_promised_sizes(module: fx.GraphModule) -> fx.GraphModule:
    """Return a captured graph in which whatever is as large as its data say is computed.

    Args:
        module: As TorchDynamo captured it; not changed.
    """
    if not any(node.target is aten._assert_scalar.default for node in module.graph.nodes):
        return module
    sized = [node for node in module.graph.nodes if _is_sized_by_data(node)]
    if not sized:
        return module
    copies: dict[fx.Node, fx.Node] = {}
    changed = copy.copy(module)
    changed.graph = fx.Graph()
    changed.graph.output(changed.graph.graph_copy(module.graph, copies))
    for node in sized:
        with changed.graph.inserting_after(copies[node]):
            # looks at nothing, and is no dead code
            changed.graph.call_function(aten._assert_tensor_metadata.default, (copies[node],))
    changed.recompile()
    return changed


def _is_sized_by_data(node: fx.Node) -> bool:
    source = node.args[0] if node.target is operator.getitem else node
    return (
        isinstance(source, fx.Node)
        and bool(source.meta.get("unbacked_bindings"))
        and isinstance(node.meta.get("example_value"), torch.Tensor)
    )


__all__ = ["keep_promised_sizes"]
