"""What is known of a call before it is lowered: its name, what it writes, what is read of it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

import torch
from torch import fx
from torch.nn import functional

from fusec.lower.values import GraphNotLowered, TensorValue


def read_results(node: fx.Node) -> frozenset[int] | None:
    """Return which results of a call somebody reads; None where it is read as a whole."""
    found = set()
    for user in node.users:
        position = user.args[1] if user.target is operator.getitem else None
        if not isinstance(position, int) or not user.users:
            if user.target is operator.getitem and not user.users:
                continue
            return None
        found.add(position)
    return frozenset(found)


# What torch says before an operator's name of how it runs it, and behind it of what it is given.
_BEFORE = re.compile("^(?:_|native_|foreach_|fused_|unsafe_|linalg_)+(?=[a-z])")
_BEHIND = re.compile(
    "(?:_legit.*|_with_noise(?:_functional)?|_functional|_data|_pointwise|_no_update|_ex|_)$"
)
_LONG = ("multi_head_attention_forward", "scaled_dot_product_attention")  # kernels are parts of it
# What a decomposition does for memory's sake says nothing of what was asked for.
_MOVES = frozenset("clone to copy alias expand view permute unsqueeze squeeze".split())


def label_of(target: object) -> str:
    """Return how rules call what is called: as people do, not as the operators behind it."""
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name.split("::")[-1].strip("_")
        name = name.removeprefix("native_").replace("_with_indices", "")
        return "to" if name == "to_copy" else name
    return getattr(target, "__name__", str(target))


def asked_of(node: fx.Node) -> str:
    """Return how people call what a node is a part of: ``roll`` for each operator it is made of.

    Torch notes at what its decompositions yield which operator they took apart, and TorchDynamo
    which function of ``torch.nn.functional`` was called.
    """
    own = label_of(node.target)
    original = node.meta.get("original_aten")
    if own in _MOVES:
        return own
    if not isinstance(original, torch._ops.OpOverload):
        return _functional(node, "source_fn_stack") or own
    name = _BEHIND.sub("", _BEFORE.sub("", label_of(original)))
    gradient = "_backward" if name.endswith("_backward") else ""
    called = _functional(node, "fwd_source_fn_stack" if gradient else "source_fn_stack")
    return called + gradient if called else name or own


def _functional(node: fx.Node, key: str) -> str:
    """Return which function of ``torch.nn.functional`` a node was traced from; empty for none."""
    stack = node.meta.get(key)
    called = stack[-1][1] if stack else None
    name = called if isinstance(called, str) else getattr(called, "__name__", "")
    name = name.lower() if isinstance(called, type) else name.strip("_")
    known = name in vars(functional) and name not in _LONG
    return str(name) if known else ""


# Its schema does not say that what its first argument holds is gone, or has yet to come.
_RESIZE = "inductor::resize_storage_bytes_"


def mutated(
    target: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[str, ...]:
    """Return the buffers that an operator writes to, from its schema."""
    if not isinstance(target, torch._ops.OpOverload):
        return ()
    names: list[str] = []
    schema = target._schema.arguments
    for position, argument in enumerate(schema):
        given = args[position] if position < len(args) else kwargs.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        if writes or (position == 0 and target.name() == _RESIZE):
            for value in given if isinstance(given, (list, tuple)) else (given,):
                if isinstance(value, TensorValue):
                    if value.ref is None:
                        raise GraphNotLowered(f"{target} writes to a computed value")
                    names.append(value.ref.buffer)
    return tuple(dict.fromkeys(names))


__all__ = ["asked_of", "label_of", "mutated", "read_results"]
