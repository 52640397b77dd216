"""The bytes that eager moves: every operator of ATen reads its inputs and writes its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class EagerTraffic(TorchDispatchMode):
    """Counts the bytes that operators move while it is on; views move none.

    What an operator looks up in a table is at most as large as what it yields.

    Attributes:
        bytes: Read and written so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator and count what it moved."""
        result = func(*args, **(kwargs or {}))
        given = _tensors((args, kwargs or {}))
        made = _tensors(result)
        places = {_place(tensor) for tensor in given}
        fresh = [tensor for tensor in made if _place(tensor) not in places]
        schema = getattr(func, "_schema", None)
        changes = schema is not None and schema.is_mutable
        if not fresh and not changes:
            return result  # a view
        written = made if changes else fresh
        most = sum(_size(tensor) for tensor in written)
        looks_up = any(tensor.dtype in (torch.int64, torch.int32) for tensor in given)
        read = [_size(tensor) for tensor in given]
        self.bytes += most + sum(min(size, most) if looks_up else size for size in read)
        return result


def _tensors(tree: object) -> list[torch.Tensor]:
    found: dict[tuple[object, ...], torch.Tensor] = {}
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            found.setdefault((*_place(leaf), leaf.storage_offset(), leaf.shape), leaf)
    return list(found.values())


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    try:
        return (tensor.untyped_storage()._cdata,)
    except (NotImplementedError, RuntimeError):  # a tensor that has none
        return (id(tensor),)


def _size(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor lies in: what is expanded is there once."""
    count = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or not size else 1
    return count


__all__ = ["EagerTraffic"]
