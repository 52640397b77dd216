"""What follows from a norm's input by a few operations is computed again where backward reads that.

Backward of ``relu(norm(x))`` asks where the result was positive, backward of ``silu(norm(x))`` for
what the activation was given.  The partitioner keeps a mask or the norm's result for that: written
by forward, and read by each kernel of backward beside the norm's input, which those read in any
case.  Both follow from that input and two numbers a row or a channel.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import fx

from fusec.graph.facts.insertion import caller
from fusec.graph.facts.joint_graph import first_of, forward_nodes, is_view
from fusec.graph.simplify.extremes import COMPARED
from fusec.graph.training.norm_formula import has_statistics, normalized

aten = torch.ops.aten
# What costs about an instruction an element.
_CHEAP = frozenset(
    (
        aten.add.Tensor,
        aten.add.Scalar,
        aten.sub.Tensor,
        aten.sub.Scalar,
        aten.rsub.Scalar,
        aten.mul.Tensor,
        aten.mul.Scalar,
        aten.neg.default,
        aten.relu.default,
        aten.clamp.default,
        aten.clamp_min.default,
        aten.clamp_max.default,
        aten.hardtanh.default,
        aten.leaky_relu.default,
        aten.le.Scalar,
        aten.lt.Scalar,
        aten.ge.Scalar,
        aten.gt.Scalar,
        aten._to_copy.default,
    )
)
_MOST_OPERATIONS = 12  # an element; a batch norm under autocast with its activation has seven
_SMALL = 16  # times fewer elements than the value: statistics and weights, kept as they are
_GRADIENTS_OF_NORMS = (
    aten.native_layer_norm_backward.default,
    aten.native_group_norm_backward.default,
)


@dataclass(frozen=True)
class _Formula:
    """How a value follows from one large tensor.

    Attributes:
        source: The tensor that it starts from; None if it starts from small ones alone.
        operations: The nodes to repeat, each after what it is given.
    """

    source: fx.Node | None
    operations: tuple[fx.Node, ...] = ()


def activate_again(module: fx.GraphModule, outputs: int, updated: Collection[str] = ()) -> int:
    """Let backward compute again what it reads of such values, in place; return how many.

    Only where backward reads the one large tensor that a value follows from anyway, so that no
    tensor is kept for it.  What a matrix product or a convolution reads stays in memory.

    Args:
        module: A joint graph in which equal computations are one.
        outputs: How many of its results are the forward part's.
        updated: Inputs that have other values when forward is done; nothing is computed from
            them that was not before.
    """
    forward = forward_nodes(module, outputs)
    changed = 0
    for value in [node for node in reversed(module.graph.nodes) if node in forward]:
        later = [n for n in value.users if n not in forward and _is_elementwise(n)]
        if not later:
            continue
        formula = _Formulas(value, forward).of(value)
        if not formula.operations or not _is_read(formula.source, forward):
            continue
        if any(n.name in updated for n in _inputs(formula) if n is not formula.source):
            continue
        with module.graph.inserting_before(first_of(module.graph, later)):
            again = _repeated(module.graph, formula, value)
        for user in later:
            user.replace_input_with(value, again)
        changed += 1
    return changed


def _is_elementwise(node: fx.Node) -> bool:
    """Whether all that is made of a node's input is computed element by element."""
    if is_view(node):
        return bool(node.users) and all(_is_elementwise(user) for user in node.users)
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or (
        node.target is aten._to_copy.default
    )


def _is_read(source: fx.Node | None, forward: set[fx.Node]) -> bool:
    """Whether a kernel of backward reads a tensor of forward."""
    if source is None:
        return False
    return any(
        n.target in _GRADIENTS_OF_NORMS or _is_elementwise(n)
        for n in source.users
        if n not in forward
    )


class _Formulas:
    """Finds how a value follows from a tensor that backward reads.

    Args:
        value: What is asked for.
        forward: The nodes that forward's results follow from.
    """

    def __init__(self, value: fx.Node, forward: set[fx.Node]) -> None:
        self.value = value
        self.forward = forward
        self.shape = _known_shape(value)

    def of(self, node: fx.Node) -> _Formula:
        """Return how a node follows; it is its own source if there is no better one."""
        itself = _Formula(node)
        shape = _known_shape(node)
        if shape is None or self.shape is None:
            return itself
        if shape.numel() * _SMALL <= self.shape.numel():
            return _Formula(None)  # read as it is
        given = _large_inputs(node)
        if given is None or shape != self.shape:
            return itself
        if COMPARED in node.meta or (node is not self.value and _is_read(node, self.forward)):
            return itself
        formulas = [self.of(n) for n in given]
        sources = {f.source for f in formulas if f.source is not None}
        steps = tuple(dict.fromkeys(step for f in formulas for step in f.operations))
        if len(sources) != 1 or len(steps) >= _MOST_OPERATIONS:
            return itself
        (source,) = sources
        return _Formula(source, (*steps, node))


def _large_inputs(node: fx.Node) -> list[fx.Node] | None:
    """Return the tensors that a cheap operation is of; None if it is none.

    Statistics and weights of a norm are not among them, although they are read.
    """
    norm = _norm_of(node)
    if norm is not None:
        return norm.all_input_nodes[:1]
    if node.target not in _CHEAP:
        return None
    inputs = node.all_input_nodes
    # a number that follows from sizes is nowhere
    places = {getattr(n.meta["val"], "device", None) for n in (node, *inputs)}
    return inputs if len(places) == 1 else None


def _inputs(formula: _Formula) -> set[fx.Node]:
    """Return what computing a formula reads."""
    nodes = [_norm_of(node) or node for node in formula.operations]
    return {given for node in nodes for given in node.all_input_nodes}


def _norm_of(node: fx.Node) -> fx.Node | None:
    """Return the norm that a node is the result of, if it can be computed from its statistics."""
    if node.target is not operator.getitem or node.args[1] != 0:
        return None
    (norm,) = node.all_input_nodes
    return norm if has_statistics(norm) else None


def _known_shape(node: fx.Node) -> torch.Size | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return value.shape if all(isinstance(size, int) for size in value.shape) else None


def _repeated(graph: fx.Graph, formula: _Formula, value: fx.Node) -> fx.Node:
    made: dict[fx.Node, fx.Node] = {}
    for node in formula.operations:
        norm = _norm_of(node)
        if norm is not None:
            (given, *_) = norm.all_input_nodes
            made[node] = normalized(graph, norm, made.get(given, given))
        else:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: made.get(n, n))
            made[node] = caller(graph, node)(node.target, *args, **kwargs)
    return made[value]


__all__ = ["activate_again"]
