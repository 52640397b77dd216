"""Updates of what wants gradients where autograd records nothing: under ``no_grad``, say.

AOTAutograd copies what an input holds then into it once the graph has run, which autograd records:
no gradient flows to what the input was made of any more, and an input that is a view of a leaf may
not be updated there at all.  A view of a leaf that was taken before wants no gradient any more in
TorchDynamo's fake tensors; in eager it wants one, and has none.  Both run in eager.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from fusec.capture.gradients.result_modes import may_write, storage_of, tensors_of
from fusec.graph.simplify.inference_regions import ENTER, SET, name_of, walk


def updates_unrecorded(module: fx.GraphModule, inputs: Sequence[Any], records: bool) -> str:
    """Return why a captured graph has to run in eager for what it updates unrecorded, or "".

    Args:
        module: The graph.
        inputs: Its example inputs, which know what they were made by better than fake tensors.
        records: Whether autograd is on where it is called.
    """
    if not records or not any(name_of(node) in (ENTER, SET) for node in module.graph.nodes):
        return ""
    wanting: dict[int, bool] = {}  # memory that wants gradients: whether it is a leaf's alone
    for node, given in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=False):
        if isinstance(given, torch.Tensor) and given.requires_grad:
            for memory in map(storage_of, tensors_of(node)):
                wanting[memory] = wanting.get(memory, True) and given.is_leaf
    views: dict[int, list[fx.Node]] = {}  # by their memory: those that were taken so far
    places = {node: place for place, node in enumerate(module.graph.nodes)}
    for node, _, on in walk(module.graph, records):
        for memory in {storage_of(value) for value in tensors_of(node)} & wanting.keys():
            if on and node.op != "placeholder":
                views.setdefault(memory, []).append(node)
        if on or not may_write(node):
            continue
        for memory in {storage_of(value) for value in _written(node)} & wanting.keys():
            if not wanting[memory]:
                return "AOTAutograd would record an update that is under no_grad"
            users = [user for view in views.get(memory, ()) for user in view.users]
            if any(places[user] > places[node] for user in users):
                return "AOTAutograd would drop requires_grad of a view that is updated since"
    return ""


def _written(node: fx.Node) -> Iterator[torch.Tensor]:
    """Yield what a node updates, as fake tensors."""
    given: list[Any] = [*node.args[:1], node.kwargs.get("out")]
    for each in given:
        for inner in each if isinstance(each, (list, tuple)) else (each,):
            if isinstance(inner, fx.Node):
                yield from tensors_of(inner)


__all__ = ["updates_unrecorded"]
