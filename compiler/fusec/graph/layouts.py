"""Convolutions on the CPU with the channels innermost, forward and backward.

oneDNN computes a convolution and its gradients faster where the channels lie innermost; row-major
tensors it reorders at every call.  What goes from one operator to the next is nobody's business but
the graph's, forward and backward together: so images are turned over before the first convolution,
everything after it follows, and what the graph returns is laid out as it was traced.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode

from fusec.graph.choices import TURNED_SHARE, innermost_channels_pay
from fusec.graph.halves import REASON

aten = torch.ops.aten
_FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default
CHANNELS_LAST = "with the channels innermost"
# Positions of the arguments: images; the weight; whether transposed; the number of groups.
_READ: dict[Any, tuple[tuple[int, ...], int, int, int]] = {
    _FORWARD: ((0,), 1, 6, 8),
    _BACKWARD: ((0, 1), 2, 7, 9),
}
# Whatever the layout, they yield the same and no copy is made on their account.
_FOLLOW = frozenset(
    {
        aten.clone,
        aten.alias,
        aten.detach,
        aten.permute,
        aten.expand,
        aten.unsqueeze,
        aten.squeeze,
        aten.slice,
        aten.select,
        aten.cat,
        aten.constant_pad_nd,
        aten.sum,
        aten.mean,
        aten.var,
        aten.var_mean,
        aten.amax,
        aten.amin,
        aten.max_pool2d_with_indices,
        aten.max_pool2d_with_indices_backward,
        aten.avg_pool2d,
        aten.avg_pool2d_backward,
        aten._adaptive_avg_pool2d,
        aten._adaptive_avg_pool2d_backward,
        torch.ops.prims.convert_element_type,
    }
)
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


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
    turning = _Turning(_copied(module.graph))
    if not turning.run():
        return 0
    module.graph = turning.graph
    module.recompile()
    return len(wanted)


def _copied(graph: fx.Graph) -> fx.Graph:
    """Return a graph of the same nodes, so that nothing has happened if it does not pay."""
    made = fx.Graph()
    made.set_codegen(graph._codegen)
    value = made.graph_copy(graph, {})
    (output,) = graph.find_nodes(op="output")
    made.output(value).meta = dict(output.meta)
    return made


class _Turning:
    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.changed: dict[fx.Node, Any] = {}  # nodes that lie differently: their value as traced
        self.copies: dict[tuple[fx.Node, bool], fx.Node] = {}
        self.turned = 0  # elements that are copied only to lie differently
        self.multiplied = 0  # elements that the convolutions read and write

    def run(self) -> bool:
        """Rewrite the graph; return whether that pays."""
        for node in list(self.graph.nodes):
            if node.op == "output":
                node.args = fx.node.map_arg(node.args, self.as_traced)
            if node.op != "call_function":
                continue
            if _is_wanted(node):
                self.convolution(node)
            elif any(source in self.changed for source in node.all_input_nodes):
                self.follow(node)
        return self.turned <= TURNED_SHARE * self.multiplied

    def convolution(self, node: fx.Node) -> None:
        args = list(node.args)
        for position in _READ[node.target][0]:
            image = args[position]
            assert isinstance(image, fx.Node)
            args[position] = self.channels_last(image, node)
            self.multiplied += image.meta["val"].numel()
        if node.target == _FORWARD:
            self.multiplied += node.meta["val"].numel()
        node.args = tuple(args)
        known = node.meta.get(REASON)
        node.meta[REASON] = f"{known}, {CHANNELS_LAST}" if known else CHANNELS_LAST
        self.update(node)

    def follow(self, node: fx.Node) -> None:
        """Recompute the layout of a node some of whose inputs lie differently now."""
        target: Any = node.target
        packet = getattr(target, "overloadpacket", None)
        pointwise = torch.Tag.pointwise in getattr(target, "tags", ())
        if node.target in _VIEWS:
            # a view of what lies differently may not exist: its elements are in another order
            source = node.args[0]
            assert isinstance(source, fx.Node)
            try:
                self.update(node)
                return
            except (RuntimeError, ValueError):
                node.args = (self.as_traced(source), *node.args[1:])
        elif not pointwise and packet not in _FOLLOW and target is not operator.getitem:
            node.args = fx.node.map_arg(node.args, self.as_traced)
            node.kwargs = fx.node.map_arg(node.kwargs, self.as_traced)
        self.update(node)

    def update(self, node: fx.Node) -> None:
        """Compute a node's value for the inputs as they lie now."""
        before = node.meta["val"]
        node.meta["val"] = self.value(node)
        if not _lies_alike(before, node.meta["val"]):
            self.changed[node] = before

    def value(self, node: fx.Node) -> Any:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        target: Any = node.target
        with self.fake(node):
            return target(*args, **kwargs)

    def fake(self, node: fx.Node) -> FakeTensorMode:
        values = [n.meta["val"] for n in node.all_input_nodes]
        mode = detect_fake_mode([each for v in values for each in _tensors(v)])
        assert mode is not None
        return mode

    # -- copies ---------------------------------------------------------------------------

    def channels_last(self, node: fx.Node, reader: fx.Node) -> fx.Node:
        """Return ``node`` with the channels innermost."""
        if _is_channels_last(node.meta["val"]):
            return node
        key = (node, True)
        if key not in self.copies:
            with self.graph.inserting_before(reader):
                self.copies[key] = self.add(
                    reader, aten.clone.default, (node,), memory_format=torch.channels_last
                )
            self.turned += node.meta["val"].numel()
        return self.copies[key]

    def as_traced(self, node: fx.Node) -> fx.Node:
        """Return ``node`` as it lay when the graph was traced."""
        before = self.changed.get(node)
        if not isinstance(before, torch.Tensor):
            return node
        key = (node, False)
        if key not in self.copies:
            strides = before.stride()
            order = sorted(range(before.dim()), key=lambda d: (-strides[d], d))
            back = [order.index(d) for d in range(before.dim())]
            with self.graph.inserting_before(node.next):
                made = self.add(node, aten.permute.default, (node, order))
                made = self.add(
                    node, aten.clone.default, (made,), memory_format=torch.contiguous_format
                )
                self.copies[key] = self.add(node, aten.permute.default, (made, back))
            self.turned += before.numel()
        return self.copies[key]

    def add(self, like: fx.Node, target: Any, args: Any, **kwargs: Any) -> fx.Node:
        made = self.graph.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in like.meta.items() if k not in ("val", "tensor_meta", REASON)}
        made.meta["val"] = self.value(made)
        return made


def _is_wanted(node: fx.Node) -> bool:
    if node.target not in _READ:
        return False
    images, weight, transposed, groups = _READ[node.target]
    nodes = [node.args[position] for position in (*images, weight)]
    values = [n.meta.get("val") for n in nodes if isinstance(n, fx.Node)]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if len(tensors) != len(nodes):
        return False
    result = node.meta["val"] if node.target == _FORWARD else tensors[0]
    return (
        tensors[0].dim() == 4
        and tensors[0].device.type == "cpu"
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


def _lies_alike(before: Any, after: Any) -> bool:
    pairs = zip(_tensors(before), _tensors(after), strict=True)
    return all(
        size == 1 or a == b
        for x, y in pairs
        for size, a, b in zip(x.shape, x.stride(), y.stride(), strict=True)
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [each for each in values if isinstance(each, torch.Tensor)]


__all__ = ["CHANNELS_LAST", "turn_channels_inward"]
