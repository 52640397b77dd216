"""Kernels as somebody has written them, started by hand: checked by Triton's front end, watched.

What ``kernel[grid](...)`` would start is collected first, then put through the front end (the
interpreter lets much pass that Triton refuses), then interpreted under watch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fusec.errors import CompileError
from fusec.targets.triton.toolchain.cross_compile import make_ttir
from fusec.targets.triton.toolchain.interpret import interpreting
from fusec.targets.triton.toolchain.load import compile_error, is_triton_error
from fusec.targets.triton.toolchain.starts import RecordedStart, StartRecorder
from fusec.targets.triton.toolchain.watch import Watch, watching


class Handle:
    """Stands for a tensor while starts are collected: nothing can be computed with it.

    Args:
        tensor: The tensor.
        name: How messages call it.
    """

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        self.__tensor = tensor
        self.name = name
        self.shape = tuple(tensor.shape)
        self.dtype, self.device, self.ndim = tensor.dtype, tensor.device, tensor.ndim

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"`{name}`: here {vars(self).get('name', 'it')} has a shape, strides and no values; "
            "kernels alone compute"
        )

    def stride(self, dim: int | None = None) -> Any:
        """Return the strides, or one of them, in elements."""
        return self.__tensor.stride() if dim is None else self.__tensor.stride(dim)

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or one of its sizes."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Return how many elements there are."""
        return self.__tensor.numel()

    def dim(self) -> int:
        """Return how many dimensions there are."""
        return self.ndim

    def __len__(self) -> int:
        return self.shape[0]


def tensor_of(value: Any) -> Any:
    """Return the tensor behind a handle, and anything else as it is."""
    return vars(value)["_Handle__tensor"] if isinstance(value, Handle) else value


@contextlib.contextmanager
def collecting(namespace: dict[str, Any]) -> Iterator[list[RecordedStart]]:
    """Collect what a file's kernels are started with in the block; nothing is started."""
    from triton.runtime.jit import JITFunction

    starts: list[RecordedStart] = []
    functions = {n: f for n, f in namespace.items() if isinstance(f, JITFunction)}
    namespace.update({n: StartRecorder(f, starts) for n, f in functions.items()})
    try:
        yield starts
    finally:
        namespace.update(functions)


def with_tensors(start: RecordedStart) -> RecordedStart:
    """Return a start with tensors in place of their handles."""
    args = tuple(map(tensor_of, start.args))
    kwargs = {name: tensor_of(value) for name, value in start.kwargs.items()}
    return RecordedStart(start.function, args, kwargs, start.grid)


def check_start(start: RecordedStart, namespace: dict[str, Any], path: str) -> None:
    """Put a start through Triton's front end.

    Raises:
        CompileError: Triton refuses it.
    """
    try:
        make_ttir(start)
    except Exception as error:
        if is_triton_error(error):
            raise compile_error(error, namespace, path) from error
        raise CompileError([], f"{type(error).__name__}: {error}") from error


def interpret_starts(
    starts: Sequence[RecordedStart], tensors: Mapping[str, torch.Tensor], *, strict: bool
) -> Watch:
    """Interpret starts, one after the other, under watch.

    Args:
        starts: With tensors in them.
        tensors: The same tensors by name.
        strict: Whether the first mistake raises.

    Raises:
        Exception: What the kernel raises; ``OutOfBounds`` or ``Race`` if strict.
    """
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    with interpreting(), watching(tensors, strict=strict) as watch:
        for start in starts:
            with _interpreted(start.function, JITFunction, InterpretedFunction) as function:
                watch.begin(start.function.fn.__name__, start.function.fn.__code__.co_filename)
                function[start.grid](*start.args, **start.kwargs)
        return watch


@contextlib.contextmanager
def _interpreted(kernel: Any, jit: type, interpreted: Any) -> Iterator[Any]:
    """Let a kernel and what it calls be interpreted; all is as before afterwards."""
    space = kernel.fn.__globals__
    before: dict[str, Any] = {n: value for n, value in space.items() if isinstance(value, jit)}
    known = set(space)
    space.update({name: interpreted(value.fn) for name, value in before.items()})
    try:
        yield interpreted(kernel.fn)
    finally:
        space.update(before)
        # The interpreter puts names of its own there, for the functions that it has rewritten.
        for name in set(space) - known:
            del space[name]
        for value in (kernel, *before.values()):
            interpreted.rewritten_fn.pop(value.fn, None)


__all__ = [
    "Handle",
    "check_start",
    "collecting",
    "interpret_starts",
    "tensor_of",
    "with_tensors",
]
