"""Gradients of convolutions of each channel by itself, one call for each of them.

``lower/pooling/convolution.py`` has a kernel for that of the image; that of the weight is cuDNN's.
"""

from __future__ import annotations

from operator import getitem as _item
from typing import Any

import torch
from torch import fx

from fusec.devices import is_gpu
from fusec.graph.choices import own_windows_pay
from fusec.graph.facts.insertion import caller

aten = torch.ops.aten
_BACKWARD = aten.convolution_backward.default


def divide_gradients(module: fx.GraphModule, *, interpreted: bool = False) -> int:
    """Have the gradient of the image computed apart from the others; return how many there are.

    Args:
        module: Functional, with fake tensors in ``meta["val"]``; changed in place.
        interpreted: Whether Triton's kernels are run for tensors of the CPU.
    """
    nodes = [n for n in module.graph.nodes if n.target == _BACKWARD and _fits(n, interpreted)]
    for node in nodes:
        _, weight, bias = node.args[-1]
        with module.graph.inserting_before(node):
            call = caller(module.graph, node)
            alone = call(_BACKWARD, *node.args[:-1], [True, False, False])
            image = call(_item, alone, 0)
        for user in list(node.users):
            if user.args[1] == 0:
                user.replace_all_uses_with(image)
                module.graph.erase_node(user)
        node.args = (*node.args[:-1], [False, weight, bias])
        node.meta["val"] = (None, *node.meta["val"][1:])
    return len(nodes)


def _fits(node: fx.Node, interpreted: bool) -> bool:
    wanted: Any = node.args[-1]
    values = [n.meta.get("val") for n in node.args[:3] if isinstance(n, fx.Node)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) != 3 or not (wanted[0] and (wanted[1] or wanted[2])):
        return False
    _, image, weight = tensors
    known = all(isinstance(size, int) for value in tensors for size in value.shape)
    return (
        known
        and all(step == 1 for step in node.args[6])  # type: ignore[union-attr]
        and (interpreted or is_gpu(image.device))
        and image.dim() == 4
        and tuple(weight.shape[:2]) == (image.shape[1], 1)
        and image.stride(1) == 1
        and own_windows_pay(image.dtype, weight.shape[2:], gradient=True)
    )


__all__ = ["divide_gradients"]
