"""Writes whose sizes do not fit, or that would reach one element twice: eager refuses them.

Of ``x.slice_scatter(y, 1, 4, 10)`` a functional graph keeps a copy into a slice, and a copy
broadcasts.  Indices that are tensors of more than one dimension, or a value that does not fit what
is indexed, are not looked at either.  Sizes are compared as TorchDynamo compares them: of symbols
that is a guard, for other sizes are another graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true
from torch.utils._pytree import tree_leaves, tree_map

Shape = tuple[Any, ...]


def refused_write(node: fx.Node) -> str:
    """Return why eager refuses a call of a captured graph for its sizes, or an empty string."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    args, kwargs = tree_map(_value, (node.args, node.kwargs))
    try:
        written = [each for each in _written(node, name, args, kwargs) if _is_strided(each)]
        if any(map(_overlaps, written)):
            return f"{node.name} writes to elements that share memory"
        if any(_partly(each, other) for each in written for other in tree_leaves((args, kwargs))):
            return f"{node.name} reads elements that it writes to, at other indices"
        fits = _FITS.get(name.removesuffix("_"))
        if fits is not None and not fits(*args, **kwargs):
            return f"{node.name} is of sizes that do not fit"
    except (TypeError, IndexError, RuntimeError, ValueError, AttributeError):
        return f"{node.name} is of sizes that do not fit" if name in _FITS else ""
    return ""


def _written(node: fx.Node, name: str, args: Shape, kwargs: dict[str, Any]) -> Iterator[Any]:
    """Yield what a call writes to: in place, or into ``out=``."""
    in_place = name.endswith("_") and not name.endswith("__")
    if args and (in_place or node.target in _OPERATORS) and name not in _HARMLESS:
        yield args[0]
    out = kwargs.get("out")
    yield from out if isinstance(out, (tuple, list)) else (out,)


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether a tensor has one element at several indices.

    What is expanded has; what ``unfold`` or ``as_strided`` makes may have: a step no longer than
    what the smaller steps reach together lands on an element that they reach as well, or may.
    """
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    dims = [(stride, size) for size, stride in sizes if not guard_or_true(size == 1)]
    if any(guard_or_true(size == 0) for _, size in dims):
        return False
    reached = 0
    # Strides that are symbols are those of dimensions outside of others, in order.
    known = [(stride, size) for stride, size in dims if isinstance(stride, int)]
    for stride, size in sorted(known, key=lambda dim: dim[0]):
        if not guard_or_true(stride > reached):
            return True
        reached += (size - 1) * stride
    return False


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


def _same(ours: Shape, theirs: Shape) -> bool:
    return len(ours) == len(theirs) and all(
        guard_or_true(a == b) for a, b in zip(ours, theirs, strict=True)
    )


def _broadcasts_to(value: Shape, shape: Shape) -> bool:
    """Whether a value of one shape fills another."""
    ends = zip(reversed(value), reversed(shape), strict=False)
    return len(value) <= len(shape) and all(
        guard_or_true(a == b) or guard_or_true(a == 1) for a, b in ends
    )


def _slice_scatter(
    input: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> bool:
    return _same(torch.ops.aten.slice(input, dim, start, end, step).shape, src.shape)


def _select_scatter(input: Any, src: Any, dim: int, index: Any) -> bool:
    return _same(torch.select(input, dim, index).shape, src.shape)


def _diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> bool:
    return _same(torch.diagonal(input, offset, dim1, dim2).shape, src.shape)


def _index_add(input: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> bool:
    """Whether no dimension but the one that is indexed would be broadcast."""
    if not input.ndim or not source.ndim:
        return True
    dim %= input.ndim
    rest = [each.shape[:dim] + each.shape[dim + 1 :] for each in (input, source)]
    return input.ndim == source.ndim and _same(*rest)


def _index_select(input: Any, dim: int, index: Any) -> bool:
    return bool(index.ndim <= 1)


def _index_put(input: Any, indices: Any, values: Any, accumulate: bool = False) -> bool:
    """Whether the values fit; masks, whose results have sizes that nobody knows, are left out."""
    kinds = [each.dtype for each in indices if each is not None]
    if any(kind in (torch.bool, torch.uint8) for kind in kinds):
        return True
    return _broadcasts_to(values.shape, torch.ops.aten.index(input, list(indices)).shape)


def _setitem(input: Any, index: Any, value: Any) -> bool:
    """As ``_index_put``; a value's own leading dimensions of 1 count for none."""
    indices = index if isinstance(index, tuple) else (index,)
    tensors = [each for each in indices if isinstance(each, torch.Tensor)]
    if not tensors or any(each.dtype in (torch.bool, torch.uint8) for each in tensors):
        return True  # views, whose copies tracing checks
    if not isinstance(value, torch.Tensor):
        return True
    shape = value.shape
    while shape and isinstance(shape[0], int) and shape[0] == 1:
        shape = shape[1:]
    return _broadcasts_to(shape, input[index].shape)


_FITS: dict[str, Callable[..., bool]] = {
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "diagonal_scatter": _diagonal_scatter,
    "index_add": _index_add,
    "index_select": _index_select,
    "index_put": _index_put,
    "setitem": _setitem,
}
_OPERATORS = frozenset(
    getattr(operator, f"i{name}")
    for name in "add and floordiv lshift mod mul or pow rshift sub truediv xor".split()
)
# In place by their names, and no writes to elements.
_HARMLESS = frozenset(("requires_grad_", "detach_", "set_", "resize_", "retain_grad_"))


def _value(arg: Any) -> Any:
    return arg.meta.get("example_value") if isinstance(arg, fx.Node) else arg


__all__ = ["refused_write"]
