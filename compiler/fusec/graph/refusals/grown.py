"""Updates for which tracing makes the tensor larger, where eager refuses a result of another size.

``x.gt_(y)`` with an ``x`` of four elements and a ``y`` of two rows of them: the fake tensor of
``x`` has two rows afterwards, wherever one looks at it. What made it is asked once more; an input
is real as well. TorchDynamo's guards then fail on such an input, so that it is told to leave the
function to Python.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import SkipFrame
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_map

from fusec.devices import CPU
from fusec.graph.refusals.shapes import known_sizes, same_shape, traced_value, updates_pointwise

# What is known of calls, with so many operands.
_grow: dict[tuple[Any, int], bool] = {}
_COMPLAINS = logging.getLogger("torch._subclasses.fake_tensor")


def grown_in_tracing(module: fx.GraphModule, inputs: Sequence[Any]) -> str:
    """Return which tensor of a captured graph tracing made larger, or an empty string.

    Args:
        module: As TorchDynamo hands it over.
        inputs: Its example inputs.

    Raises:
        SkipFrame: It is an input.
    """
    for node in module.graph.nodes:
        if not _may_grow(node):
            continue
        place = _made_by(node.args[0])
        size = traced_value(place).shape
        reason = f"{node.name} has a result of another size than its tensor"
        if place.op == "placeholder":
            real = inputs[module.graph.find_nodes(op="placeholder").index(place)]
            if list(getattr(real, "shape", size)) != known_sizes(size):
                raise SkipFrame(reason)
        elif any(not same_shape(made.shape, size) for made in _made_again(place)):
            return reason
    return ""


def _may_grow(node: fx.Node) -> bool:
    if not (node.op.startswith("call_") and node.args and updates_pointwise(node.target)):
        return False
    place = node.args[0]
    if not isinstance(place, fx.Node) or not isinstance(traced_value(place), FakeTensor):
        return False
    beside = any(each is not place for each in node.all_input_nodes)
    return beside and _grows(node.target, len(node.args) - 1)


def _grows(target: Any, operands: int) -> bool:
    """Whether tracing gives what a call updates the size of the call's result."""
    key = target, operands
    if key in _grow:
        return _grow[key]
    mode = FakeTensorMode()
    mode.cache_enabled = False  # a result that is kept leaves what is updated as it was
    for dtype in (torch.float32, torch.int64):
        with _unlogged(), unset_fake_temporarily(), mode, torch.no_grad():
            small = torch.ones(2, dtype=dtype, device=CPU)
            given = [torch.ones(3, 2, dtype=dtype, device=CPU)] * operands
            try:
                _call(target, small, *given)
            except Exception:
                continue  # perhaps for the state that torch is in: it is asked again
        _grow[key] = _grow.get(key, False) or small.dim() != 1
    return _grow.get(key, False)


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what is asked on purpose off standard error, and from who takes it for a failure."""
    before, _COMPLAINS.disabled = _COMPLAINS.disabled, True
    try:
        yield
    finally:
        _COMPLAINS.disabled = before


def _call(target: Any, first: Any, *rest: Any, **more: Any) -> Any:
    if isinstance(target, str):
        return getattr(first, target)(*rest, **more)
    return target(first, *rest, **more)


def _made_by(place: fx.Node) -> fx.Node:
    """Return what made a tensor that calls in a row have updated."""
    while place.op.startswith("call_") and place.args and isinstance(place.args[0], fx.Node):
        if traced_value(place.args[0]) is not traced_value(place):
            break
        place = place.args[0]
    return place


def _made_again(place: fx.Node) -> Iterator[torch.Tensor]:
    if not (place.op in ("call_method", "call_function") and place.args):
        return
    args, kwargs = tree_map(traced_value, (place.args, place.kwargs))
    try:
        with _unlogged(), traced_value(place).fake_mode, torch.no_grad():
            made = _call(place.target, *args, **kwargs)
    except Exception:
        return  # nobody knows
    if isinstance(made, torch.Tensor):
        yield made


__all__ = ["grown_in_tracing"]
