"""Graphs of a few nodes, made by hand as TorchDynamo captures them: for passes asked directly."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


class Captured:
    """A captured graph that grows call by call; every node knows the value that it has."""

    def __init__(self) -> None:
        self.graph = fx.Graph()

    def input(self, value: Any) -> fx.Node:
        """Add an input."""
        node = self.graph.placeholder(f"input_{len(self.graph.nodes)}")
        node.meta["example_value"] = value
        return node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a call: of a function, or of a method by its name.  Nodes are given as they are."""
        add = self.graph.call_method if isinstance(target, str) else self.graph.call_function
        node = add(target, args, kwargs)
        given, named = fx.node.map_arg((args, kwargs), lambda n: n.meta["example_value"])
        function = getattr(type(given[0]), target) if isinstance(target, str) else target
        node.meta["example_value"] = function(*given, **named)
        return node

    def module(self, *results: fx.Node) -> fx.GraphModule:
        """Return the whole."""
        self.graph.output(results)
        return fx.GraphModule({}, self.graph)


def call_of(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Return a call that nobody has made: its tensors are inputs of a graph; one is one of them."""
    captured, inputs = Captured(), dict[int, fx.Node]()

    def node_of(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(map(node_of, value))
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in inputs:
            inputs[id(value)] = captured.input(value)
        return inputs[id(value)]

    given, named = node_of(args), {name: node_of(value) for name, value in kwargs.items()}
    add = captured.graph.call_method if isinstance(target, str) else captured.graph.call_function
    return add(target, given, named)


__all__ = ["Captured", "call_of"]
