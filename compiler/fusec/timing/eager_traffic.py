"""The bytes that eager moves: every operator of ATen reads its inputs and writes its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Operators whose first tensor is a table; what else they are given is read whole.
LOOKUPS = frozenset(
    "embedding _embedding_bag _embedding_bag_forward_only gather index index_select "
    "nll_loss_forward nll_loss2d_forward searchsorted take _unsafe_index".split()
)


class EagerTraffic(TorchDispatchMode):
    """Counts the bytes that operators move while it is on; views move none.

    Of a table in which an operator looks things up (``LOOKUPS``) it reads no more than it yields.

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
        read = [_size(tensor) for tensor in given]
        if read and _name(func) in LOOKUPS:
            read[0] = min(read[0], most)
        self.bytes += most + sum(read)
        return result


def _name(func: Callable[..., Any]) -> str:
    """Return an operator's name without its overload: ``index_select``."""
    return str(getattr(func, "overloadpacket", func)).rpartition(".")[2]


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
