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

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import fx
from torch._dynamo import exc, symbolic_convert
from torch._functorch._aot_autograd import graph_compile

# Its switch, an environment variable, is read once a process.
_PASS = "tensorify_python_scalars"
_ASKS = "_fusec_asks"
_left_out: ContextVar[bool] = ContextVar("fusec_numbers_left_out", default=False)
_lock = threading.Lock()
_METHODS = frozenset({"item", "tolist"})  # not `float`, which as a method makes a tensor
_FUNCTIONS = _METHODS | {"_local_scalar_dense.default", "_local_scalar_dense", "float"}
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


def _reads_number(node: fx.Node) -> bool:
    """Whether a node makes a Python number of a tensor, as TorchDynamo does of one given."""
    if isinstance(node.meta.get("example_value"), torch.SymFloat):
        return True
    if node.op == "call_method":
        return node.target in _METHODS
    return node.op.startswith("call") and getattr(node.target, "__name__", "") in _FUNCTIONS


@contextmanager
def looking_for_numbers(module: fx.GraphModule) -> Iterator[None]:
    """Have AOTAutograd look for Python numbers only if a captured graph is given any."""
    if any(_reads_number(node) for node in module.graph.nodes):
        yield
        return
    _install()
    token = _left_out.set(True)
    try:
        yield
    finally:
        _left_out.reset(token)


def _install() -> None:
    """Have AOTAutograd's pass ask, from now on, whether it is left out where it is called.

    Another compiler may be at work in another thread: what it runs must stay what it was.
    """
    with _lock:
        original = getattr(graph_compile, _PASS, None)  # None: this torch looks for them elsewhere
        if original is None or hasattr(original, _ASKS):
            return

        @functools.wraps(original)
        def look(*given: Any, **named: Any) -> Any:
            return None if _left_out.get() else original(*given, **named)

        setattr(look, _ASKS, True)
        setattr(graph_compile, _PASS, look)


__all__ = ["LOSES_UPDATES", "Restart", "forget_numbers", "looking_for_numbers", "loses_updates"]
