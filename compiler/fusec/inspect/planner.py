"""Captures a call as far as its plan, and puts back what that changed."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from fusec.call.eager_graph import run_eagerly
from fusec.capture.backend import Backend
from fusec.memory.strided import clone_strided, write_strided
from fusec.options import Options
from fusec.verify.words import same_bits


@dataclass(frozen=True)
class Call:
    """The arguments of a call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class _Planned(BaseException):
    """All of a call has been captured; there is nothing to run."""


class Planner(Backend):
    """Takes each captured graph as far as its kernels' texts.

    Args:
        options: How to compile.
        function: What is called.
    """

    builds = False

    def __init__(self, options: Options, function: Callable[..., Any]) -> None:
        super().__init__(options)
        self._put_off: list[Callable[[], object]] = []
        self._outermost = _codes(function)
        self._function = function
        self._broken = False  # whether something of the call has run in Python
        self._to_the_end = False
        self.returned: Any = None  # by the latest call, where calls run to their end

    def put_off(self, make: Callable[[], object]) -> None:
        """Make a backward part after the forward parts, as it is when gradients are asked for."""
        self._put_off.append(make)

    def __call__(
        self, module: fx.GraphModule, example_inputs: Sequence[Any], **_: object
    ) -> Callable[..., Any]:
        """Take a captured graph as far as its kernels' texts; return what stands in for it."""
        super().__call__(module, example_inputs)
        reason = getattr(module, "compile_subgraph_reason", None)
        last = reason is not None and not reason.graph_break
        eager = run_eagerly(module)

        def stand_in(*inputs: Any) -> Any:
            if last and not self._to_the_end and not self._broken and self._is_all():
                raise _Planned
            self._broken = True
            return eager(*inputs)

        return stand_in

    def _is_all(self) -> bool:
        """Whether the frame that calls the graph is that of the function itself, compiled."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            for code in self._outermost:
                ours = (code.co_filename, code.co_firstlineno, code.co_name)
                found = frame.f_code
                if (found.co_filename, found.co_firstlineno, found.co_name) == ours:
                    return found is not code  # TorchDynamo runs a code of its own
            frame = frame.f_back
        return False

    def run(
        self, call: Callable[..., Any], calls: Iterable[Call], *, to_the_end: bool = False
    ) -> None:
        """Capture calls; torch is left as if there had been none.

        Args:
            call: Calls the function through TorchDynamo.
            calls: With what, one after the other.
            to_the_end: Whether what was captured runs, in eager, for what it returns.
        """
        self._to_the_end = to_the_end
        with _unremembered():
            for given in calls:
                self._capture(call, given)

    def _capture(self, call: Callable[..., Any], given: Call) -> None:
        tensors = _tensors(given, self._function)
        self._broken = False
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        # From the beginning: what TorchDynamo leaves alone runs as it stands, and nobody is told.
        with torch.random.fork_rng(devices), put_back(tensors), contextlib.suppress(_Planned):
            self.returned = call(*given.args, **given.kwargs)
        for make in reversed(self._put_off):
            make()
        self._put_off.clear()


def _codes(function: Callable[..., Any]) -> tuple[CodeType, ...]:
    found = [type(function).forward] if isinstance(function, nn.Module) else [function]
    if isinstance(function, nn.Module):
        found += [nn.Module._call_impl, nn.Module._wrapped_call_impl]
    plain = (getattr(each, "__func__", each) for each in found)
    return tuple(each.__code__ for each in plain if hasattr(each, "__code__"))


def _tensors(given: Call, function: Callable[..., Any]) -> list[torch.Tensor]:
    found: list[Any] = tree_leaves((given.args, dict(given.kwargs)))
    owner = getattr(function, "__self__", function)
    modules = [each for each in (*found, owner) if isinstance(each, nn.Module)]
    for module in modules:
        found += [*module.parameters(), *module.buffers()]
    return [each for each in found if isinstance(each, torch.Tensor)]


@contextlib.contextmanager
def put_back(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Put back, when done, what in-place updates have changed."""
    plain = [tensor for tensor in tensors if _is_plain(tensor)]
    saved = [(tensor, clone_strided(tensor.detach())) for tensor in plain]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in saved:  # versions do not tell: batch_norm leaves them alone
                if same_bits(tensor, value):
                    continue
                keeps: Any = torch.autograd
                with keeps._unsafe_preserve_version_counter(tensor):
                    write_strided(tensor.detach(), value)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is memory that can be copied and put back."""
    kind = type(tensor) in (torch.Tensor, nn.Parameter)
    bare = tensor.layout == torch.strided and not tensor.is_conj() and not tensor.is_neg()
    return kind and bare and tensor.device.type != "meta"


@contextlib.contextmanager
def _unremembered() -> Iterator[None]:
    """Keep TorchDynamo from learning of sizes, which would be symbolic in the next compilation."""
    memory: Any = torch._dynamo.pgo
    before = copy.deepcopy(getattr(memory, "_CODE_STATE", None))
    try:
        yield
    finally:
        if hasattr(memory, "_CODE_STATE"):
            memory._CODE_STATE = before


__all__ = ["Call", "Planner", "put_back"]
