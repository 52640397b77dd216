"""How ATen lays out what an operator on elements returns, to the strides of single elements.

torch's fake tensors take every tensor that is contiguous to lie in order; of a dimension of one
element, and where there are no elements at all, ATen's kernels look at the stride.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch._prims_common import (
    make_channels_last_strides_for,
    make_contiguous_strides_for,
    suggest_memory_format,
)
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.devices import CPU
from fusec.graph.facts.view_strides import Ints, Strides, sizes_now

aten = torch.ops.aten
_LIKE = frozenset(
    (
        aten._prelu_kernel.default,
        aten._to_copy.default,
        aten.clone.default,
        aten.empty_like.default,
        aten.flip.default,
        aten.full_like.default,
        aten.index_fill.int_Scalar,
        aten.index_fill.int_Tensor,
        aten.index_put.default,
        aten.ones_like.default,
        aten.rand_like.default,
        aten.randint_like.default,
        aten.randint_like.low_dtype,
        aten.randn_like.default,
        aten.sort.default,  # all of its results
        aten.sort.stable,
        aten.zeros_like.default,
    )
)
# Composed of others, the last of which is none on elements.
_COMPOSED = frozenset((aten.mvlgamma.default,))
# On elements as well, though torch does not say so.
_UNTAGGED = frozenset((aten.complex.default, aten.floor_divide.default, aten.polar.default))
# What these return lies in order, whatever they read.
_IN_ORDER = frozenset(
    (
        aten._log_softmax.default,
        aten.diag_embed.default,
        aten.index_add.default,
        aten.index_copy.default,
    )
)
# The first of its results, in the format that its input's strides suggest.
_IN_FORMAT = frozenset((aten.native_group_norm.default,))
_IN_ROWS = frozenset(
    (
        aten.isin.Tensor_Scalar,
        aten.masked_fill.Scalar,
        aten.masked_fill.Tensor,
        aten.native_layer_norm.default,  # the first of its results
        aten.pow.Scalar,
        aten.tril.default,
        aten.triu.default,
    )
)
# Losses that are on elements if they are not reduced.
_LOSSES = frozenset(
    (
        aten.binary_cross_entropy.default,
        aten.binary_cross_entropy_with_logits.default,
        aten.huber_loss.default,
        aten.mse_loss.default,
        aten.smooth_l1_loss.default,
        aten.soft_margin_loss.default,
    )
)
# Those of them that are one kernel.
_AT_ONCE = frozenset((aten.mse_loss.default, aten.smooth_l1_loss.default))


class Lies(Enum):
    """How the result of operands lies that are alike and contiguous."""

    IN_ORDER = "in order"
    SORTED = "sorted"  # as the strides are: a number is one more operand, without dimensions
    AS_FIRST = "as first"  # ``empty_like`` of the first operand


def has_few(value: Any) -> bool:
    """Whether a tensor has a dimension of one element or none, whose stride nothing uses."""
    return isinstance(value, torch.Tensor) and any(
        isinstance(size, int) and size <= 1 for size in value.shape
    )


def is_on_elements(target: object) -> bool:
    """Whether the results of an operator lie by the rules here."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if is_reduction(target):
        return True
    if torch.Tag.pointwise in target.tags:
        return not (target._schema.is_mutable or target in _COMPOSED)
    listed = (_LIKE, _LOSSES, _IN_ROWS, _UNTAGGED, _IN_ORDER, _IN_FORMAT)
    return any(target in each for each in listed)


