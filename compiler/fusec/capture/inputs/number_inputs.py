"""Numbers that TorchDynamo gives to a graph as tensors of another type than it traced them with.

What a function draws from Python's ``random`` is traced as a tensor of the default type and given
as one of float64. The graph is to read what it is given, and to promote types as it was traced.
Arrays and numbers of NumPy's are given as tensors, too, of their own type, which was traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import RandomValueSource


def as_given(module: fx.GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
    """Have a graph take such numbers in full precision; returns its inputs so.

    Each is converted to the type that it was traced with, unless something in the graph is float64
    and would see that it was rounded.

    Args:
        module: The captured graph, which is changed.
        inputs: Its inputs.
    """
    places = module.graph.find_nodes(op="placeholder")
    numbers = {at: place for at, place in enumerate(places) if _is_traced_otherwise(place)}
    if not numbers:
        return inputs
    exact = any(
        isinstance(value := node.meta.get("example_value"), torch.Tensor)
        and value.dtype in (torch.float64, torch.complex128)
        for node in module.graph.nodes
    )
    given = list(inputs)
    for at, place in numbers.items():
        given[at] = given[at].to(torch.float64)
        traced = place.meta["example_value"]
        place.meta["example_value"] = traced.to(torch.float64)
        if exact:
            continue
        with module.graph.inserting_after(places[-1]):
            made = module.graph.call_method("to", (place, traced.dtype))
        made.meta = {**place.meta, "example_value": traced}
        made.meta.pop("grapharg", None)
        place.replace_all_uses_with(made, delete_user_cb=lambda user, own=made: user is not own)
    module.recompile()
    return given


def _is_traced_otherwise(place: fx.Node) -> bool:
    argument: Any = place.meta.get("grapharg")
    value = place.meta.get("example_value")
    if not isinstance(getattr(argument, "source", None), RandomValueSource):
        return False
    if not argument.pass_arg_as_tensor or not isinstance(value, torch.Tensor):
        return False
    return value.is_floating_point() and value.dtype is not torch.float64
