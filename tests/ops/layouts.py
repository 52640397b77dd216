"""How results lie and whether gradients go through them: compared as words, beside their values."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves


def layouts(results: Any) -> list[str]:
    """Return, for each tensor of a structure, its strides and whether it has a gradient."""
    tensors = [each for each in tree_leaves(results) if isinstance(each, torch.Tensor)]
    return [_layout(each) for each in tensors]


def _layout(tensor: torch.Tensor) -> str:
    lies = f"strides {tensor.stride()}" if tensor.layout == torch.strided else str(tensor.layout)
    return f"{lies}{', with a gradient' if tensor.requires_grad else ''}"


__all__ = ["layouts"]