def is_reduction(target: object) -> bool:
    """Whether the results of an operator are reduced: they lie in order, whatever it reads."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.reduction in target.tags


def lie_alike(target: object) -> bool:
    """Whether all results of an operator lie alike, not only the first is on elements."""
    return target in (aten.sort.default, aten.sort.stable) or is_reduction(target)


def element_strides(
    target: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: torch.Tensor,
) -> Strides | None:
    """Return the strides of what an operator on elements returns in eager.

    Args:
        target: The operator; ``is_on_elements`` holds.
        args: What it is called with: tensors as torch traced them.
        kwargs: The same.
        result: What torch traced of its result.

    Returns:
        None where that is not known: some size is that of data, say. Where sizes are symbolic the
        order is that of the call that is compiled for.
    """
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    tensors = tensors[:1] if target in _LIKE else tensors
    if target is aten.binary_cross_entropy_with_logits.default:
        tensors = tensors[1:2]  # of all operands it is the target's
    rank = result.ndim
    if target in _IN_FORMAT:
        return _in_format(tensors[0], result.shape)
    if target in _IN_ORDER or is_reduction(target):
        return _filled(reversed(range(rank)), result.shape, counts_none=False)
    if not (rank and tensors) or any(isinstance(each, torch.Tensor) for each in kwargs.values()):
        return None
    shape, operands = sizes_now(result.shape), [_laid(each) for each in tensors]
    if target is aten.ldexp.Tensor and operands[1] is not None:  # times 2**y, which is in order
        operands[1] = _Laid(operands[1].shape, make_contiguous_strides_for(operands[1].shape))
    if shape is None or None in operands or rank != max(each.ndim for each in tensors):
        return None
    order = _chosen(target, args, kwargs, shape, [each for each in operands if each is not None])
    if order is None:
        return None
    if isinstance(order, _Laid):
        return tuple(tensors[0].stride())
    in_order = order == list(reversed(range(rank)))
    return _filled(order, result.shape, counts_none=not (in_order or target in _LIKE))


def _chosen(
    target: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    shape: Ints,
    operands: Sequence[_Laid],
) -> list[int] | _Laid | None:
    """Return the result's dimensions from the innermost on, or the operand that it lies like."""
    alike = all(each.shape == shape for each in operands)
    lies = Lies.SORTED
    if target in _LIKE:
        if not alike or kwargs.get("memory_format") not in (None, torch.preserve_format):
            return None
        lies = Lies.AS_FIRST
    elif alike:
        kinds = args if target in _LOSSES else [_kind(each) for each in args]
        kinds = [each.dtype if isinstance(each, torch.Tensor) else each for each in kinds]
        lies = _lies(target, tuple(kinds), tuple(kwargs.items()))
    if lies is Lies.AS_FIRST:
        return operands[0] if operands[0].is_dense() else _order(operands[:1], shape)
    composed = target in _LOSSES and target not in _AT_ONCE
    if composed and len({each.strides for each in operands}) > 1:
        return None
    if target in _IN_ROWS:
        return list(reversed(range(len(shape))))
    if lies is Lies.IN_ORDER:
        if all(each.is_contiguous() for each in operands):
            return list(reversed(range(len(shape))))
        if all(each.is_channels_last() for each in operands):
            return [1, 3, 2, 0]
        if len(set(operands)) == 1 and operands[0].is_dense():
            return operands[0]
    return _order([each.spread(shape) for each in operands], shape)


@dataclass(frozen=True)
class _Laid:
    """The sizes and strides of a tensor, as they are now."""

    shape: Ints
    strides: Ints

    def is_contiguous(self) -> bool:
        return 0 in self.shape or self._follows(reversed(range(len(self.shape))))

    def is_channels_last(self) -> bool:
        return len(self.shape) == 4 and self._follows((1, 3, 2, 0))

    def _follows(self, order: Iterable[int]) -> bool:
        expected = 1
        for dim in order:
            if self.shape[dim] != 1 and self.strides[dim] != expected:
                return False
            expected *= self.shape[dim]
        return True

    def is_dense(self) -> bool:
        """Whether elements fill memory without gaps, each with a place of its own."""
        by_stride = sorted(range(len(self.shape)), key=lambda dim: self.strides[dim])
        return 0 in self.shape or self._follows(by_stride)

    def spread(self, shape: Ints) -> _Laid:
        """Return it as it is broadcast to a shape."""
        more = len(shape) - len(self.shape)
        own = (
            0 if size == 1 and wanted != 1 else stride
            for size, stride, wanted in zip(self.shape, self.strides, shape[more:], strict=True)
        )
        return _Laid(shape, (0,) * more + tuple(own))


