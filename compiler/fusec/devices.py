"""The devices of torch, as far as its own interface tells them apart: the one place that names one.

``cuda`` is what torch calls NVIDIA's and AMD's GPUs alike.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

CPU = "cpu"
GPU = "cuda"


def is_gpu(device: torch.device | str | torch.Tensor) -> bool:
    """Whether a device (or its type, or the one that a tensor is on) is a GPU."""
    if isinstance(device, torch.Tensor):
        device = device.device
    return (device if isinstance(device, str) else device.type) == GPU


def where_computed(devices: Iterable[torch.device | str | torch.Tensor]) -> str:
    """Return the type of the device that computes on all of these: numbers may lie on the CPU."""
    return GPU if any(map(is_gpu, devices)) else CPU


def has_float8(device: str) -> bool:
    """Whether a device converts from and to 8 bits; True where it is only stood in for."""
    if not is_gpu(device):
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 9)


__all__ = ["CPU", "GPU", "has_float8", "is_gpu", "where_computed"]
