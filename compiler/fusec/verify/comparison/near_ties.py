"""Which element is the greatest where several are as great within what is rounded.

Eager rounds the elements that it compares, a kernel rounds them from other digits: of elements at
an edge of rounding either may come out, and among thousands of rows some such are sure to be.  To
meet each by drawing roundings by chance takes many runs.  So what a kernel chose is looked at: it
stands if rounding once, of digits that are as good as a kernel's, can have chosen it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

# Functions and methods that give where the greatest or the least is; of some, beside it.
_PLACES = frozenset("argmax argmin".split())
_VALUES_AND_PLACES = frozenset("max min".split())
_LEAST = frozenset("argmin min".split())
# How far the digits may be off that a kernel rounds, in units of eager's last place: functions of
# halves need not be more exact (``exp_for_half``), in float32 they have a few of these.
_UNITS_HALF = 1 / 16
_UNITS = 4.0


def choices(graph: fx.Graph, claimed: Sequence[torch.Tensor]) -> dict[fx.Node, torch.Tensor]:
    """Return, of operators that choose an element, what is said to be chosen.

    Args:
        graph: A captured graph.
        claimed: What another run of it gave, one for each tensor among its results; what is no
            result of such an operator is left out.
    """
    results: list[fx.Node] = []
    fx.map_arg(graph.output_node().args, results.append)
    results = [n for n in results if isinstance(n.meta.get("example_value"), torch.Tensor)]
    if len(results) != len(claimed):
        return {}
    found = {}
    for node, places in zip(results, claimed, strict=True):
        source = _chooser(node)
        if source is not None and places.dtype == torch.int64:
            found[source] = places
    return found


def decided(
    node: fx.Node,
    made: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    claimed: torch.Tensor,
) -> Any:
    """Return what an operator gives, with the places that are claimed where they may be right.

    Args:
        node: The operator, one that ``choices`` found.
        made: What it gave.
        args: Its arguments, in float64.
        kwargs: Likewise.
        claimed: Which places a kernel chose.
    """
    values = args[0] if args else kwargs["input"]
    dtype = node.all_input_nodes[0].meta["example_value"].dtype
    places = made if isinstance(made, torch.Tensor) else made[1]
    if claimed.shape != places.shape or not dtype.is_floating_point or not values.numel():
        return made
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    if dim is None:
        values, dim = values.reshape(-1), 0
        own, other = places.reshape(1), claimed.reshape(1)
    elif values.ndim == 0:
        return made
    else:
        own, other = (t if keepdim else t.unsqueeze(dim) for t in (places, claimed))
    if _name(node) in _LEAST:
        values = -values
    possible = _possible(values, dim, other, dtype)
    chosen = torch.where(possible, other, own).reshape(places.shape)
    return chosen if isinstance(made, torch.Tensor) else type(made)((made[0], chosen))


def _possible(
    values: torch.Tensor, dim: int, places: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return whether an element may be the first of the greatest after rounding to ``dtype``.

    Args:
        values: In float64. What ``dtype`` holds as it is has not been rounded, nor is off.
        dim: Along which the greatest is looked for.
        places: Of one element in each row; whatever numbers.
        dtype: Eager's type.
    """
    size = values.shape[dim]
    within = (places >= 0) & (places < size)
    places = torch.where(within, places, 0)
    units = _UNITS_HALF if dtype in (torch.float16, torch.bfloat16) else _UNITS
    off = values.abs() * (units * torch.finfo(dtype).eps)
    off = torch.where(values.to(dtype).double() == values, 0.0, off)
    least = (values - off).to(dtype)
    most = (values + off).gather(dim, places).to(dtype)
    shape = [1] * values.ndim
    shape[dim] = size
    index = torch.arange(size, device=values.device).reshape(shape)
    # Of equal ones the first is right, so that one in front has to be less.
    lost = torch.where(index < places, least >= most, least > most) & (index != places)
    unordered = values.isnan().any(dim, keepdim=True)
    return within & ~unordered & ~lost.any(dim, keepdim=True)


def _chooser(node: fx.Node) -> fx.Node | None:
    """Return the operator whose places a node is; None where it is none."""
    name = _name(node)
    if name == "getitem" and node.args[1] in (1, "indices"):
        source = node.args[0]
        if isinstance(source, fx.Node) and _name(source) in _VALUES_AND_PLACES:
            return source
        return None
    return node if name in _PLACES else None


def _name(node: fx.Node) -> str:
    return str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))


__all__ = ["choices", "decided"]
