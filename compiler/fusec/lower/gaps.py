"""Results that lie in memory with gaps, as ``torch.empty_strided`` of a view leaves them.

Kernels fill memory without gaps; what is handed out is copied to where it belongs.
"""

from __future__ import annotations

import torch

from fusec.ir.program import TensorRef
from fusec.lower.values import ResultMeta


def lies_as(ref: TensorRef, meta: ResultMeta) -> bool:
    """Whether elements lie as far from each other as eager has them."""
    pairs = list(zip(ref.shape, ref.strides, meta.strides, strict=True))
    if any(size.constant == 0 for size, _, _ in pairs):
        return True
    return all(size.constant == 1 or ours == theirs for size, ours, theirs in pairs)


def laid_out(
    tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    """Return a copy with other strides, which may leave gaps.

    Args:
        tensor: What to copy.
        shape: Its sizes.
        strides: In elements; where one is 0, all elements are the same.
    """
    copy = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    target = copy
    for dim, stride in enumerate(strides):
        if stride == 0 and shape[dim] > 1:
            target, tensor = target.narrow(dim, 0, 1), tensor.narrow(dim, 0, 1)
    target.copy_(tensor)
    return copy


__all__ = ["laid_out", "lies_as"]
