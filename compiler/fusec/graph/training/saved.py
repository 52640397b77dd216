"""What the forward part of a graph keeps for the backward part, and what is computed again."""

from __future__ import annotations

import operator
import re

import torch
from torch import fx

from fusec.graph.facts.joint_graph import is_view
from fusec.graph.facts.user_lines import user_line
from fusec.report import SavedTensor


def saved_tensors(forward: fx.GraphModule, outputs: int) -> tuple[SavedTensor, ...]:
    """Return what a forward graph returns beyond its own results.

    Args:
        forward: As torch's partitioner made it.
        outputs: How many results are the user's.
    """
    (output,) = (node for node in forward.graph.nodes if node.op == "output")
    values = output.args[0]
    found = []
    for node in dict.fromkeys(values[outputs:]):
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if not isinstance(value, torch.Tensor):
            continue
        symbolic = any(not isinstance(size, int) for size in value.shape)
        found.append(
            SavedTensor(
                _name(node),
                tuple(size if isinstance(size, int) else str(size) for size in value.shape),
                str(value.dtype).removeprefix("torch."),
                -1 if symbolic else value.numel() * value.dtype.itemsize,
                node.op == "placeholder" or node in values[:outputs],
                user_line(node.meta.get("stack_trace")),
            )
        )
    return tuple(found)


def recomputed_operators(forward: fx.GraphModule, backward: fx.GraphModule) -> tuple[str, ...]:
    """Return the operators of the forward graph that the backward graph computes again."""
    known = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    again = [n for n in backward.graph.nodes if n.op == "call_function" and n.name in known]
    return tuple(dict.fromkeys(_name(node) for node in again if not is_view(node)))


def _name(node: fx.Node) -> str:
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]  # one of several results
    # The operator, without what torch's own names say of its overload and its library.
    name = re.sub(r"(?:_(?:default|\d+))+$", "", node.name)
    return name.removeprefix("native_")


__all__ = ["recomputed_operators", "saved_tensors"]
