"""Images of bytes are interpolated by ATen itself, and other integers refused by it.

ATen interpolates uint8 images in fixed point; torch's decomposition, which tracing cannot avoid,
computes in float and rounds otherwise.  So such calls become operators that tracing leaves whole.
Of other integers, and of float8, ATen has no interpolation, and says so when it is called.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

_NEAREST = ("nearest", "nearest-exact")
# What each function that interpolates calls ``interpolate`` with, beside its own arguments.
_FUNCTIONS: dict[object, dict[str, Any]] = {
    F.interpolate: {},
    F.upsample: {},
    F.upsample_bilinear: {"mode": "bilinear", "align_corners": True},
    F.upsample_nearest: {"mode": "nearest"},
}


def _interpolate(
    x: torch.Tensor,
    size: Sequence[int] | None,
    factors: Sequence[float] | None,
    mode: str,
    align_corners: bool | None,
    recompute: bool | None,
    antialias: bool,
) -> torch.Tensor:
    given = list(size) if size is not None else None
    scale = list(factors) if factors is not None else None
    return F.interpolate(x, given, scale, mode, align_corners, recompute, antialias)


_LIBRARY = torch.library.Library("fusec", "FRAGMENT")
_LIBRARY.define(
    "interpolate_bytes(Tensor x, SymInt[]? size, float[]? factors, str mode, bool? align_corners,"
    " bool? recompute, bool antialias) -> Tensor"
)
_LIBRARY.impl("interpolate_bytes", _interpolate, "CompositeExplicitAutograd")
_LIBRARY.impl("interpolate_bytes", lambda *args: torch.empty_like(_interpolate(*args)), "Meta")


def keep_interpolations_of_bytes(module: fx.GraphModule) -> fx.GraphModule:
    """Return a captured graph in which interpolations of integers stay whole."""
    if not any(_is_of_bytes(node) for node in module.graph.nodes):
        return module
    changed = copy.copy(module)
    changed.graph = copy.deepcopy(module.graph)
    for node in list(changed.graph.nodes):
        if not _is_of_bytes(node):
            continue
        bound = inspect.signature(F.interpolate).bind(**_arguments(node))
        bound.apply_defaults()
        x, size, factors, mode, align_corners, recompute, antialias = bound.args
        dims = x.meta["example_value"].ndim - 2
        size = [size] * dims if isinstance(size, (int, fx.Node)) else size
        factors = [float(factors)] * dims if isinstance(factors, (int, float)) else factors
        with changed.graph.inserting_before(node):
            whole = changed.graph.call_function(
                torch.ops.fusec.interpolate_bytes.default,
                (x, size, factors, mode, align_corners, recompute, antialias),
            )
        whole.meta = dict(node.meta)
        node.replace_all_uses_with(whole)
        changed.graph.erase_node(node)
    return changed


def _arguments(node: fx.Node) -> dict[str, Any]:
    function: Any = node.target
    bound = inspect.signature(function).bind(*node.args, **node.kwargs)
    return {**bound.arguments, **_FUNCTIONS[function]}


def _is_of_bytes(node: fx.Node) -> bool:
    if node.target not in _FUNCTIONS:
        return False
    given = _arguments(node)
    image = given["input"]
    value = image.meta.get("example_value") if isinstance(image, fx.Node) else None
    mode = given.get("mode", "nearest")
    if not isinstance(value, torch.Tensor):
        return False
    if value.dtype.is_floating_point and value.dtype.itemsize > 1:
        return False
    if value.dtype == torch.uint8:
        return mode not in _NEAREST
    return value.device.type == "cpu"


__all__ = ["keep_interpolations_of_bytes"]
