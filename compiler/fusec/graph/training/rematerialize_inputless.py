"""What follows from no input is computed again in backward, rather than kept for it.

Torch's partitioner counts bytes: it keeps the places that an interpolation reads at, a mask, a row
of positions, because they are small.  But they are kernels of forward then, and backward knows
nothing of them but that they are numbers in memory.  Where it computes them itself they are part of
its kernels, which can tell what they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusec.graph.facts.joint_graph import is_view

aten, prims = torch.ops.aten, torch.ops.prims
# Beside pointwise operators and views of what they make; none of them reads a tensor.
_MADE = frozenset(
    (
        prims.iota.default,
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.full.default,
        aten.zeros.default,
        aten.ones.default,
        aten.scalar_tensor.default,
        aten._to_copy.default,
        aten.clone.default,
        prims.convert_element_type.default,
    )
)


def compute_inputless_again(
    forward: fx.GraphModule, backward: fx.GraphModule, outputs: int
) -> tuple[str, ...]:
    """Move what follows from no input from the saved tensors into backward; return their names.

    Args:
        forward: As torch's partitioner made it: its results, then what is saved; changed in place.
        backward: Its placeholders have the names of what is saved; changed in place.
        outputs: How many results of forward are its own.
    """
    (output,) = forward.graph.find_nodes(op="output")
    values: list[Any] = list(output.args[0])
    known = _following_from_nothing(forward.graph)
    moved = [node for node in values[outputs:] if node in known]
    if not moved:
        return ()
    placeholders = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    if any(node.name not in placeholders for node in moved):
        return ()
    after = next(node for node in backward.graph.nodes if node.op != "placeholder")
    again: dict[fx.Node, fx.Node] = {}
    with backward.graph.inserting_before(after):
        for node in forward.graph.nodes:
            if node in known:  # what nobody reads there is removed below
                again[node] = backward.graph.node_copy(node, again.__getitem__)
    for node in moved:
        placeholders[node.name].replace_all_uses_with(again[node])
        backward.graph.erase_node(placeholders[node.name])
    output.args = (tuple(values[:outputs] + [v for v in values[outputs:] if v not in moved]),)
    for module in (forward, backward):
        module.graph.eliminate_dead_code()
        module.recompile()
    return tuple(node.name for node in moved)


def _following_from_nothing(graph: fx.Graph) -> set[fx.Node]:
    """Return the tensors that are the same in every run, and made by elementwise work alone."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        tags = getattr(node.target, "tags", ())
        if (
            node.op == "call_function"
            and isinstance(node.meta.get("val"), torch.Tensor)
            and (node.target in _MADE or torch.Tag.pointwise in tags or is_view(node))
            and torch.Tag.nondeterministic_seeded not in tags
            and all(given in found for given in node.all_input_nodes)
        ):
            found.add(node)
    return found


__all__ = ["compute_inputless_again"]
