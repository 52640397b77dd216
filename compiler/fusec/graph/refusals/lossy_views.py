"""Updates through views of which a functional graph cannot make the whole again.

AOTAutograd makes what a view was taken of anew from the view that was updated.  Of windows
(``x.unfold(0, 2, 3)``) it adds them up, with zeros for the elements that none of them has.  Where
elements of a view are one (windows that overlap, an expanded tensor), all that stand for the
updated one are to change, and some of them are what they were before.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._pytree import tree_leaves

from fusec.graph.refusals.shapes import may_share_elements, name_of, traced_value, writes_in_place

_WINDOWS = "unfold"


def updates_lossy_view(module: fx.GraphModule) -> str:
    """Return which call of a captured graph updates a part of such a view, or an empty string."""
    lossy: set[fx.Node] = set()
    for node in module.graph.nodes:
        if lossy and any(place in lossy for place in _written(node)):
            return f"{node.name} updates a view whose elements are not each one of its memory's"
        if node.op == "output":
            continue
        sources = [each for each in node.all_input_nodes if _shares_memory(node, each)]
        if any(each in lossy for each in sources) or (
            (sources or node.op == "placeholder")
            and (_leaves_some_out(node) or any(map(may_share_elements, _tensors(node))))
        ):
            lossy.add(node)
    return ""


def _leaves_some_out(node: fx.Node) -> bool:
    """Whether a call makes windows of which it is not known that each element is in one of them."""
    if name_of(node.target) != _WINDOWS:
        return False
    made, whole = (list(_tensors(each)) for each in (node, node.args[0]))  # type: ignore[arg-type]
    if len(made) != 1 or len(whole) != 1:
        return True
    counts = made[0].numel(), whole[0].numel()
    return not all(type(each) is int for each in counts) or counts[0] != counts[1]


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """Yield what a call of a captured graph updates."""
    if node.op not in ("call_function", "call_method"):
        return
    given: list[Any] = [node.kwargs.get("out")]
    if node.target is operator.setitem or writes_in_place(node.target):
        given += node.args[:1]
    for each in tree_leaves(given):
        if isinstance(each, fx.Node):
            yield each


def _shares_memory(node: fx.Node, other: fx.Node) -> bool:
    return bool(_storages(node) & _storages(other))


def _storages(node: fx.Node) -> set[int]:
    return {int(value.untyped_storage()._cdata) for value in _tensors(node)}


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    """Return the plain tensors that a node stands for; those within a transform are none."""
    return [
        value
        for value in tree_leaves(traced_value(node))
        if isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not is_functorch_wrapped_tensor(value)
        and hasattr(value, "fake_device")
    ]


__all__ = ["updates_lossy_view"]
