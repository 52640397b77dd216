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

from fusec.graph.facts.called import Call, take_called
from fusec.graph.facts.element_strides import (
    Strides,
    element_strides,
    has_few,
    is_on_elements,
    lie_alike,
)
from fusec.graph.facts.index_strides import INDEXED, index_strides
from fusec.graph.facts.rolled import rolled_strides
from fusec.graph.facts.view_strides import VIEWS, view_strides

aten = torch.ops.aten


def lay_out_few(module: fx.GraphModule) -> int:
    """Let what a functional graph says of its values have eager's strides; return of how many.

    Operators choose by such strides how the elements of their results lie, as ``cat`` does: they
    are laid out as in eager where all that reads them can be.

    Args:
        module: What its nodes say of themselves is changed, nothing else.
    """
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    called = {node: take_called(node) for node in calls}
    try:
        found = _Layouts(module, called, whole=True).found()
    except _OnlyFew:
        found = _Layouts(module, called, whole=False).found()
    for node, value in found.items():
        node.meta["val"] = value
        if called[node] is not None and node.target is aten.clone.default:
            node.kwargs = {}  # the format is what is said now
        if node.target is aten.empty_permuted.default:
            node.target = aten.empty_strided.default
            node.args = (node.args[0], list(value.stride()))
    return len(found)


class _OnlyFew(Exception):
    """Something reads a value that can not be laid out otherwise where that is seen."""


class _Layouts:
    """Finds how the values of a graph lie in eager.

    Attributes:
        whole: Whether values may lie otherwise where their elements show it.
        others: Those that do.
    """

    def __init__(
        self, module: fx.GraphModule, called: dict[fx.Node, Call | None], *, whole: bool
    ) -> None:
        self.module, self.called, self.whole = module, called, whole
        self.mode: FakeTensorMode | None = None
        self.values: dict[fx.Node, Any] = {}
        self.others: set[fx.Node] = set()

    def found(self) -> dict[fx.Node, Any]:
        """Return what is to be said of nodes that lie otherwise than they say.

        Raises:
            _OnlyFew: It has to be done without others.
        """
        for node in self.called:
            follows = not self.values.keys().isdisjoint(self._read(node))
            few = has_few(_first(node)) or _is_indexed(node)
            if not (follows or few):
                continue
            self.mode = self.mode or _fake_mode(self.module)
            if self.mode is None:
                return {}
            strides = self._strides(node) if few else None
            if strides is not None:
                self._lay_out(node, strides, self.mode)
            elif follows:
                self._ask_again(node, self.mode)
        return self.values

    def _value(self, node: fx.Node) -> Any:
        return self.values.get(node, node.meta.get("val"))

    def _read(self, node: fx.Node) -> list[fx.Node]:
        """Return the values that a node's result hangs on, as eager makes it."""
        found = node.all_input_nodes
        if (call := self.called[node]) is not None:
            fx.node.map_arg(call[1:], found.append)
        return found

    def _strides(self, node: fx.Node) -> Strides | None:
        """Return the strides that eager gives a first result; None where torch says the same."""
        target, *given = self.called[node] or (node.target, node.args, node.kwargs)
        if not isinstance(target, torch._ops.OpOverload):
            return None
        known: Any = fx.node.map_arg(given, self._value)  # type: ignore[type-var]
        args, kwargs = known
        value = node.meta["val"]
        if target in VIEWS:
            return view_strides(args[0], value.shape)
        if _is_indexed(node):
            return index_strides(args[0], args[1], value.shape)
        if target is aten.roll.default:
            return rolled_strides(*args)
        if is_on_elements(target):
            return element_strides(target, args, kwargs, _first(node))
        return _in_order(value) if _makes_own(target) else None

    def _lay_out(self, node: fx.Node, strides: Strides, mode: FakeTensorMode) -> None:
        value = node.meta["val"]
        several = value if _is_several(node) else (value,)
        anyhow = _is_indexed(node) or not self.others.isdisjoint(self._read(node))
        count = len(several) if lie_alike(node.target) else 1
        made = [_laid_out(each, strides, mode, anyhow=anyhow) for each in several[:count]]
        if all(each is None for each in made):
            return
        made += [None] * (len(several) - count)
        pairs = zip(made, several, strict=True)
        laid = tuple(old if new is None else new for new, old in pairs)
        self._say(node, laid if _is_several(node) else laid[0])

    def _ask_again(self, node: fx.Node, mode: FakeTensorMode) -> None:
        """Ask an operator of its result, now that its operands lie otherwise."""
        shown = not self.others.isdisjoint(self._read(node))
        if not _is_judged(node) or (shown and node.target is aten.as_strided.default):
            if shown:
                raise _OnlyFew
            return
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._value)
        try:
            with mode, torch.no_grad():
                again = node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:  # a view that there is none of any more, say: then the old one holds
            if shown:
                raise _OnlyFew from None
            return
        self._say(node, again, only_few=not shown and not _makes_own(node.target))

    def _say(self, node: fx.Node, value: Any, *, only_few: bool = False) -> None:
        found = _differences(node.meta["val"], value)
        if None in found:
            if only_few or not self.whole or not _are_numbers(node.meta["val"], value):
                if self.others:
                    raise _OnlyFew
                return
            self.others.add(node)
            self.values[node] = value
        elif any(found):
            self.values[node] = value


