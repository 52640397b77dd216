"""Graphs that take lists, taken as graphs of tensors.

Compiled autograd hands the saved tensors of a backward pass over in one list, which the graph takes
apart and the caller expects to be emptied, so that each tensor is free as soon as it was used.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._dynamo.source import GetItemSource


def has_lists(inputs: Sequence[Any]) -> bool:
    """Whether some of a graph's inputs are lists."""
    return any(isinstance(value, list) for value in inputs)


class Flat:
    """A graph whose lists are taken apart.

    Attributes:
        module: The graph with an input for each element that it uses.
        picks: For each of its inputs, which argument it is, and which element of that, if any.
        emptied: The arguments whose lists a call leaves empty.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = copy.copy(module)
        self.module.graph = copy.deepcopy(module.graph)
        self.picks: list[tuple[int, int | None]] = []
        self.emptied: list[int] = []
        originals = [node for node in module.graph.nodes if node.op == "placeholder"]
        places = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        for at, (place, original) in enumerate(zip(places, originals, strict=True)):
            source = getattr(original, "_dynamo_source", None)
            if source is not None:
                place._dynamo_source = source
            taken = [user for user in place.users if user.target is operator.getitem]
            if len(taken) < len(place.users) or not (taken or original.meta.get("steal_arg")):
                self.picks.append((at, None))
                continue
            if original.meta.get("steal_arg"):
                self.emptied.append(at)
            self._unpack(at, place, taken, source)
        self.module.recompile()

    def _unpack(self, at: int, place: fx.Node, taken: Sequence[fx.Node], source: Any) -> None:
        elements: dict[int, fx.Node] = {}
        for user in sorted(taken, key=lambda node: int(node.args[1])):  # type: ignore[arg-type]
            number = int(user.args[1])  # type: ignore[arg-type]
            if number not in elements:
                with self.module.graph.inserting_before(place):
                    made = self.module.graph.placeholder(f"{place.name}_{number}")
                made.meta = dict(user.meta)
                if source is not None:
                    made._dynamo_source = GetItemSource(source, number)
                elements[number] = made
                self.picks.append((at, number))
            user.replace_all_uses_with(elements[number])
            self.module.graph.erase_node(user)
        self.module.graph.erase_node(place)

    def pick(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the flat graph's inputs, from those of the graph that it was made of."""
        return [
            arguments[at] if number is None else arguments[at][number] for at, number in self.picks
        ]

    def call(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return what takes the graph's inputs and calls the flat graph that was compiled."""

        def run(*arguments: Any) -> Any:
            given = self.pick(arguments)
            for at in self.emptied:
                arguments[at].clear()
            return compiled(*given)

        return run


__all__ = ["Flat", "has_lists"]
