"""What a graph's nodes are: forward's, views, the first of some."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx


def forward_nodes(module: fx.GraphModule, outputs: int) -> set[fx.Node]:
    """Return the nodes that forward's own results are computed from, themselves included.

    Args:
        module: A joint graph.
        outputs: How many of its results are the forward part's.
    """
    (output,) = module.graph.find_nodes(op="output")
    stack = [node for node in output.args[0][:outputs] if isinstance(node, fx.Node)]
    seen: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return seen


def first_of(graph: fx.Graph, nodes: Iterable[fx.Node]) -> fx.Node:
    """Return the one that comes first in the graph."""
    wanted = set(nodes)
    first: fx.Node = next(node for node in graph.nodes if node in wanted)
    return first


def is_view(node: fx.Node) -> bool:
    """Whether a node's result lies in the memory of what it is given, by its schema."""
    schema = getattr(node.target, "_schema", None)
    arguments = schema.arguments if schema is not None else ()
    return any(a.alias_info is not None and not a.alias_info.is_write for a in arguments)


def moves_elements(node: fx.Node) -> bool:
    """Whether a node is a view of one tensor's elements as they are.

    Other views take the bits of a number for another number, of another type.
    """
    if not is_view(node) or len(node.all_input_nodes) != 1:
        return False
    (source,) = node.all_input_nodes
    made, given = node.meta.get("val"), source.meta.get("val")
    return (
        isinstance(made, torch.Tensor)
        and isinstance(given, torch.Tensor)
        and made.dtype == given.dtype
    )


__all__ = ["first_of", "forward_nodes", "is_view", "moves_elements"]
