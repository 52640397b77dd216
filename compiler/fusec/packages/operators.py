"""The operators that packages may call: ATen's, and oneDNN's products, which torch brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusec.packages.runtime.errors import CannotRun

NAMESPACES = ("aten", "mkldnn")


def find_operator(name: str) -> Callable[..., Any]:
    """Return ``aten.mm.default``; nothing but an operator of these namespaces is looked up.

    Raises:
        CannotRun: There is none of that name.
    """
    parts = name.split(".")
    good = len(parts) == 3 and parts[0] in NAMESPACES and all(part.isidentifier() for part in parts)
    if not good:
        raise CannotRun(f"{name[:60]} is not an operator of ATen")
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    found = getattr(packet, parts[2], None)
    if not isinstance(found, torch._ops.OpOverload):
        raise CannotRun(
            f"this torch has no operator {name}", "package it with the torch that runs it"
        )
    return found


__all__ = ["NAMESPACES", "find_operator"]
