"""Copies of tensors that lie in memory as the tensors do.

A compiled graph knows the strides of its inputs; ``clone`` gives a tensor with gaps others.
"""

from __future__ import annotations

import torch


def empty_like_strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized tensor of the same shape, strides, dtype and device."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def clone_strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, gaps and overlaps included."""
    copy = empty_like_strided(tensor)
    write_strided(copy, tensor.detach())
    return copy


def write_strided(target: torch.Tensor, values: torch.Tensor) -> None:
    """Write ``values``; where elements of an expanded target share memory, one of them wins."""
    for dim, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[dim] > 1:
            target = target.narrow(dim, 0, 1)
            values = values.narrow(dim, 0, 1)
    target.copy_(values)


__all__ = ["clone_strided", "empty_like_strided", "write_strided"]
