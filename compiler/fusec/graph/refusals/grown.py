"""Updates for which tracing makes the tensor larger, where eager refuses a result of another size.

``x.gt_(y)`` with an ``x`` of four elements and a ``y`` of two rows of them: the fake tensor of
``x`` has two rows afterwards, wherever one looks at it. What made it is asked once more; an input
is real as well. TorchDynamo's guards then fail on such an input, so that it is told to leave the
function to Python.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import SkipFrame
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map

from fusec.devices import CPU
from fusec.graph.refusals.shapes import (
    known_sizes,
    name_of,
    same_shape,
    traced_value,
    traced_values,
    updates_each,
    updates_pointwise,
)

# What is known of calls, with operands of such types and numbers.
_Key = tuple[Any, str]
_grow: dict[_Key, bool] = {}
_COMPLAINS = logging.getLogger("torch._subclasses.fake_tensor")
_LARGER = ("addr_",)  # not element by element


def grown_in_tracing(module: fx.GraphModule, inputs: Sequence[Any]) -> str:
    """Return which tensor of a captured graph tracing made larger, or an empty string.

    Args:
        module: As TorchDynamo hands it over.
        inputs: Its example inputs.

    Raises:
        SkipFrame: It is an input.
    """
    given = dict(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=False))
    raised: set[_Key] = set()
    for node in module.graph.nodes:
        for updated in _may_grow(node, raised):
            place = _made_by(updated)
            size = traced_value(place).shape
            reason = f"{node.name} has a result of another size than its tensor"
            if place in given:
                if list(getattr(given[place], "shape", size)) != known_sizes(size):
                    raise SkipFrame(reason)
            elif any(not same_shape(made.shape, size) for made in _made_again(place)):
                return reason
    return ""


def _may_grow(node: fx.Node, raised: set[_Key]) -> list[fx.Node]:
    """Return the tensors that a call updates with others, if tracing may make them larger."""
    if not (node.op.startswith("call_") and node.args):
        return []
    first, rest = node.args[0], (node.args[1:], node.kwargs)
    if updates_each(node.target):
        places = [each for each in tree_leaves(first) if isinstance(each, fx.Node)]
        found = [each for each in places if isinstance(traced_value(each), FakeTensor)]
        return found if any(isinstance(each, fx.Node) for each in tree_leaves(rest)) else []
    if not (isinstance(first, fx.Node) and isinstance(traced_value(first), FakeTensor)):
        return []
    if all(each is first for each in node.all_input_nodes):
        return []
    grows = name_of(node.target) in _LARGER
    grows = grows or (updates_pointwise(node.target) and _grows(node.target, first, rest, raised))
    return [first] if grows else []


def _grows(target: Any, first: Any, rest: Any, raised: set[_Key]) -> bool:
    """Whether tracing gives what a call updates the size of the call's result.

    Args:
        target: What is called.
        first: What it updates.
        rest: Its other arguments, and those by name.
        raised: Calls of this graph for which asking raised, as most do; those that do are added.
    """
    dtype, others = traced_value(first).dtype, tree_map(_described, rest)
    key = target, repr((dtype, others))
    if key in raised:
        return False
    if key not in _grow:
        mode = FakeTensorMode()
        mode.cache_enabled = False  # a result that is kept leaves what is updated as it was
        with _unlogged(), unset_fake_temporarily(), mode, torch.no_grad():
            small = torch.ones(2, dtype=dtype, device=CPU)
            args, kwargs = tree_map(_larger, others)
            try:
                _call(target, small, *args, **kwargs)
            except Exception:
                raised.add(key)  # perhaps for the state that torch is in: the next graph asks again
                return False
        _grow[key] = small.dim() != 1
    return _grow[key]


@dataclass(frozen=True)
class _Operand:
    """A tensor among the arguments of a call: its type, and whether it is a number."""

    dtype: torch.dtype
    number: bool


def _described(value: Any) -> Any:
    known = traced_value(value)
    if isinstance(known, torch.Tensor):
        return _Operand(known.dtype, known.dim() == 0)
    return 1 if isinstance(value, fx.Node) else known


def _larger(value: Any) -> Any:
    if not isinstance(value, _Operand):
        return value
    return torch.ones(() if value.number else (3, 2), dtype=value.dtype, device=CPU)


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what is asked on purpose off standard error, and from who takes it for a failure."""
    before, _COMPLAINS.disabled = _COMPLAINS.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
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
    if place.op not in ("call_method", "call_function"):
        return
    args, kwargs = traced_values((place.args, place.kwargs))
    try:
        with _unlogged(), traced_value(place).fake_mode, torch.no_grad():
            made = _call(place.target, *args, **kwargs)
    except Exception:
        return  # nobody knows
    if isinstance(made, torch.Tensor):
        yield made


__all__ = ["grown_in_tracing"]
