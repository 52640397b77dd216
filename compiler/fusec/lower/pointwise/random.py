"""Random numbers in kernels: the functions of ``fusec.random``, element by element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fusec.ir import ops
from fusec.ir.node import Node
from fusec.ir.program import ExternKind
from fusec.ir.shapes import flatten
from fusec.lower.pointwise.elementwise import convert
from fusec.lower.registry import Lowering, register
from fusec.lower.values import Index, NotLowered, TensorValue
from fusec.random import MANTISSA, random_seed


@register(random_seed)
def seed(lowering: Lowering, device: torch.device) -> None:
    """Leave the seed to torch's generator."""
    raise NotLowered(ExternKind.RANDOM_SEED)


_WORD = (1 << 32) - 1


class _Numbers:
    """The random words of one element."""

    def __init__(self, lowering: Lowering, seed: TensorValue, stream: int, index: Index) -> None:
        position = ops.index_value(flatten(index, lowering.meta().shape), torch.int64)
        self.seed, self.position = seed.at(()), position
        self.stream = ops.const(stream, torch.int64)

    def word(self, number: int) -> Node:
        """Return 32 random bits as an int32."""
        return ops.random_bits(self.seed, self.position, self.stream, number)

    def only_word(self) -> Node:
        """Return 32 random bits as an int32, for an element that needs no more."""
        return ops.random_word(self.seed, self.position, self.stream)

    def unsigned(self, number: int | None = None) -> Node:
        """Return 32 random bits as a non-negative int64: a word, or the only one."""
        word = self.only_word() if number is None else self.word(number)
        wide = ops.cast(word, torch.int64)
        return ops.binary("bitwise_and", wide, ops.const(_WORD, torch.int64))


def _scaled(words: Node, bits: int, dtype: torch.dtype) -> Node:
    return ops.binary("mul", ops.cast(words, dtype), ops.const(2.0**-bits, dtype))


def _real(dtype: torch.dtype) -> torch.dtype:
    if dtype not in MANTISSA:
        raise NotLowered(f"random numbers in {dtype}")
    return ops.compute_dtype(dtype)


@register(torch.ops.fusec.uniform.default)
def uniform(
    lowering: Lowering,
    seed: TensorValue,
    stream: int,
    size: Sequence[object],
    dtype: torch.dtype,
) -> TensorValue:
    """Return numbers from [0, 1)."""
    real = _real(dtype)

    def value(index: Index) -> Node:
        numbers = _Numbers(lowering, seed, stream, index)
        if dtype != torch.float64:
            mask = ops.const((1 << MANTISSA[dtype]) - 1, torch.int32)
            few = ops.binary("bitwise_and", numbers.only_word(), mask)
            return _scaled(few, MANTISSA[dtype], real)
        high = ops.binary("bitwise_and", numbers.unsigned(0), ops.const(0x1FFFFF, torch.int64))
        high = ops.binary("mul", high, ops.const(1 << 32, torch.int64))
        return _scaled(ops.binary("add", high, numbers.unsigned(1)), MANTISSA[dtype], real)

    return lowering.pointwise(value)


@register(torch.ops.fusec.normal.default)
def normal(
    lowering: Lowering,
    seed: TensorValue,
    stream: int,
    size: Sequence[object],
    dtype: torch.dtype,
) -> TensorValue:
    """Return normally distributed numbers by the method of Box and Muller."""
    real = _real(dtype)

    def value(index: Index) -> Node:
        numbers = _Numbers(lowering, seed, stream, index)
        half = ops.const(0.5, real)
        first = ops.binary("add", ops.cast(numbers.unsigned(0), real), half)
        first = ops.binary("mul", first, ops.const(2.0**-32, real))
        radius = ops.binary("mul", ops.unary("log", first), ops.const(-2.0, real))
        second = ops.binary("bitwise_and", numbers.word(1), ops.const(0xFFFFFF, torch.int32))
        turn = ops.const(2.0 * math.pi * 2.0**-24, real)
        angle = ops.binary("mul", ops.cast(second, real), turn)
        return ops.binary("mul", ops.unary("sqrt", radius), ops.unary("cos", angle))

    return lowering.pointwise(value)


@register(torch.ops.fusec.integers.default)
def integers(
    lowering: Lowering,
    seed: TensorValue,
    stream: int,
    low: int,
    high: int,
    size: Sequence[object],
    dtype: torch.dtype,
) -> TensorValue:
    """Return integers from [low, high)."""
    count = ops.const(high - low, torch.int64)

    def value(index: Index) -> Node:
        numbers = _Numbers(lowering, seed, stream, index)
        if high - low <= 1 << 31:
            scaled = ops.binary("mul", numbers.unsigned(), count)
            number = ops.binary("rshift", scaled, ops.const(32, torch.int64))
        else:
            mask = ops.const(0x7FFFFFFF, torch.int64)
            first = ops.binary("bitwise_and", numbers.unsigned(0), mask)
            first = ops.binary("mul", first, ops.const(1 << 32, torch.int64))
            wide = ops.binary("add", first, numbers.unsigned(1))
            number = ops.binary("remainder", wide, count)
        return convert(ops.binary("add", number, ops.const(low, torch.int64)), dtype)

    return lowering.pointwise(value)


__all__ = ["integers", "normal", "uniform"]
