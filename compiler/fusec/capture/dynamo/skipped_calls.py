"""Calls that TorchDynamo leaves to eager for what is around them, and them alone.

It answers a frame within a mode that sees all operators, or within a transform of ``torch.func``'s,
by leaving its code alone for good, long after they have gone: with a count of floating-point
operations around one call no later call would be compiled. Of what is compiled already some would
still run; a checkpoint, which calls a function twice, then has other tensors the second time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

_TRANSFORMS = (
    torch._C._functorch.TransformType.Vmap,
    torch._C._functorch.TransformType.Grad,
    torch._C._functorch.TransformType.Jvp,
)


def is_within_transform() -> bool:
    """Whether a call stands in a transform within which TorchDynamo compiles nothing."""
    innermost = torch._C._functorch.peek_interpreter_stack()
    return innermost is not None and innermost.key() in _TRANSFORMS


def this_time(answer: Any) -> Any:
    """Return TorchDynamo's answer to a frame, for this call alone if only this call is skipped.

    Args:
        answer: TorchDynamo's own.
    """
    if getattr(answer, "guarded_code", None) is not None:
        return answer
    if is_in_torch_dispatch_mode(include_infra_modes=False) or torch._dynamo.config.disable:
        return replace(answer, apply_to_code=False)
    return answer


__all__ = ["is_within_transform", "this_time"]
