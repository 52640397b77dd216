"""Sums that are rounded otherwise: which elements hang on how a sum is rounded.

A mean of equal numbers is that number, or the one beside it: what compares the two says either. Nor
does a change of the inputs tell, for the mean changes with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
# What adds up, in whatever order.
SUMS = frozenset(
    getattr(aten, name)
    for name in (
        *("sum", "mean", "nansum", "prod", "cumsum", "cumprod", "var", "var_mean", "std"),
        *("std_mean", "linalg_vector_norm", "norm", "logsumexp", "logcumsumexp"),
        *("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "convolution"),
        *("_softmax", "_log_softmax", "_adaptive_avg_pool2d", "avg_pool2d"),
        *("index_add", "scatter_add", "_unsafe_index_put"),
    )
)
# What has a sum within that its result does not show: it is taken apart.
NORMS = frozenset(
    (
        aten.native_layer_norm.default,
        aten.native_group_norm.default,
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.no_stats,
        aten._fused_rms_norm.default,
    )
)


class Rounded(TorchDispatchMode):
    """Changes each sum by a part of itself, up or down by chance.

    Args:
        part: By how much; the negative changes each the other way.
        seed: By which chance.
    """

    def __init__(self, part: float, seed: int = 1) -> None:
        super().__init__()
        self.part = part
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        rule = decomposition_table.get(func) if func in NORMS else None
        if rule is not None:
            with self:
                return rule(*args, **(kwargs or {}))
        made = func(*args, **(kwargs or {}))
        if getattr(func, "overloadpacket", None) in SUMS:
            for each in tree_leaves(made):
                if isinstance(each, torch.Tensor) and each.is_floating_point():
                    ways = torch.randint(0, 2, each.shape, generator=self.generator) * 2 - 1
                    each.mul_(1 + self.part * ways.to(each))
        return made
