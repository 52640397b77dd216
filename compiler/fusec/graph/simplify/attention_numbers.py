"""Numbers that the functions of attention capture, where they change from call to call.

TorchDynamo makes a tensor of no dimensions of such a number, on the CPU.  Where attention runs on
a GPU it is copied there, by a copy that nobody waits for, and is one of the kernel's arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusec.devices import CPU
from fusec.graph.facts.insertion import caller

_HIGHER = torch.ops.higher_order
_TARGETS = (_HIGHER.flex_attention, _HIGHER.flex_attention_backward)


def numbers_to_device(module: fx.GraphModule) -> int:
    """Copy captured numbers to the device of attention's tensors; return how many there were."""
    moved: dict[tuple[fx.Node, torch.device], fx.Node] = {}
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target not in _TARGETS:
            continue
        device = node.args[0].meta["val"].device
        if device.type == CPU:
            continue
        for place, captured in enumerate(node.args[-2:], len(node.args) - 2):
            given = [_moved(module.graph, node, each, device, moved) for each in captured]
            node.update_arg(place, tuple(given))
        if node.target is _HIGHER.flex_attention_backward:
            node.meta["val"] = _without_gradients(node.meta["val"], device)
    return len(moved)


def _without_gradients(results: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    """Return what the gradients are traced as, with none of numbers: those would be on the CPU."""
    *others, captured = results
    kept = [
        None if isinstance(each, torch.Tensor) and each.device != device else each
        for each in captured
    ]
    return (*others, tuple(kept))


def _moved(
    graph: fx.Graph,
    node: fx.Node,
    given: object,
    device: torch.device,
    moved: dict[tuple[fx.Node, torch.device], fx.Node],
) -> object:
    value = given.meta.get("val") if isinstance(given, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.ndim or value.device.type != CPU:
        return given
    assert isinstance(given, fx.Node)
    if (given, device) not in moved:
        with graph.inserting_before(node):
            copy = torch.ops.aten._to_copy.default
            moved[given, device] = caller(graph, node)(
                copy, given, device=device, non_blocking=True
            )
    return moved[given, device]


__all__ = ["numbers_to_device"]
