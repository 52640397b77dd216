"""Blocks of inference mode in a captured graph, as blocks in which nothing is recorded.

AOTAutograd runs such a block as it stands when it traces: views that are made there end in errors
that leave torch unable to run anything, and what its fake tensors say of the rest is not what
eager hands out.  All that matters to what is computed is that autograd records nothing; which
results are inference tensors is seen to where they are handed out
(``fusec.capture.gradients.result_modes``).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import fx

ENTER, EXIT, SET = "_enter_inference_mode", "_exit_inference_mode", "_set_grad_enabled"


def name_of(node: fx.Node) -> str:
    """Return what the function that a node calls is called."""
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def has_regions(module: fx.GraphModule) -> bool:
    """Whether a graph, or a part of it, changes inference mode."""
    return any(
        name_of(node) == ENTER
        for each in module.modules()
        if isinstance(each, fx.GraphModule)
        for node in each.graph.nodes
    )


def walk(graph: fx.Graph, records: bool) -> Iterator[tuple[fx.Node, tuple[bool, ...], bool]]:
    """Yield each node with the modes that it leaves behind.

    Args:
        graph: As TorchDynamo hands it over.
        records: Whether autograd is on where it is called.

    Yields:
        A node, the blocks of inference mode round it (True switches it on), innermost last, and
        whether autograd is on.
    """
    entered: list[tuple[bool, bool]] = []
    for node in graph.nodes:
        name = name_of(node)
        if name == ENTER:
            mode = bool(node.args[0]) if node.args else True
            entered.append((mode, records))
            records = not mode
        elif name == EXIT:
            records = entered.pop()[1]
        elif name == SET:
            records = bool(node.args[0])
        yield node, tuple(mode for mode, _ in entered), records


def record_nothing_instead(module: fx.GraphModule) -> fx.GraphModule:
    """Return a captured graph whose blocks of inference mode only switch autograd off, or on."""
    if not any(name_of(node) == ENTER for node in module.graph.nodes):
        return module
    changed = copy.copy(module)
    changed.graph = copy.deepcopy(module.graph)
    for node, _, records in list(walk(changed.graph, torch.is_grad_enabled())):
        if name_of(node) in (ENTER, EXIT):
            with changed.graph.inserting_before(node):
                switch = changed.graph.call_function(torch._C._set_grad_enabled, (records,))
            switch.meta = dict(node.meta)
    for node in reversed(changed.graph.nodes):
        if name_of(node) in (ENTER, EXIT):
            changed.graph.erase_node(node)  # what leaves a block comes behind what enters it
    return changed


__all__ = ["has_regions", "name_of", "record_nothing_instead", "walk"]
