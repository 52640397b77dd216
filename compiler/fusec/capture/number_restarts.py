"""Updates of single float64 numbers, which TorchDynamo forgets when it captures a second time.

AOTAutograd asks TorchDynamo to start again where it could not make tensors of the Python numbers
that a graph is given (``TensorifyScalarRestartAnalysis``), and counts every float64 tensor of no
dimensions on the CPU among these.  The second time TorchDynamo drops whatever yields such a tensor
and has no reader: ``x.mul_(0.9)`` as well, so that the update never happens.  The names of such
numbers are kept until a capture fails, and those of the next function are the same.

So a graph that is given no Python number is compiled without looking for them, one that would lose
an update runs in eager instead of being captured again, and names are forgotten with each graph.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import fx
from torch._dynamo import exc, symbolic_convert

_SWITCH = "TENSORIFY_PYTHON_SCALARS"
LOSES_UPDATES = "torch would capture it again without its updates of single float64 numbers"


class _Never(Exception):
    """Stands for what a release of torch does not raise."""


Restart: type[BaseException] = getattr(exc, "TensorifyScalarRestartAnalysis", _Never)


def forget_numbers() -> None:
    """Let TorchDynamo take no number of the next function for one of this one."""
    state = getattr(symbolic_convert, "TensorifyState", None)
    if state is not None:
        state.clear()


def loses_updates(module: fx.GraphModule) -> bool:
    """Whether a captured graph has something that a second capture drops."""
    return any(
        node.op.startswith("call")
        and all(user.target == "item" for user in node.users)
        and _is_number(node.meta.get("example_value"))
        for node in module.graph.nodes
    )


def _is_number(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype == torch.float64
        and value.ndim == 0
        and value.device.type == "cpu"
    )


@contextmanager
def looking_for_numbers(module: fx.GraphModule) -> Iterator[None]:
    """Have AOTAutograd look for Python numbers only if a captured graph is given any."""
    values = (node.meta.get("example_value") for node in module.graph.nodes)
    if any(isinstance(value, torch.SymFloat) for value in values):
        yield
        return
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before


__all__ = ["LOSES_UPDATES", "Restart", "forget_numbers", "looking_for_numbers", "loses_updates"]
