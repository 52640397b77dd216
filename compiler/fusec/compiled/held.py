"""What a captured graph holds itself: the parameters and the state that an optimizer updates.

TorchDynamo makes no inputs of these: they are attributes of the graph, and so of what AOTAutograd
returns for it.  Whoever times or checks a graph calls it many times, on copies of its inputs; it
has to be given copies of these as well, or each of those calls would be a step of training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import Any

import torch
from torch import fx

from fusec.call.eager_graph import run_eagerly

_FLAT = "params_buffers_flat"  # what AOTAutograd's function calls them


class Held:
    """A graph with an input for each tensor that it holds, before its own inputs.

    Attributes:
        tensors: What it holds.
        places: Where it holds each.
        eager: The captured graph in that form.
        compiled: What was compiled of it, likewise.
    """

    def __init__(self, module: fx.GraphModule, compiled: Callable[..., Any] | None) -> None:
        """Look at a graph.

        Args:
            module: The captured graph; it stays as it is.
            compiled: What AOTAutograd returned for it; None where it runs in eager.
        """
        self._function = compiled if _holds(compiled) else None
        flat = _cells(compiled)[_FLAT].cell_contents if _holds(compiled) else None
        found: dict[str, torch.Tensor] = {}
        for node in module.graph.find_nodes(op="get_attr"):
            value = _attribute(module, str(node.target))
            # A constant that AOTAutograd keeps elsewhere is updated by nobody.
            if isinstance(value, torch.Tensor) and (flat is None or _is_among(value, flat)):
                found[str(node.target)] = value
        self.tensors = tuple(found.values())
        self.places = tuple(found)
        self.eager = _with_inputs(module, tuple(found)) if found else module
        self._bound: tuple[tuple[int, ...], Callable[..., Any]] | None = None
        if not found:
            self.compiled = compiled
        else:
            self.compiled = self._call if self._function is not None else run_eagerly(self.eager)

    def _call(self, *inputs: Any) -> Any:
        """Call AOTAutograd's function with other tensors in the place of those that it holds."""
        count = len(self.tensors)
        given = tuple(map(id, inputs[:count]))
        if self._bound is None or self._bound[0] != given:
            self._bound = given, self._function_of(inputs[:count])
        return self._bound[1](*inputs[count:])

    def _function_of(self, given: Sequence[Any]) -> Callable[..., Any]:
        function = self._function
        assert isinstance(function, FunctionType)
        cells = _cells(function)
        instead = dict(zip(map(id, self.tensors), given, strict=True))
        flat = cells[_FLAT].cell_contents
        cells[_FLAT] = CellType([instead.get(id(tensor), tensor) for tensor in flat])
        return FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            tuple(cells.values()),
        )


def _holds(compiled: Any) -> bool:
    """Whether this is AOTAutograd's own function, which knows what the graph holds."""
    return isinstance(compiled, FunctionType) and _FLAT in compiled.__code__.co_freevars


def _cells(function: Any) -> dict[str, CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))


def _is_among(tensor: torch.Tensor, tensors: Sequence[Any]) -> bool:
    return any(each is tensor for each in tensors)


def _attribute(module: fx.GraphModule, path: str) -> object:
    found: object = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _with_inputs(module: fx.GraphModule, names: Sequence[str]) -> fx.GraphModule:
    """Return a copy of a graph that takes its attributes of these names as its first inputs."""
    changed = copy.copy(module)
    changed.graph = copy.deepcopy(module.graph)
    first = next(iter(changed.graph.nodes))
    for name in names:
        nodes = [n for n in changed.graph.find_nodes(op="get_attr") if n.target == name]
        with changed.graph.inserting_before(first):
            place = changed.graph.placeholder(nodes[0].name)
        place.meta = dict(nodes[0].meta)
        for node in nodes:
            node.replace_all_uses_with(place)
            changed.graph.erase_node(node)
    changed.recompile()
    return changed


__all__ = ["Held"]
