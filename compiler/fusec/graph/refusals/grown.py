"""Updates for which tracing makes the tensor larger, where eager refuses a result of another size.

``x.gt_(y)`` with an ``x`` of four elements and a ``y`` of two rows of them: the fake tensor of
``x`` has two rows afterwards, wherever one looks at it. What made it is asked once more. (Inputs
keep the size that they had; where it is symbolic TorchDynamo itself fails.)
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_map

from fusec.devices import CPU
from fusec.graph.refusals.shapes import POINTWISE, same_shape, traced_value


def grown_in_tracing(module: fx.GraphModule) -> str:
    """Return which tensor of a captured graph tracing made larger, or an empty string."""
    for node in module.graph.nodes:
        if not _may_grow(node):
            continue
        place = _made_by(node.args[0])
        size = traced_value(place).shape
        if any(not same_shape(made.shape, size) for made in _made_again(place)):
            return f"{node.name} has a result of another size than its tensor"
    return ""


def _may_grow(node: fx.Node) -> bool:
    name = str(node.target)
    if node.op != "call_method" or not node.args or name.removesuffix("_") not in POINTWISE:
        return False
    place = node.args[0]
    if not isinstance(place, fx.Node) or not isinstance(traced_value(place), FakeTensor):
        return False
    tensors = [each for each in node.all_input_nodes if each is not place]
    return bool(tensors) and name.endswith("_") and _grows(name, len(node.args) - 1)


@functools.cache
def _grows(method: str, operands: int) -> bool:
    """Whether tracing gives the tensor of a method the size of the method's result."""
    for dtype in (torch.float32, torch.int64):
        with unset_fake_temporarily(), FakeTensorMode(), torch.no_grad():
            small = torch.ones(2, dtype=dtype, device=CPU)
            large = torch.ones(3, 2, dtype=dtype, device=CPU)
            try:
                getattr(small, method)(*[large] * operands)
            except Exception:
                continue
            if small.dim() != 1:
                return True
    return False


def _made_by(place: Any) -> Any:
    """Return what made a tensor that calls in a row have updated."""
    while place.op == "call_method" and place.args and isinstance(place.args[0], fx.Node):
        if traced_value(place.args[0]) is not traced_value(place):
            break
        place = place.args[0]
    return place


def _made_again(place: fx.Node) -> Iterator[torch.Tensor]:
    args, kwargs = tree_map(traced_value, (place.args, place.kwargs))
    call: Any = place.target
    try:
        with traced_value(place).fake_mode, torch.no_grad():
            if place.op == "call_method":
                made = getattr(args[0], str(call))(*args[1:], **kwargs)
            elif place.op == "call_function":
                made = call(*args, **kwargs)
            else:
                return
    except Exception:
        return  # nobody knows
    if isinstance(made, torch.Tensor):
        yield made


__all__ = ["grown_in_tracing"]
