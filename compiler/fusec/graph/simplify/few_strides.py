"""Strides of dimensions of one element, and of tensors without any, as eager has them.

No access uses them, but everybody sees them: ``x.stride()``, ``x.is_contiguous()`` in some formats,
``as_strided``.  torch's fake tensors are wrong about those of most operators on elements.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.fake_tensor import FakeTensorMode

from fusec.graph.facts.called import take_called
from fusec.graph.facts.element_strides import (
    Strides,
    element_strides,
    has_few,
    is_on_elements,
    lie_alike,
)
from fusec.graph.facts.view_strides import VIEWS, view_strides

aten = torch.ops.aten


def lay_out_few(module: fx.GraphModule) -> int:
    """Let what a functional graph says of its values have eager's strides; return of how many.

    Args:
        module: What its nodes say of themselves is changed, nothing else.
    """
    changed: set[fx.Node] = set()
    mode: FakeTensorMode | None = None
    again: Any
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        value = node.meta.get("val")
        follows = bool(changed) and not changed.isdisjoint(node.all_input_nodes)
        several = isinstance(value, tuple) and is_on_elements(node.target)
        few = has_few(value[0] if several else value)
        if not (follows or few):
            continue
        strides = _strides(node, value[0] if several else value) if few else None
        if strides is None and not (follows and _is_judged(node)):
            continue
        mode = mode or _fake_mode(module)
        if mode is None:
            return 0
        if strides is not None:
            again = _laid_out(value[0] if several else value, strides, mode)
            if several and again is not None:
                alike = lie_alike(node.target)
                others = [_laid_out(each, strides, mode) if alike else None for each in value[1:]]
                pairs = zip(others, value[1:], strict=True)
                again = (again, *(old if new is None else new for new, old in pairs))
        else:
            again = _asked_again(node, value, mode)
        if again is not None:
            node.meta["val"] = again
            changed.add(node)
            if strides is not None and node.target is aten.empty_permuted.default:
                node.target, node.args = aten.empty_strided.default, (node.args[0], list(strides))
    return len(changed)


def _strides(node: fx.Node, value: torch.Tensor) -> Strides | None:
    """Return the strides that eager gives a node's first result; None where torch says the same."""
    target, *given = take_called(node) or (node.target, node.args, node.kwargs)
    if not isinstance(target, torch._ops.OpOverload):
        return None
    if target in VIEWS:
        viewed: Any = node.args[0]
        return view_strides(viewed.meta["val"], value.shape)
    if not is_on_elements(target):
        return _in_order(value) if _makes_own(target) else None
    known: Any = fx.node.map_arg(given, lambda each: each.meta.get("val"))  # type: ignore[type-var]
    args, kwargs = known
    return element_strides(target, args, kwargs, value)


def _makes_own(target: torch._ops.OpOverload) -> bool:
    """Whether what an operator returns is memory of its own."""
    return all(each.alias_info is None for each in target._schema.returns)


def _in_order(value: torch.Tensor) -> Strides | None:
    """Return the strides of no elements in order, which fake tensors may count as 0 apart."""
    shape = tuple(value.shape)
    # In this order: to compare a size that only data says would be a guard on it.
    if not all(isinstance(size, int) for size in shape) or 0 not in shape:
        return None
    counted = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    if [*value.stride()] != counted:
        return None
    return tuple(make_contiguous_strides_for(shape))


def _is_judged(node: fx.Node) -> bool:
    """Whether an operator can be asked again what it returns."""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or "unbacked_bindings" in node.meta:
        return False
    tags = node.target.tags
    depends = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
    return not (depends or node.target._schema.is_mutable)


def _fake_mode(module: fx.GraphModule) -> FakeTensorMode | None:
    known = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    return detect_fake_mode(known)


def _laid_out(value: torch.Tensor, wanted: Strides, mode: FakeTensorMode) -> torch.Tensor | None:
    """Return a value with the strides wanted, where nothing uses them; None if it has these."""
    none = any(isinstance(size, int) and size == 0 for size in value.shape)
    pairs = zip(value.shape, value.stride(), wanted, strict=True)
    strides = [new if none or _is_one(size) else old for size, old, new in pairs]
    if all(_same(old, new) for old, new in zip(value.stride(), strides, strict=True)):
        return None
    with mode:
        return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)


def _is_one(size: int | torch.SymInt) -> bool:
    return isinstance(size, int) and size == 1


def _same(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Whether two numbers are the same, without a guard."""
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return isinstance(a, int) and isinstance(b, int) and a == b


def _asked_again(node: fx.Node, value: Any, mode: FakeTensorMode) -> Any:
    """Return what an operator says of its result, now that its operands lie otherwise.

    None if it is the same, or would be seen in the elements.
    """
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
    try:
        with mode, torch.no_grad():
            again = node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception:  # a view that there is none of any more, say: then the old one holds
        return None
    return again if _differs(value, again) else None


def _differs(old: Any, new: Any) -> bool:
    """Whether a value lies otherwise, where nothing uses it alone."""
    if isinstance(old, (tuple, list)):
        pairs = [(a, b) for a, b in zip(old, new, strict=True) if isinstance(a, torch.Tensor)]
    else:
        pairs = [(old, new)]
    found = [_difference(a, b) for a, b in pairs]
    return any(found) and None not in found


def _difference(old: torch.Tensor, new: torch.Tensor) -> bool | None:
    """Return whether a tensor lies otherwise; None where that would be seen in its elements."""
    if not all(_same(a, b) for a, b in zip(old.shape, new.shape, strict=True)):
        return None
    if not _same(old.storage_offset(), new.storage_offset()):
        return None
    none = any(isinstance(size, int) and size == 0 for size in old.shape)
    other = [
        none or _is_one(size)
        for size, a, b in zip(old.shape, old.stride(), new.stride(), strict=True)
        if not _same(a, b)
    ]
    return bool(other) if all(other) else None


__all__ = ["lay_out_few"]
