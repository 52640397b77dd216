"""Writes whose sizes do not fit, or that would reach one element twice: eager refuses them.

Of ``x.slice_scatter(y, 1, 4, 10)`` a functional graph keeps a copy into a slice, and a copy
broadcasts.  Indices that are tensors of more than one dimension, or a value that does not fit what
is indexed, are not looked at either.  Sizes are compared as TorchDynamo compares them: of symbols
that is a guard, for other sizes are another graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true
from torch.utils._pytree import tree_leaves

Shape = tuple[Any, ...]
_MASKS = frozenset({torch.bool, torch.uint8})
# What makes a view of a tensor where it is an index.
_BASIC = (int, torch.SymInt, slice, type(Ellipsis))


def refused_write(node: fx.Node) -> str:
    """Return why eager refuses a call of a captured graph for its sizes, or an empty string."""
    name = name_of(node.target)
    updates = writes_in_place(node.target) or node.target is operator.setitem
    fits = _FITS.get(name, _FITS.get(name.removesuffix("_"))) if is_torchs(node.target) else None
    args, kwargs = traced_values((node.args, node.kwargs))
    written = list(filter(_is_strided, (*args[:updates], *_out(kwargs))))
    if any(map(may_share_elements, written)):
        return f"{node.name} writes to elements that share memory"
    read = tree_leaves((args, kwargs)) if node.target is not operator.setitem else ()
    if node.target is operator.setitem and _is_strided(args[0]):
        written, read = _part(*args[:2]), args[2:]
    if any(_partly(each, other) for each in written for other in read):
        return f"{node.name} reads elements that it writes to, at other indices"
    if any(map(_is_of_a_batch, tree_leaves(args))):
        return ""  # its sizes are those of one part
    if updates_pointwise(node.target):
        fits = _fills
    elif updates_each(node.target):
        fits = _fills_each
    try:
        fitting = fits is None or fits(*args, **without_out(kwargs))
    except (IndexError, RuntimeError, ValueError):
        fitting = False
    return "" if fitting else f"{node.name} is of sizes that do not fit"


def writes_in_place(target: object) -> bool:
    """Whether a call updates its first operand, by its name."""
    name = name_of(target)
    named = name.endswith("_") and not name.endswith("__") and name not in _HARMLESS
    return named or target in _DUNDERS or target in _OPERATORS


def updates_pointwise(target: object) -> bool:
    """Whether a call computes element by element, into its first operand."""
    name = name_of(target)
    spelled = target in _DUNDERS or target in _OPERATORS
    return spelled or (name.endswith("_") and name[:-1] in _POINTWISE)


def updates_each(target: object) -> bool:
    """Whether a call computes element by element, into each tensor of its first list."""
    name = name_of(target)
    return name.startswith("_foreach_") and name.endswith("_")


def name_of(target: object) -> str:
    """Return what a call is called, whichever of an operator's overloads it names."""
    return target if isinstance(target, str) else getattr(target, "__name__", "").partition(".")[0]


def is_torchs(target: object) -> bool:
    """Whether a call is of torch's own; a custom operator may be called as one of them is."""
    target = getattr(target, "overloadpacket", target)
    if not isinstance(target, torch._ops.OpOverloadPacket):
        return True
    return target._qualified_op_name.startswith("aten::")


def without_out(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name, less where it writes its result."""
    return {name: value for name, value in kwargs.items() if name != "out"}


def _out(kwargs: dict[str, Any]) -> tuple[Any, ...]:
    out = kwargs.get("out")
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def _is_of_a_batch(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_functorch_wrapped_tensor(value)


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def known_sizes(values: Iterable[int | torch.SymInt]) -> list[Any]:
    """Return numbers; of symbolic ones what they are in the first call, which guards nothing."""
    return [n if isinstance(n, int) else n.node.hint for n in values]


def may_share_elements(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor may be one: of an expanded one, or of windows."""
    sizes, steps = known_sizes(tensor.shape), known_sizes(tensor.stride())
    if None in (*sizes, *steps) or 0 in sizes:
        return False
    reach = 0
    for step, size in sorted((t, n) for t, n in zip(steps, sizes, strict=True) if n > 1):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def _part(target: Any, index: Any) -> list[Any]:
    """Return the view that an assignment to a part of a tensor writes to, if it is one."""
    indices = index if isinstance(index, tuple) else (index,)
    if not all(each is None or isinstance(each, _BASIC) for each in indices):
        return []  # by indices that are tensors, or lists
    try:
        return [_indexed_by(target, index)]
    except (IndexError, RuntimeError, ValueError):
        return []


def _indexed_by(target: Any, index: Any) -> Any:
    """Return the view that an index names, in which a symbolic number stays one."""
    indices = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(each, torch.SymInt) for each in indices) or any(
        isinstance(each, bool) for each in indices
    ):
        return target[index]  # which would fix such a number to what it is now
    place = 0
    for position, each in enumerate(indices):
        if each is Ellipsis:
            place = target.ndim - sum(map(_dimensions, indices[position + 1 :]))
        elif each is None:
            target = target.unsqueeze(place)
            place += 1
        elif isinstance(each, slice):
            target = target[(slice(None),) * place + (each,)]
            place += 1
        else:
            target = torch.select(target, place, each)
    return target


