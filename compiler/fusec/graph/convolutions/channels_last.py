"""Convolutions with the channels innermost, forward and backward.

oneDNN and cuDNN compute a convolution and its gradients faster where the channels lie innermost;
row-major tensors they reorder at every call.  So images are turned over before the first
convolution, forward and backward together, and everything after it follows (``relayout.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusec.graph.choices import TURNED_SHARE, innermost_channels_pay
from fusec.graph.convolutions.relayout import Relayout
from fusec.graph.facts.notes import NoteKind, add_note

aten = torch.ops.aten
_FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default
CHANNELS_LAST = "with the channels innermost"
# Positions of the arguments: images; the weight; whether transposed; the number of groups.
_READ: dict[Any, tuple[tuple[int, ...], int, int, int]] = {
    _FORWARD: ((0,), 1, 6, 8),
    _BACKWARD: ((0, 1), 2, 7, 9),
}


def turn_channels_inward(module: fx.GraphModule) -> int:
    """Let convolutions and their gradients work on channels-last tensors; return how many do.

    Where more would have to be turned over than that saves, nothing changes.

    Args:
        module: A functional joint or inference graph with fake tensors in ``meta["val"]``; changed
            in place.
    """
    wanted = [n for n in module.graph.nodes if n.op == "call_function" and _is_wanted(n)]
    if not wanted:
        return 0
    turning = _Turning(module.graph)
    turning.run()
    if not turning.pays():
        return 0
    module.graph = turning.graph
    return len(wanted)


class _Turning(Relayout):
    def __init__(self, graph: fx.Graph) -> None:
        super().__init__(graph)
        self.copies: dict[fx.Node, fx.Node] = {}
        self.multiplied = 0  # elements that the convolutions read and write

    def pays(self) -> bool:
        return self.turned <= TURNED_SHARE * self.multiplied

    def rewrite(self, node: fx.Node) -> bool:
        if not _is_wanted(node):
            return False
        images, weight, _, _ = _READ[node.target]
        args = list(node.args)
        for position in images:
            image = args[position]
            assert isinstance(image, fx.Node)
            args[position] = self.channels_last(image, node)
            self.multiplied += image.meta["val"].numel()
        matrix = args[weight]
        assert isinstance(matrix, fx.Node)
        if matrix.meta["val"].device.type != "cpu":
            # cuDNN wants it so as well; what converts a weight's type turns it over on the way
            args[weight] = self.channels_last(matrix, node, counted=False)
        if node.target == _FORWARD:
            self.multiplied += node.meta["val"].numel()
        node.args = tuple(args)
        add_note(node, NoteKind.CHANNELS_LAST, CHANNELS_LAST)
        self.update(node)
        return True

    def channels_last(self, node: fx.Node, reader: fx.Node, *, counted: bool = True) -> fx.Node:
        """Return ``node`` with the channels innermost."""
        if _is_channels_last(node.meta["val"]):
            return node
        if node not in self.copies:
            with self.graph.inserting_before(reader):
                self.copies[node] = self.add(
                    reader, aten.clone.default, (node,), memory_format=torch.channels_last
                )
            self.turned += node.meta["val"].numel() if counted else 0
        return self.copies[node]


def _is_wanted(node: fx.Node) -> bool:
    if node.target not in _READ:
        return False
    images, weight, transposed, groups = _READ[node.target]
    nodes: Any = [node.args[position] for position in (*images, weight)]
    tensors = [each.meta["val"] for each in nodes]
    result = node.meta["val"] if node.target == _FORWARD else tensors[0]
    return (
        tensors[0].dim() == 4
        and all(isinstance(size, int) for value in tensors for size in value.shape)
        and not node.args[transposed]
        and innermost_channels_pay(result, tensors[-1], node.args[groups])
    )


def _is_channels_last(value: torch.Tensor) -> bool:
    _, channels, height, width = value.shape
    strides = (height * width * channels, 1, width * channels, channels)
    return all(
        size == 1 or a == b for size, a, b in zip(value.shape, value.stride(), strides, strict=True)
    )


__all__ = ["CHANNELS_LAST", "turn_channels_inward"]
