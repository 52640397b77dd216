"""Whether a backward part is given what it was compiled for.

Its inputs are what forward saved and the gradients of forward's outputs. No guard has looked at
them, and between forward and backward anybody may put something else in their place: hooks on
saved tensors return other strides, another dtype; a gradient may be lazily negated or conjugated,
whose memory holds other values than it stands for; ``is_grads_batched`` runs backward under a
transform. Kernels know nothing of this. ATen's operators do: then they run the graph instead.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._C import _dispatch_keys
from torch._C._dynamo.guards import TensorGuards, _empty_strided_cuda  # type: ignore[attr-defined]

from fusec.ir.body import Buffer, Program
from fusec.ir.index import Expr, Symbol
from fusec.runtime.memory import empty_cpu


class ExpectedInputs:
    """What the inputs of a program have to be like.

    Args:
        program: The scheduled program.
    """

    def __init__(self, program: Program) -> None:
        self._names = program.inputs
        self._sizes = program.sizes
        self._buffers = {n: program.buffers[n] for n in self._names if n in program.buffers}
        self._positions = [i for i, name in enumerate(self._names) if name in self._buffers]
        self._all = len(self._positions) == len(self._names)
        self._like_before: Any = None  # torch's own native check, of the first that were right

    def fit(self, inputs: Sequence[Any]) -> bool:
        """Whether kernels may run on the inputs."""
        given = inputs if self._all else [inputs[i] for i in self._positions]
        if self._like_before is not None and self._like_before(*given):
            return True
        if len(inputs) != len(self._names) or not self._each_fits(inputs):
            return False
        if given and self._like_before is None:
            wanted = [self._buffers[self._names[i]] for i in self._positions]
            sizes: Any = [[e.constant for e in b.shape] for b in wanted]
            strides: Any = [[e.constant for e in b.strides] for b in wanted]
            self._like_before = TensorGuards(
                *given, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
            ).check
        return True

    def _each_fits(self, inputs: Sequence[Any]) -> bool:
        named = dict(zip(self._names, inputs, strict=True))
        if not all(_is_memory(named[name], buffer) for name, buffer in self._buffers.items()):
            return False
        sizes = {
            symbol: named[name] if dim is None else named[name].shape[dim]
            for symbol, (name, dim) in self._sizes.items()
        }
        return all(_lies_as(named[name], buffer, sizes) for name, buffer in self._buffers.items())


def _is_memory(value: object, buffer: Buffer) -> bool:
    """Whether a value is a tensor whose elements are what its memory holds."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return (
        value.dtype == buffer.dtype
        and value.device.type == buffer.device.type
        and value.dim() == len(buffer.shape)
        and _dispatch_keys(value).raw_repr() & ~_ordinary_keys(buffer.device.type) == 0
    )


@functools.cache
def _ordinary_keys(device: str) -> int:
    """Return what torch asks about operators on ordinary tensors of a device."""
    with torch.inference_mode(False):
        made = empty_cpu if device == "cpu" else _empty_strided_cuda
        return int(_dispatch_keys(made((0,), (1,), torch.float32)).raw_repr())


def _lies_as(value: torch.Tensor, buffer: Buffer, sizes: Mapping[Symbol, int]) -> bool:
    shape = tuple(_number(e, sizes) for e in buffer.shape)
    if value.shape != shape:
        return False
    strides = tuple(_number(e, sizes) for e in buffer.strides)
    return 0 in shape or all(
        n == 1 or a == b for n, a, b in zip(shape, value.stride(), strides, strict=True)
    )


def _number(expression: Expr, sizes: Mapping[Symbol, int]) -> int:
    value: Any = expression.evaluate(lambda symbol: sizes[symbol])
    return int(value)


__all__ = ["ExpectedInputs"]
