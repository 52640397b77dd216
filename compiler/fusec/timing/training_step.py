"""A graph's call with the backward that belongs to it: what a step of training takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree


def with_backward(call: Callable[..., object], inputs: Sequence[Any]) -> Callable[[], object]:
    """Return a call that runs forward, then backward from every output that has a gradient.

    Args:
        call: Takes the inputs; records for autograd where that is on when it is called.
        inputs: Leaves that nobody else has: their ``grad`` is dropped before each call.
    """
    wanted = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
    given: list[torch.Tensor] = []  # gradients of the outputs: made once, not in what is timed

    def run() -> object:
        for tensor in wanted:
            tensor.grad = None
        results = pytree.tree_leaves(call(*inputs))
        outputs = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
        if outputs and not given:
            given.extend(torch.ones_like(t) for t in outputs)
        if outputs:
            torch.autograd.backward(outputs, given)
        return results

    return run