def _first(node: fx.Node) -> Any:
    """Return the first result of an operator on elements; of another one, what it returns."""
    value: Any = node.meta.get("val")
    return value[0] if _is_several(node) else value


def _is_several(node: fx.Node) -> bool:
    """Whether a node is of an operator on elements that has several results."""
    return isinstance(node.meta.get("val"), tuple) and is_on_elements(node.target)


def _is_indexed(node: fx.Node) -> bool:
    """Whether a node is of ``x[indices]``, not part of what another operator is composed of.

    What those lay out they lay out once more.
    """
    called = node.meta.get("original_aten", node.target)  # may be a copy
    return node.target in INDEXED and str(called) == str(node.target)


def _makes_own(target: Any) -> bool:
    """Whether what an operator returns is memory of its own."""
    return isinstance(target, torch._ops.OpOverload) and all(
        each.alias_info is None for each in target._schema.returns
    )


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


def _laid_out(
    value: torch.Tensor, wanted: Strides, mode: FakeTensorMode, *, anyhow: bool
) -> torch.Tensor | None:
    """Return a value with the strides wanted; None if it has these.

    Only those that nothing uses are other ones, unless they may be ``anyhow``.
    """
    none = any(isinstance(size, int) and size == 0 for size in value.shape)
    pairs = zip(value.shape, value.stride(), wanted, strict=True)
    strides = [new if anyhow or none or _is_one(size) else old for size, old, new in pairs]
    if all(_same(old, new) for old, new in zip(value.stride(), strides, strict=True)):
        return None
    with mode:
        return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)


def _is_one(size: int | torch.SymInt) -> bool:
    return bool(_expression(size) == 1)


def _same(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Whether two numbers are the same, without a guard.

    A symbol that a guard has fixed meanwhile is that number.
    """
    return bool(_expression(a) == _expression(b))


def _expression(number: int | torch.SymInt) -> Any:
    return number if isinstance(number, int) else number.node.expr


def _are_numbers(old: Any, new: Any) -> bool:
    """Whether two results have the same sizes, and no size and no stride is a symbol."""
    pairs = zip(_tensors(old), _tensors(new), strict=True)
    return all(
        all(isinstance(n, int) for n in (*a.shape, *a.stride(), *b.shape, *b.stride()))
        and a.shape == b.shape
        for a, b in pairs
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    several = value if isinstance(value, (tuple, list)) else (value,)
    return [each for each in several if isinstance(each, torch.Tensor)]


def _differences(old: Any, new: Any) -> list[bool | None]:
    """Return of each tensor of a result how it lies otherwise, as ``_difference`` says it."""
    return [_difference(a, b) for a, b in zip(_tensors(old), _tensors(new), strict=True)]


def _difference(old: torch.Tensor, new: torch.Tensor) -> bool | None:
    """Return whether a tensor lies otherwise; None where that would be seen in its elements."""
    if not all(_same(a, b) for a, b in zip(old.shape, new.shape, strict=True)):
        return None
    none = any(isinstance(size, int) and size == 0 for size in old.shape)
    if not (none or _same(old.storage_offset(), new.storage_offset())):
        return None
    other = [
        none or _is_one(size)
        for size, a, b in zip(old.shape, old.stride(), new.stride(), strict=True)
        if not _same(a, b)
    ]
    return bool(other) if all(other) else None


__all__ = ["lay_out_few"]
