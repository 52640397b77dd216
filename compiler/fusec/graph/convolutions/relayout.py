"""Tensors that lie otherwise than they were traced, and what that does to a graph.

What goes from one operator to the next is nobody's business but the graph's: a pass may have an
operator yield the same values in another layout. What reads them follows where it can, and gets
them as they were traced where it cannot; what the graph returns lies as it was traced.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode

from fusec.devices import is_gpu
from fusec.graph.facts.notes import NOTES

aten = torch.ops.aten
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
        aten._to_copy,
        aten.gather,
        aten.index,
        aten._unsafe_index,
        aten._softmax,
        aten._log_softmax,
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
# They ask of a tensor no more than its type and device.
_NEW = frozenset({aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty})
_FRESH = _NEW | {aten.zeros, aten.full}
# Kernels of ours that pick elements of a tensor, or add to those of zeros.
_PICKING = frozenset({aten.index, aten._unsafe_index})
_ADDING = frozenset({aten.index_put, aten._unsafe_index_put})
# Kernels of ours, whose first result lies as their input does, whatever ATen's own would return.
_LIKE_INPUT = frozenset({aten.native_layer_norm, aten.native_group_norm})
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


class Relayout:
    """A copy of a graph in which layouts change; the pass takes it if that pays.

    Attributes:
        graph: The copy.
        changed: Nodes that lie differently, and their values as traced.
        turned: Elements that are copied only to lie differently.
    """

    def __init__(self, graph: fx.Graph) -> None:
        """Copy a functional graph with fake tensors in ``meta["val"]``."""
        self.graph = _copied(graph)
        self.changed: dict[fx.Node, Any] = {}
        self.turned = 0
        self._as_traced: dict[fx.Node, fx.Node] = {}

    def run(self) -> None:
        """Go through the graph; ``rewrite`` sees each operator first."""
        for node in list(self.graph.nodes):
            if node.op == "output":
                node.args = fx.node.map_arg(node.args, self.as_traced)
            if node.op != "call_function" or self.rewrite(node):
                continue
            if any(source in self.changed for source in node.all_input_nodes):
                self.follow(node)
            elif getattr(node.target, "overloadpacket", None) in _PICKING | _ADDING:
                self.follows_on_a_gpu(node)

    def rewrite(self, node: fx.Node) -> bool:
        """Change an operator if it is one that the pass is about; return whether it was."""
        raise NotImplementedError

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
        elif packet in _LIKE_INPUT:
            self.follow_norm(node)
            return
        elif self.follows_on_a_gpu(node):
            return
        elif not pointwise and packet not in _FOLLOW and target is not operator.getitem:
            node.args = fx.node.map_arg(node.args, self.as_traced)
            node.kwargs = fx.node.map_arg(node.kwargs, self.as_traced)
        self.update(node)

    def follow_norm(self, node: fx.Node) -> None:
        """Have a norm's result lie as its input does now."""
        source = node.args[0]
        assert isinstance(source, fx.Node)
        before = node.meta["val"]
        with _fake_mode(node):
            result = torch.empty_like(source.meta["val"], dtype=before[0].dtype)
        node.meta["val"] = (result, *before[1:])
        if not lies_alike(before, node.meta["val"]):
            self.changed[node] = before

    def follows_on_a_gpu(self, node: fx.Node) -> bool:
        """Change what picks elements and adds to them, on a GPU; returns whether ``node`` does.

        Enlarged images and their gradients lie as the convolutions around them then: a step of a
        U-Net takes 8.8 ms instead of 10.4.  On a CPU, where a norm of groups and pooling are slower
        so, 69 ms instead of 54.
        """
        packet = getattr(node.target, "overloadpacket", None)
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor) or not is_gpu(value.device):
            return False
        if packet in _PICKING:
            return self.follow_elements(node, node.args[0])
        if packet in _ADDING and self.adds_to_zeros(node):
            return self.follow_elements(node, node.args[2])
        return packet in _NEW

    def adds_to_zeros(self, node: fx.Node) -> bool:
        """Whether elements are added at places, not put there, and to nothing but each other."""
        zeros, indices, _, *accumulate = node.args
        given: Any = [index for index in indices if index is not None]  # type: ignore[union-attr]
        return (
            accumulate == [True]
            and not any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in given)
            and isinstance(zeros, fx.Node)
            and getattr(zeros.target, "overloadpacket", None) in _FRESH
            and not torch.are_deterministic_algorithms_enabled()
        )

    def follow_elements(self, node: fx.Node, source: Any) -> bool:
        """Have a result lie as the elements it is made of; returns whether it does."""
        before = node.meta["val"]
        given = source.meta["val"] if isinstance(source, fx.Node) else None
        if given is None or given.is_contiguous() or given.dim() != before.dim():
            return False
        if not all(isinstance(size, int) for size in before.shape) or 0 in before.shape:
            return False
        strides = given.stride()
        order = sorted(range(given.dim()), key=lambda d: (-strides[d], d))
        with _fake_mode(node):
            node.meta["val"] = torch.empty_permuted(
                before.shape, order, dtype=before.dtype, device=before.device
            )
        if not lies_alike(before, node.meta["val"]):
            self.changed[node] = before
        return True

    def update(self, node: fx.Node) -> None:
        """Compute a node's value for the inputs as they lie now."""
        before = node.meta["val"]
        node.meta["val"] = self.value(node)
        if not lies_alike(before, node.meta["val"]):
            self.changed[node] = before

    def value(self, node: fx.Node) -> Any:
        """Return what a node yields for the inputs as they lie now."""
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        target: Any = node.target
        with _fake_mode(node):
            return target(*args, **kwargs)

    def as_traced(self, node: fx.Node) -> fx.Node:
        """Return ``node`` as it lay when the graph was traced."""
        before = self.changed.get(node)
        if not isinstance(before, torch.Tensor):
            return node
        if node not in self._as_traced:
            strides = before.stride()
            order = sorted(range(before.dim()), key=lambda d: (-strides[d], d))
            back = [order.index(d) for d in range(before.dim())]
            with self.graph.inserting_before(node.next):
                made = self.add(node, aten.permute.default, (node, order))
                made = self.add(
                    node, aten.clone.default, (made,), memory_format=torch.contiguous_format
                )
                self._as_traced[node] = self.add(node, aten.permute.default, (made, back))
            self.turned += before.numel()
        return self._as_traced[node]

    def add(self, like: fx.Node, target: Any, args: Any, **kwargs: Any) -> fx.Node:
        """Add a node, for the sake of ``like``, where the graph is being added to."""
        made = self.graph.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in like.meta.items() if k not in ("val", "tensor_meta", NOTES)}
        made.meta["val"] = self.value(made)
        return made


def _copied(graph: fx.Graph) -> fx.Graph:
    """Return a graph of the same nodes, so that nothing has happened if it does not pay."""
    made = fx.Graph()
    made.set_codegen(graph._codegen)
    value = made.graph_copy(graph, {})
    (output,) = graph.find_nodes(op="output")
    made.output(value).meta = dict(output.meta)
    return made


def _fake_mode(node: fx.Node) -> FakeTensorMode:
    values = [n.meta["val"] for n in node.all_input_nodes]
    mode = detect_fake_mode([each for v in values for each in _tensors(v)])
    assert mode is not None
    return mode


def lies_alike(before: Any, after: Any) -> bool:
    """Whether the tensors of two values of a node have the same strides."""
    pairs = zip(_tensors(before), _tensors(after), strict=True)
    return all(
        size == 1 or a == b
        for x, y in pairs
        for size, a, b in zip(x.shape, x.stride(), y.stride(), strict=True)
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [each for each in values if isinstance(each, torch.Tensor)]


__all__ = ["Relayout", "lies_alike"]
