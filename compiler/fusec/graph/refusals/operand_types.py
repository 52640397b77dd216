"""Types of operands that kernels of ATen do not take beside each other, where tracing takes them.

Of a source of another type, or of places that are no integers, tracing makes a kernel all the same;
torch 2.13 asks about most of it, torch 2.11 about little.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from fusec.devices import CPU
from fusec.graph.refusals.shapes import is_torchs, name_of, traced_values, without_out

_PLACES = (torch.int32, torch.int64)
_HALVES = (torch.float16, torch.bfloat16)
Rule = Callable[..., bool]


def refuses_operands(node: fx.Node, *, converts: bool) -> bool:
    """Whether eager raises for the types that a call's operands have.

    Args:
        node: Of a captured graph.
        converts: Whether autocast may convert operands first.
    """
    name = name_of(node.target).removesuffix("_")
    rule = _embedding if node.target is F.embedding else _RULES.get(name)
    if rule is None or not is_torchs(node.target) or (converts and name in _CONVERTED):
        return False
    args, kwargs = traced_values((node.args, node.kwargs))
    return not rule(*args, **without_out(kwargs))


def _index_copy(input: Any, dim: int, index: Any, source: Any) -> bool:
    return bool(index.dtype == torch.int64 and input.dtype == source.dtype)


def _index_add(input: Any, dim: int, index: Any, source: Any, *rest: Any, **more: Any) -> bool:
    return bool(index.dtype in _PLACES and input.dtype == source.dtype)


def _index_fill(input: Any, dim: int, index: Any, value: Any) -> bool:
    return bool(index.dtype == torch.int64)


def _index_select(input: Any, dim: int, index: Any) -> bool:
    return bool(index.dtype in _PLACES)


def _index_put(input: Any, indices: Any, values: Any, *rest: Any, **more: Any) -> bool:
    return bool(input.dtype == values.dtype)


def _put(input: Any, index: Any, source: Any, *rest: Any, **more: Any) -> bool:
    return bool(index.dtype == torch.int64 and input.dtype == source.dtype)


def _embedding(input: Any, weight: Any, *rest: Any, **more: Any) -> bool:
    return bool(input.dtype in _PLACES)


def _classes(input: Any, target: Any, *rest: Any, **more: Any) -> bool:
    return bool(target.dtype in (torch.int64, torch.uint8) or target.is_floating_point())


def _alike(input: Any, target: Any, *rest: Any, **more: Any) -> bool:
    return bool(input.dtype == target.dtype)


def _learned(input: Any, target: Any, *rest: Any, **more: Any) -> bool:
    """As ``_alike`` where gradients are computed, if this torch refuses another type there."""
    learns = torch.is_grad_enabled() and (input.requires_grad or target.requires_grad)
    return not learns or _alike(input, target) or not _refuses_slopes()


@functools.cache
def _refuses_slopes() -> bool:
    """Whether the squared error's gradient is refused for targets of another type: up to 2.11."""
    with unset_fake_temporarily(), torch.device(CPU), torch.enable_grad():
        x = torch.ones(1, requires_grad=True)
        try:
            F.mse_loss(x, torch.ones(1, dtype=torch.uint8)).backward()
        except RuntimeError:
            return True
    return False


def _norm(input: Any, *rest: Any, **more: Any) -> bool:
    """Whether parameters are of the input's type, or float32 beside halves."""
    given = [each for each in tree_leaves((rest, more)) if isinstance(each, torch.Tensor)]
    known = {input.dtype, torch.float32} if input.dtype in _HALVES else {input.dtype}
    return {each.dtype for each in given} <= known


_NORMS: dict[str, Rule] = dict.fromkeys(
    ("layer_norm", "group_norm", "batch_norm", "instance_norm"), _norm
)
_LOSSES: dict[str, Rule] = {
    "cross_entropy": _classes,
    "nll_loss": _classes,
    "binary_cross_entropy": _alike,
    "huber_loss": _alike,
    "mse_loss": _learned,
}
_RULES: dict[str, Rule] = {
    "index_add": _index_add,
    "index_copy": _index_copy,
    "index_reduce": _index_add,
    "index_fill": _index_fill,
    "index_select": _index_select,
    "index_put": _index_put,
    "put": _put,
    **_LOSSES,
    **_NORMS,
}
_CONVERTED = frozenset({"index_copy", *_LOSSES, *_NORMS})  # on a CPU or a GPU

__all__ = ["refuses_operands"]
