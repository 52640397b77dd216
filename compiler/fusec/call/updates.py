"""Inputs that a graph updates: what it computed is copied into them when it has run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.autograd.graph import increment_version

# From this many of one kind on, one operator for all takes less time than one for each.
SEVERAL = 3


def note_updates(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor | None]) -> None:
    """Copy new values into what is updated; autograd learns of what a kernel has updated already.

    Args:
        targets: What is updated.
        values: Its new values, as many or more; None for what has them.
    """
    changed: list[torch.Tensor] = []
    left: list[tuple[torch.Tensor, torch.Tensor]] = []
    for target, value in zip(targets, values, strict=False):
        if value is None:
            changed.append(target)
        else:
            left.append((target, value))
    if changed:
        increment_version(changed)
    if left:
        copy_all(left)


def copy_all(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy tensors into others: many of a type and device by one operator.

    Autograd learns of one that is its own new value, which a kernel has written where it lies: what
    was saved for a gradient before may no longer be used.

    A network in training updates two or three numbers, or small vectors, for each of its batch
    norms; 141 copies of a MobileNetV3 take the host a millisecond.

    Args:
        pairs: What is updated, and its new value, of the same shape and type.
    """
    groups: dict[tuple[torch.dtype, torch.device], tuple[list[torch.Tensor], ...]] = {}
    for target, value in pairs:
        if target is value:
            increment_version(target)
            continue
        if value.numel() and not value.untyped_storage().nbytes():
            # The graph has freed what it updated before, as sharded weights are behind their use.
            target.untyped_storage().resize_(0)
            continue
        targets, values = groups.setdefault((target.dtype, target.device), ([], []))
        targets.append(target)
        values.append(value)
    for targets, values in groups.values():
        if len(targets) >= SEVERAL:
            torch._foreach_copy_(targets, values)
        else:
            for target, value in zip(targets, values, strict=True):
                target.copy_(value)


__all__ = ["copy_all", "note_updates"]
