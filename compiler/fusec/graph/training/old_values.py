"""What backward reads of an input that the call then updates is a copy of what it was before.

Autograd keeps a copy for ``x.sin_()`` or ``silu(x, inplace=True)``; torch's partitioner finds that
the copy follows from the input, and saves the input itself, which AOTAutograd updates when forward
is done.  Backward would raise, of an update that eager allows.  What eager refuses is refused while
AOTAutograd traces, so that whatever is saved here is meant to be the old value.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode

from fusec.graph.facts.insertion import caller
from fusec.graph.facts.joint_graph import is_view

aten = torch.ops.aten


def copy_old_values(
    forward: fx.GraphModule, backward: fx.GraphModule, outputs: int, updated: Collection[str]
) -> int:
    """Let forward save copies of inputs that are updated later; return how many.

    Args:
        forward: As torch's partitioner made it: its results, then what is saved; changed in place.
        backward: Its placeholders have the names of what is saved; changed in place.
        outputs: How many results of forward are its own.
        updated: Names of the inputs that have other values when forward is done.
    """
    (output,) = forward.graph.find_nodes(op="output")
    values: list[Any] = list(output.args[0])
    given = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    copies: dict[fx.Node, fx.Node] = {}
    for place, node in enumerate(values[outputs:], outputs):
        if not isinstance(node, fx.Node) or _source(node).name not in updated:
            continue
        if not isinstance(node.meta.get("val"), torch.Tensor) or node.name not in given:
            continue
        if _reads_by_strides(given[node.name]):
            continue
        if node not in copies:
            with forward.graph.inserting_before(output):
                copies[node] = caller(forward.graph, node)(aten.clone.default, node)
            _lay(given[node.name], copies[node].meta["val"])
        values[place] = copies[node]
    if copies:
        output.args = (tuple(values),)
        forward.recompile()
    return len(copies)


def _source(node: fx.Node) -> fx.Node:
    """Return what a node is a view of, itself if of nothing."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def _reads_by_strides(node: fx.Node) -> bool:
    """Whether memory is read at places that are given as numbers, which a copy has not."""
    views = [user for user in node.users if is_view(user)]
    return any(view.target is aten.as_strided.default or _reads_by_strides(view) for view in views)


def _lay(node: fx.Node, value: torch.Tensor) -> None:
    """Note how a copy lies, which has no gaps, and how views of it lie."""
    node.meta["val"] = value
    fake = detect_fake_mode([value])
    assert fake is not None
    for view in node.users:
        if is_view(view):
            args, kwargs = fx.node.map_arg((view.args, view.kwargs), lambda n: n.meta["val"])
            with fake:
                _lay(view, view.target(*args, **kwargs))  # type: ignore[operator]


__all__ = ["copy_old_values"]
