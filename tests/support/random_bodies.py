"""Random bodies for the tests of the Triton emitter."""

from __future__ import annotations

import random

import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, const, index_value
from support.triton_bodies import Case, at, axes, buffer, to_memory

FLOATS = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)


WHOLE = (torch.int64, torch.int32, torch.int8, torch.uint8)


SAFE_UNARY = ("neg", "abs", "tanh", "sigmoid", "erf", "sin", "floor", "round", "sign", "exp")


BINARY = ("add", "sub", "mul", "maximum", "minimum")


class Maker:
    """Makes one body; the same seed makes the same one."""

    def __init__(self, seed: int, reduces: bool) -> None:
        self.random = random.Random(seed)
        self.buffers: dict[str, Buffer] = {}
        self.reduces = reduces
        sizes = [self.random.choice((1, 2, 3, 5, 8, 17)) for _ in range(self.random.randint(1, 3))]
        self.outer = axes(*sizes[: 2 if reduces else 3])
        inner = [self.random.choice((1, 3, 7, 33, 130)) for _ in range(self.random.randint(1, 2))]
        self.inner = axes(*inner, prefix="r") if reduces else ()

    def symbols(self, within_row: bool) -> list[Symbol]:
        return [*self.outer, *(self.inner if within_row else ())]

    def leaf(self, within_row: bool) -> Node:
        """Return a load over a part of the axes, in some order of memory, as float32/64."""
        used = [s for s in self.symbols(within_row) if self.random.random() < 0.8]
        self.random.shuffle(used)
        dtype = self.random.choice(FLOATS if self.random.random() < 0.75 else WHOLE)
        shape = tuple(s.size for s in used if s.size is not None)
        name = f"in{len(self.buffers)}"
        self.buffers[name] = buffer(name, shape, dtype)
        index = [Expr.of(s) for s in used]
        for place, size in enumerate(shape):  # sometimes backwards
            if self.random.random() < 0.15:
                index[place] = size - 1 - index[place]
        mask = None
        if used and self.random.random() < 0.3:
            symbol = self.random.choice(used)
            position = index_value(Expr.of(symbol), torch.int64)
            assert symbol.size is not None
            mask = ops.binary("lt", position, const(self.random.randint(0, 9), torch.int64))
        value = ops.load(name, tuple(index), dtype, mask, self.random.choice((0, 1, 7)))
        return ops.cast(value, torch.float32)

    def value(self, depth: int, within_row: bool) -> Node:
        """Return a random expression; with reductions in it where rows are at hand."""
        if depth <= 0:
            if self.random.random() < 0.15:
                return const(self.random.choice((0.0, 1.0, -2.5, 0.3)), torch.float32)
            return self.leaf(within_row)
        pick = self.random.random()
        if within_row and len(self.inner) == 1 and pick < 0.1:
            kind = self.random.choice(("sum", "max", "min", "argmax"))
            argument = ops.unary("tanh", self.value(depth - 1, True))
            dtype = torch.int64 if kind == "argmax" else torch.float32
            scan = ops.scan(kind, argument, self.inner[0], dtype)
            return ops.cast(scan, torch.float32)
        if self.inner and pick < 0.3:
            kind = self.random.choice(("sum", "max", "min", "sum", "any", "argmax"))
            argument = self.value(depth - 1, True)
            if kind == "any":
                argument = ops.binary("gt", argument, const(2.0, torch.float32))
                return ops.cast(ops.reduce(kind, argument, self.inner, torch.bool), torch.float32)
            dtype = torch.int64 if kind == "argmax" else torch.float32
            return ops.cast(ops.reduce(kind, argument, self.inner, dtype), torch.float32)
        if pick < 0.45:
            name = self.random.choice(SAFE_UNARY)
            argument = self.value(depth - 1, within_row)
            if name in ("exp", "sin"):  # not so large that rounding decides
                argument = ops.unary("tanh", argument)
            return ops.unary(name, argument)
        if pick < 0.55:
            condition = ops.binary(
                "lt", self.value(depth - 1, within_row), self.value(depth - 2, within_row)
            )
            return ops.where(
                condition, self.value(depth - 1, within_row), self.value(depth - 2, within_row)
            )
        name = self.random.choice(BINARY)
        return ops.binary(
            name, self.value(depth - 1, within_row), self.value(depth - 1, within_row)
        )

    def case(self) -> Case:
        stores = []
        for number in range(self.random.randint(1, 3)):
            within_row = bool(self.inner) and self.random.random() < 0.4
            symbols = self.symbols(within_row)
            order = list(range(len(symbols)))
            if self.random.random() < 0.3:
                self.random.shuffle(order)
            name = f"out{number}"
            dtype = self.random.choice(FLOATS)
            if dtype == torch.float64:
                dtype = torch.float32
            shape = tuple(symbols[o].size or Expr.of(1) for o in order)
            self.buffers[name] = buffer(name, shape, dtype)
            value = self.value(3, within_row)
            index = at(*(symbols[o] for o in order))
            stores.append(Store(name, index, to_memory(value, dtype)))
        body = Body(self.outer, self.inner, tuple(stores))
        used = set(body.reads()) | set(body.writes())
        return Case("random", body, {n: b for n, b in self.buffers.items() if n in used})


def settled(case: Case) -> bool:
    """Whether rounding decides nothing in this body: float32 and float64 agree closely."""
    tensors = case.inputs()
    narrow, wide = case.expected(tensors), case.expected(tensors, torch.float64)
    for name, value in narrow.items():
        exact = wide[name].double()
        limit = 0.02 if value.dtype.itemsize == 2 else 1e-4
        same = torch.isclose(value.double(), exact, rtol=limit, atol=limit, equal_nan=True)
        if not bool(same.all()):
            return False
    return True
