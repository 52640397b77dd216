"""A new plan runs once beside the host program: does it do the same?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from fusec.device.steps import PythonCall, SizedProgram

# How far two runs may be apart, as a share of the largest value: sums whose order varies from run
# to run are that far apart at most, while what was read or written elsewhere is further.
_SHARE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def may_repeat(steps: SizedProgram, changed: Collection[str]) -> bool:
    """Whether a program may run twice on the same inputs: it changes none, and draws no numbers.

    Args:
        steps: What it does.
        changed: The inputs that its kernels write.
    """
    if changed:
        return False
    calls = [step for step in steps.steps if isinstance(step, PythonCall)]
    return not any(step.random or step.mutates for step in calls)


def agree(expected: Sequence[Any], actual: Sequence[Any]) -> bool:
    """Whether two runs on the same inputs returned the same, but for the order of sums."""
    if len(expected) != len(actual):
        return False
    for a, b in zip(expected, actual, strict=True):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if type(a) is not type(b) or a != b:
                return False
        elif not _is_same(a, b):
            return False
    return True


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if (a.shape, a.dtype, a.stride()) != (b.shape, b.dtype, b.stride()):
        return False
    if torch.equal(a, b):
        return True
    if not a.is_floating_point():
        return False
    finite = torch.where(a.isfinite(), a, 0).abs().amax().item()
    share = _SHARE.get(a.dtype, 0.1)
    return torch.allclose(a, b, rtol=share, atol=share * finite, equal_nan=True)


__all__ = ["agree", "may_repeat"]
