"""Custom operators that update what they also read by another argument.

AOTAutograd gives such an operator copies of what it updates, and what it only reads as it was:
the two no longer share memory, as they do in eager.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._pytree import tree_leaves

from fusec.graph.refusals.shapes import traced_value

_TORCHS = frozenset(("aten", "prims", "prim"))


def updates_what_it_reads(node: fx.Node) -> bool:
    """Whether a call of a custom operator reads memory that it updates, by another argument."""
    schema = _schema(node.target)
    if schema is None or not schema.is_mutable:
        return False
    written, read = set[int](), set[int]()
    for position, argument in enumerate(schema.arguments):
        given: Any = node.kwargs.get(argument.name)
        if position < len(node.args):
            given = node.args[position]
        info = argument.alias_info
        (written if info is not None and info.is_write else read).update(_storages(given))
    return bool(written & read)


def _schema(target: object) -> Any:
    if isinstance(target, torch._ops.OpOverloadPacket):
        names = target.overloads()
        target = getattr(target, names[0]) if len(names) == 1 else None
    if not isinstance(target, torch._ops.OpOverload) or target.namespace in _TORCHS:
        return None
    return target._schema


def _storages(given: object) -> set[int]:
    values = map(traced_value, tree_leaves(given))
    return {
        value.untyped_storage()._cdata
        for value in values
        if isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not is_functorch_wrapped_tensor(value)
    }


__all__ = ["updates_what_it_reads"]