def ordered_strides(
    operands: Sequence[tuple[Ints, Ints]], shape: Sequence[int | torch.SymInt]
) -> Strides | None:
    """Return the strides of a new result of operands, as ``TensorIterator`` chooses them.

    Args:
        operands: The sizes and strides of each, as they are now.
        shape: The result's, which may be symbolic.

    Returns:
        None for a tensor without dimensions, and of sizes that nobody knows.
    """
    now = sizes_now(shape)
    if not now:
        return None
    laid = [_Laid(*each) for each in operands]
    rows = list(reversed(range(len(now))))
    order: list[int] | None = None
    if all(each.shape == now for each in laid):
        if all(each.is_contiguous() for each in laid):
            order = rows
        elif all(each.is_channels_last() for each in laid):
            order = [1, 3, 2, 0]
    order = order or _order([each.spread(now) for each in laid], now)
    return _filled(order, shape, counts_none=order != rows)


def _in_format(x: torch.Tensor, shape: Sequence[int | torch.SymInt]) -> Strides:
    """Return the strides of what is new in the format that ``x`` lies in; in order on a GPU."""
    if x.device.type == CPU and suggest_memory_format(x) != torch.contiguous_format:
        return make_channels_last_strides_for(shape)
    return _filled(reversed(range(len(shape))), shape, counts_none=False)


def _laid(tensor: torch.Tensor) -> _Laid | None:
    shape, strides = sizes_now(tensor.shape), sizes_now(tensor.stride())
    return None if shape is None or strides is None else _Laid(shape, strides)


def _kind(value: Any) -> Any:
    """Return all that matters of a value; of a number that is its type."""
    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return int if isinstance(value, torch.SymInt) else float
    return type(value) if isinstance(value, (bool, int, float)) else value


def _lies(
    target: torch._ops.OpOverload, kinds: tuple[Any, ...], named: tuple[tuple[str, Any], ...]
) -> Lies:
    """Return how an operator's result lies, by asking it; in order where it does not say."""
    try:
        return _asked(target, kinds, named)
    except Exception:  # numbers that it does not take, or nothing that can be remembered
        return Lies.IN_ORDER


@functools.lru_cache(maxsize=1024)
def _asked(
    target: torch._ops.OpOverload, kinds: tuple[Any, ...], named: tuple[tuple[str, Any], ...]
) -> Lies:
    with unset_fake_temporarily(), torch.no_grad(), torch.device(CPU):

        def strides(shape: Ints, given: Ints) -> Ints:
            values = [
                torch.ones(8, dtype=kind).as_strided(shape, given)
                if isinstance(kind, torch.dtype)
                else (kind(1) if isinstance(kind, type) else kind)
                for kind in kinds
            ]
            found: Ints = target(*values, **dict(named)).stride()
            return found

        if strides((1, 2), (4, 1)) == (4, 1):
            return Lies.AS_FIRST
        return Lies.SORTED if strides((2, 1), (1, 2)) == (1, 2) else Lies.IN_ORDER


def _filled(order: Iterable[int], shape: Sequence[Any], *, counts_none: bool) -> Strides:
    """Return strides without gaps.

    Args:
        order: The dimensions from the innermost on.
        shape: Sizes, which may be symbolic.
        counts_none: Whether strides beyond a dimension without elements are 0.
    """
    strides: list[Any] = [0] * len(shape)
    running: Any = 1
    for dim in order:
        strides[dim] = running
        none = isinstance(shape[dim], int) and shape[dim] == 0
        running = running * (1 if none and not counts_none else shape[dim])
    return tuple(strides)


def _order(operands: Sequence[_Laid], shape: Ints) -> list[int]:
    """Return the dimensions from the innermost on, by the first operand before the others.

    As ``TensorIteratorBase::reorder_dimensions`` has it.
    """

    def compared(a: int, b: int) -> int:
        for strides in (each.strides for each in operands):
            if strides[a] == 0 or strides[b] == 0:
                continue
            if strides[a] != strides[b]:
                return 1 if strides[a] > strides[b] else -1
            if shape[a] > shape[b]:
                return 1
        return 0

    order = list(reversed(range(len(shape))))
    for place in range(1, len(shape)):
        high = place
        for low in reversed(range(place)):
            found = compared(order[low], order[high])
            if found > 0:
                order[low], order[high] = order[high], order[low]
                high = low
            elif found < 0:
                break
    return order


__all__ = [
    "Strides",
    "element_strides",
    "has_few",
    "is_on_elements",
    "is_reduction",
    "lie_alike",
    "ordered_strides",
]
