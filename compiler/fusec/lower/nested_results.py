"""Operators whose results have lists in them, as custom ones may: ``(list of tensors, int)``.

An extern call's results are names in a row, so what is called gives them in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._pytree import tree_leaves

from fusec.lower.calls import label_of


class NestedResults:
    """Calls an operator; returns a tuple without lists in it, or the only result.

    Args:
        target: The operator.
    """

    def __init__(self, target: Callable[..., Any]) -> None:
        self.target = target
        self.name = label_of(target)

    def __repr__(self) -> str:
        return str(self.target)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return its results in a row."""
        found = tree_leaves(self.target(*args, **kwargs))
        return found[0] if len(found) == 1 else tuple(found)


__all__ = ["NestedResults"]
