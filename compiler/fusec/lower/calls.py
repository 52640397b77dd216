"""What is known of a call before it is lowered: its name, what it writes, what is read of it."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import fx

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


def label_of(target: object) -> str:
    """Return how steps call what is called: as people do, not as the operators behind it."""
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name.split("::")[-1].strip("_")
        name = name.removeprefix("native_").replace("_with_indices", "")
        return "to" if name == "to_copy" else name
    return getattr(target, "__name__", str(target))


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
        if argument.alias_info is not None and argument.alias_info.is_write:
            for value in given if isinstance(given, (list, tuple)) else (given,):
                if isinstance(value, TensorValue):
                    if value.ref is None:
                        raise GraphNotLowered(f"{target} writes to a computed value")
                    names.append(value.ref.buffer)
    return tuple(dict.fromkeys(names))


__all__ = ["label_of", "mutated", "read_results"]