def _partly(written: torch.Tensor, other: Any) -> bool:
    """Whether two dense tensors share some elements, at other indices: eager refuses to write.

    As ``at::get_overlap_status`` has it, which says nothing of tensors with gaps.
    """
    if not _is_strided(other) or other is written:
        return False
    if written.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    if not (_is_dense(written) and _is_dense(other)):
        return False
    ends = []
    for each in (written, other):
        first = each.storage_offset() * each.element_size()
        ends.append((first, first + each.numel() * each.element_size()))
    (start, end), (other_start, other_end) = ends
    alike = (start, end, *written.stride()), (other_start, other_end, *other.stride())
    if len(alike[0]) == len(alike[1]) and all(
        guard_or_false(a == b) for a, b in zip(*alike, strict=True)
    ):
        return False
    return guard_or_false(start < other_end) and guard_or_false(other_start < end)


def _is_dense(tensor: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def same_shape(ours: Shape, theirs: Shape) -> bool:
    """Whether two shapes are equal; what nobody knows counts as equal."""
    return len(ours) == len(theirs) and all(
        guard_or_true(a == b) for a, b in zip(ours, theirs, strict=True)
    )


def _broadcasts_to(value: Shape, shape: Shape) -> bool:
    """Whether a value of one shape fills another."""
    ends = zip(reversed(value), reversed(shape), strict=False)
    return len(value) <= len(shape) and all(
        guard_or_true(a == b) or guard_or_true(a == 1) for a, b in ends
    )


def _fills(target: Any, *rest: Any, **more: Any) -> bool:
    """Whether what is computed in place has the size of its place: tracing gives it another."""
    others = [each for each in tree_leaves((rest, more)) if isinstance(each, torch.Tensor)]
    if not isinstance(target, torch.Tensor):
        return True
    return all(_broadcasts_to(other.shape, target.shape) for other in others)


def _fills_each(targets: Any, *rest: Any, **more: Any) -> bool:
    lists = [each for each in (*rest, *more.values()) if isinstance(each, (list, tuple))]
    return all(_fills(target, *others) for target, *others in zip(targets, *lists, strict=True))


def _masked_scatter(input: Any, mask: Any, source: Any) -> bool:
    return _broadcasts_to(mask.shape, input.shape)


def _addr(input: Any, vec1: Any, vec2: Any, **more: Any) -> bool:
    return same_shape(input.shape, (*vec1.shape, *vec2.shape))


def _slice_scatter(
    input: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> bool:
    return same_shape(torch.ops.aten.slice(input, dim, start, end, step).shape, src.shape)


def _select_scatter(input: Any, src: Any, dim: int, index: Any) -> bool:
    size = input.shape[dim]  # torch 2.11 selects whatever it is told to where that is symbolic
    if not (guard_or_true(-size <= index) and guard_or_true(index < size)):
        return False
    return same_shape(torch.select(input, dim, index).shape, src.shape)


def _diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> bool:
    return same_shape(torch.diagonal(input, offset, dim1, dim2).shape, src.shape)


def _indexed(input: Any, dim: int, index: Any, source: Any, *more: Any, **named: Any) -> bool:
    """Whether a source fits what an index names; up to torch 2.11 tracing does not ask."""
    if index.ndim > 1 or input.ndim != source.ndim:
        return False
    if not input.ndim:
        return guard_or_true(index.numel() == 1)
    dim %= input.ndim
    rest = [each.shape[:dim] + each.shape[dim + 1 :] for each in (input, source)]
    return same_shape(*rest) and guard_or_true(index.numel() == source.shape[dim])


def _put(input: Any, index: Any, source: Any, *rest: Any, **more: Any) -> bool:
    some = guard_or_true(input.numel() != 0) or guard_or_false(index.numel() == 0)
    return some and guard_or_true(index.numel() == source.numel())


def _index_of(input: Any, dim: int, index: Any, value: Any = None) -> bool:
    return bool(index.ndim <= 1)


def _index_select(input: Any, dim: int, index: Any) -> bool:
    return _index_of(input, dim, index) and (input.ndim > 0 or guard_or_true(index.numel() == 1))


def _index_put(input: Any, indices: Any, values: Any, accumulate: Any = None) -> bool:
    """Whether the values fit; of masks, whose results have sizes nobody knows, the masks alone."""
    masks, place = False, 0
    for each in indices:
        is_mask = each is not None and each.dtype in _MASKS
        dims = each.ndim if is_mask else 1
        if is_mask and not same_shape(each.shape, input.shape[place : place + dims]):
            return False
        masks, place = masks or is_mask, place + dims
    if masks:
        return True
    return _broadcasts_to(values.shape, torch.ops.aten.index(input, list(indices)).shape)


def _setitem(input: Any, index: Any, value: Any) -> bool:
    """As ``_index_put``; a value's own leading dimensions of 1 count for none."""
    indices = index if isinstance(index, tuple) else (index,)
    tensors = [each for each in indices if isinstance(each, torch.Tensor)]
    if not tensors:
        return True  # views, whose copies tracing checks
    if any(each.dtype in _MASKS for each in tensors):
        return _masks_fit(input, indices)
    if not isinstance(value, torch.Tensor):
        return True
    shape = value.shape
    while shape and isinstance(shape[0], int) and shape[0] == 1:
        shape = shape[1:]
    return _broadcasts_to(shape, input[index].shape)


def _masks_fit(input: Any, indices: tuple[Any, ...]) -> bool:
    """Whether each mask has the sizes of the dimensions that it stands for."""
    place = 0
    for position, each in enumerate(indices):
        if each is Ellipsis:
            place = input.ndim - sum(map(_dimensions, indices[position + 1 :]))
            continue
        end = place + _dimensions(each)
        is_mask = isinstance(each, torch.Tensor) and each.dtype in _MASKS
        if is_mask and not same_shape(each.shape, input.shape[place:end]):
            return False
        place = end
    return True


def _dimensions(index: Any) -> int:
    """Return how many dimensions of a tensor an index stands for."""
    if index is None or isinstance(index, bool):
        return 0
    is_mask = isinstance(index, torch.Tensor) and index.dtype in _MASKS
    return index.ndim if is_mask else 1


_FITS: dict[str, Callable[..., bool]] = {
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "diagonal_scatter": _diagonal_scatter,
    "index_add": _indexed,
    "index_copy": _indexed,
    "index_reduce": _indexed,
    "index_select": _index_select,
    "index_fill": _index_of,
    "index_put": _index_put,
    "put": _put,
    "setitem": _setitem,
    "masked_scatter_": _masked_scatter,
    "addr_": _addr,
}
_POINTWISE = frozenset(
    "add sub subtract mul multiply div divide true_divide pow float_power remainder fmod "
    "floor_divide atan2 arctan2 copysign hypot nextafter ldexp xlogy gcd lcm heaviside igamma "
    "igammac bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift "
    "logical_and logical_or logical_xor eq ne lt le gt ge less less_equal greater greater_equal "
    "not_equal addcmul addcdiv lerp clamp clip clamp_min clamp_max masked_fill copy "
    "bernoulli".split()
)
_UPDATES = "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()
_OPERATORS = frozenset(getattr(operator, f"i{name}") for name in _UPDATES)
_DUNDERS = frozenset(f"__i{name}__" for name in _UPDATES)
# In place by their names, and no writes to elements.
_HARMLESS = frozenset(
    "requires_grad_ retain_grad_ detach_ squeeze_ unsqueeze_ t_ transpose_ swapaxes_ swapdims_ "
    "as_strided_ resize_ resize_as_ set_ rename_ share_memory_".split()
)


def traced_value(arg: Any) -> Any:
    """Return what tracing made of an argument: a fake tensor, or a plain value as it stands."""
    return arg.meta.get("example_value") if isinstance(arg, fx.Node) else arg


def traced_values(args: Any) -> Any:
    """Return arguments as tracing made them, those within slices too (``x[:n] = y``)."""
    return fx.node.map_aggregate(args, traced_value)


__all__ = [
    "_POINTWISE",
    "is_torchs",
    "known_sizes",
    "may_share_elements",
    "name_of",
    "refused_write",
    "same_shape",
    "traced_value",
    "traced_values",
    "updates_each",
    "updates_pointwise",
    "without_out",
    "writes_in_place",
]
