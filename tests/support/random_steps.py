"""Random programs of a few steps, as lowering might make them, for the tests of the scheduler.

They need no torch to trace them, and combine what seldom meets: rows and columns of one tensor,
turned and backward reads, positions from a table, sums into what is there, calls of ATen between.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store, new_axes
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, const, index_value
from fusec.ir.program import Compute, Extern, ExternKind, Program, Step, TensorRef
from fusec.ir.shapes import contiguous_strides

aten = torch.ops.aten
F16, F32, I64 = torch.float16, torch.float32, torch.int64
# What calls of ATen there are: of how many tensors, and whether one more is changed in place.
CALLS: tuple[tuple[Any, int, bool], ...] = (
    (aten.sort.values, 1, False),
    (aten.mm.default, 2, False),
    (aten.bernoulli.default, 1, False),
    (aten.view.default, 1, False),
    (aten.index_put_.default, 1, True),
)
# Of what is decided by size, some lie on either side.
SIZES = ((64, 48), (64, 64), (4096, 1024), (8, 100_000), (513, 7), (50_000, 32))
UNARY = ("exp", "tanh", "neg", "abs", "sqrt")
BINARY = ("add", "mul", "sub", "maximum")


class Steps:
    """Makes one program; the same seed makes the same one.

    Args:
        seed: Which.
        device: Where its tensors are said to be.
    """

    def __init__(self, seed: int, device: str) -> None:
        self.random = random.Random(seed)
        self.device = torch.device(device)
        pick = self.random.choice
        # large enough for what is decided by size, in one program of three
        rows, columns = pick(
            ((64, 48), (64, 64), (4096, 1024), (8, 100_000), (513, 7), (50_000, 32))
        )
        self.rows, self.columns = rows, columns
        self.dtype = pick((F32, F32, F16))
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Step] = []
        for name in ("x", "y"):
            self.add(name, (rows, columns))
        self.add("t", (columns, rows))
        self.add("row", (rows,))
        self.add("column", (columns,))
        self.add("flat", (rows * columns,))
        self.add("table", (rows,), I64)
        self.inputs = tuple(self.buffers)

    def add(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Buffer:
        """Make a buffer, some of them turned in memory."""
        sizes = tuple(map(Expr.of, shape))
        strides = contiguous_strides(sizes)
        if len(shape) == 2 and self.random.random() < 0.1:
            strides = (Expr.of(1), sizes[0])
        made = Buffer(name, sizes, strides, dtype or self.dtype, self.device, hint=name)
        self.buffers[name] = made
        return made

    def named(self, *shapes: tuple[int, ...]) -> list[str]:
        """Return the floating-point buffers of some shapes, the newest ones more than once."""
        found = [
            name
            for name, buffer in self.buffers.items()
            if buffer.dtype != I64 and buffer.shape in [tuple(map(Expr.of, s)) for s in shapes]
        ]
        return found + found[-3:] * 2

    def read(self, i: Expr, j: Expr) -> Node:
        """Return a value of one element of a tensor, at row i and column j, in float32."""
        rows, columns, pick = self.rows, self.columns, self.random.random()
        kinds: list[tuple[float, tuple[int, ...], tuple[Expr, ...]]] = [
            (0.56, (rows, columns), (i, j)),
            (0.64, (columns, rows), (j, i)),
            (0.72, (rows,), (i,)),
            (0.80, (columns,), (j,)),
            (0.86, (rows * columns,), (i * columns + j,)),
            (0.90, (rows, columns), (i, columns - 1 - j)),
            (0.93, (rows, columns), (rows - 1 - i, j)),
            (0.96, (rows, 1), (i, Expr.of(0))),
        ]
        for limit, shape, index in kinds:
            names = self.named(shape)
            if pick < limit and names:
                name = self.random.choice(names)
                mask, other = None, 0
                if self.random.random() < 0.08:
                    place = index_value(index[-1], I64)
                    mask, other = ops.binary("lt", place, const(5, I64)), 1
                return self.wide(ops.load(name, index, self.buffers[name].dtype, mask, other))
        at = ops.checked_index(ops.load("table", (i,), I64), Expr.of(rows))
        name = self.random.choice(self.named((rows, columns)))
        return self.wide(ops.load(name, (at, j), self.buffers[name].dtype))

    def wide(self, value: Node) -> Node:
        return ops.cast(value, F32)

    def value(self, i: Expr, j: Expr, depth: int = 2) -> Node:
        """Return an expression of some elements."""
        if depth == 0 or self.random.random() < 0.3:
            return self.read(i, j)
        if self.random.random() < 0.4:
            return ops.unary(self.random.choice(UNARY), self.value(i, j, depth - 1))
        left, right = self.value(i, j, depth - 1), self.value(i, j, depth - 1)
        return ops.binary(self.random.choice(BINARY), left, right)

    def kept(self, value: Node) -> Node:
        return ops.cast(value, self.dtype)

    def step(self) -> None:
        """Add a step of some kind."""
        kinds = (self.pointwise, self.pointwise, self.pointwise, self.rows_of, self.columns_of)
        more = (self.flat, self.turned, self.scan, self.copy, self.update, self.call, self.split)
        self.random.choice((*kinds, *kinds, *more))(f"s{len(self.steps)}")

    def put(
        self, name: str, axes: Sequence[Symbol], over: Sequence[Symbol], *stores: Store
    ) -> None:
        self.steps.append(Compute(name, Body(tuple(axes), tuple(over), stores), f"label {name}"))

    def loops(self, *sizes: int, prefix: str = "i") -> tuple[Symbol, ...]:
        return new_axes(tuple(map(Expr.of, sizes)), prefix)

    def pointwise(self, name: str) -> None:
        i, j = self.loops(self.rows, self.columns)
        at = (Expr.of(i), Expr.of(j))
        stores = []
        for number in range(1 + (self.random.random() < 0.15)):
            value = self.kept(self.value(*at))  # before the buffer is there: it reads others
            stores.append((f"{name}_{number}", value))
        for made, _ in stores:
            self.add(made, (self.rows, self.columns))
        self.put(name, (i, j), (), *(Store(made, at, value) for made, value in stores))

    def rows_of(self, name: str) -> None:
        (i,), (r,) = self.loops(self.rows), self.loops(self.columns, prefix="r")
        self.reduced(name, i, r, Expr.of(i), Expr.of(r))

    def columns_of(self, name: str) -> None:
        (i,), (r,) = self.loops(self.columns), self.loops(self.rows, prefix="r")
        self.reduced(name, i, r, Expr.of(r), Expr.of(i))

    def reduced(self, name: str, i: Symbol, r: Symbol, row: Expr, column: Expr) -> None:
        kind = self.random.choice(("sum", "sum", "max", "argmax"))
        dtype = I64 if kind == "argmax" else F32
        total: Node = ops.reduce(kind, self.value(row, column), (r,), dtype)
        stores = []
        if kind != "argmax" and self.random.random() < 0.3:  # what norms do
            of_all = ops.binary("sub", self.read(row, column), total)
            stores.append(Store(f"{name}_e", (row, column), self.kept(of_all)))
        if not stores or self.random.random() < 0.5:
            kept = total if kind == "argmax" else self.kept(total)
            stores.append(Store(f"{name}_0", (Expr.of(i),), kept))
        for store in stores:
            whole = store.buffer.endswith("_e")
            shape = (self.rows, self.columns) if whole else (int(str(i.size)),)
            self.add(store.buffer, shape, store.value.dtype)
        self.put(name, (i,), (r,), *stores)

    def flat(self, name: str) -> None:
        (i,) = self.loops(self.rows * self.columns)
        at = Expr.of(i)
        value = self.kept(self.value(at // self.columns, at % self.columns))
        self.add(f"{name}_0", (self.rows * self.columns,))
        self.put(name, (i,), (), Store(f"{name}_0", (at,), value))

    def turned(self, name: str) -> None:
        j, i = self.loops(self.columns, self.rows)
        value = self.kept(self.value(Expr.of(i), Expr.of(j)))
        self.add(f"{name}_0", (self.columns, self.rows))
        self.put(name, (j, i), (), Store(f"{name}_0", (Expr.of(j), Expr.of(i)), value))

    def scan(self, name: str) -> None:
        along_rows = self.random.random() < 0.5
        sizes = (self.rows, self.columns) if along_rows else (self.columns, self.rows)
        (i,), (r,) = self.loops(sizes[0]), self.loops(sizes[1], prefix="r")
        at = (Expr.of(i), Expr.of(r)) if along_rows else (Expr.of(r), Expr.of(i))
        running = ops.scan("sum", self.value(*at), r, F32)
        self.add(f"{name}_0", (self.rows, self.columns))
        self.put(name, (i,), (r,), Store(f"{name}_0", at, self.kept(running)))

    def copy(self, name: str) -> None:
        i, j = self.loops(self.rows, self.columns)
        at = (Expr.of(i), Expr.of(j))
        source = self.random.choice(self.named((self.rows, self.columns)))
        value = ops.load(source, at, self.buffers[source].dtype)
        dtype = self.random.choice((self.dtype, F32, F16))
        self.add(f"{name}_0", (self.rows, self.columns), dtype)
        self.put(name, (i, j), (), Store(f"{name}_0", at, ops.cast(value, dtype)))

    def split(self, name: str) -> None:
        """Rows of one element each, and values of a row alone."""
        i, one = self.loops(self.rows, 1)
        at = (Expr.of(i), Expr.of(one))
        names = self.named((self.rows,), (self.rows, 1))
        source = self.random.choice(names)
        index = at[: len(self.buffers[source].shape)]
        value = ops.unary("exp", self.wide(ops.load(source, index, self.buffers[source].dtype)))
        self.add(f"{name}_0", (self.rows, 1))
        self.put(name, (i, one), (), Store(f"{name}_0", at, self.kept(value)))

    def update(self, name: str) -> None:
        made = [n for n in self.named((self.rows, self.columns)) if n not in self.inputs]
        if not made:
            return self.pointwise(name)
        i, j = self.loops(self.rows, self.columns)
        row = ops.checked_index(ops.load("table", (Expr.of(i),), I64), Expr.of(self.rows))
        value = self.kept(self.value(Expr.of(i), Expr.of(j), 1))
        mode = self.random.choice(("add", "put", "max"))
        target = self.random.choice(made)
        if self.buffers[target].dtype == self.dtype:
            self.put(name, (i, j), (), Store(target, (row, Expr.of(j)), value, mode))
        return None

    def reference(self, name: str) -> TensorRef:
        buffer = self.buffers[name]
        return TensorRef(name, buffer.shape, buffer.strides, Expr.of(0), buffer.dtype)

    def call(self, name: str) -> None:
        target, count, writes = self.random.choice(CALLS)
        shape = (self.rows, self.columns)
        given = [self.random.choice(self.named(shape)) for _ in range(count)]
        changed = [n for n in self.named(shape) if n not in self.inputs]
        if writes and not changed:
            return self.pointwise(name)
        mutates = (self.random.choice(changed),) if writes else ()
        outputs = () if writes else (f"{name}_0",)
        for made in outputs:
            self.add(made, shape)
        args = tuple(map(self.reference, (*mutates, *given)))
        kind = self.random.choice((ExternKind.OPERATOR,) * 4 + (ExternKind.REFUSED,))
        self.steps.append(
            Extern(name, target, args, {}, outputs, "a call", mutates, label=name, kind=kind)
        )
        return None

    def program(self) -> tuple[Program, tuple[str, ...]]:
        """Return the program, and which inputs its first outputs are copied into."""
        for _ in range(self.random.randint(2, 9)):
            self.step()
        made = [n for n in self.buffers if n not in self.inputs]
        read = {name for step in self.steps for name in step.reads()}
        returned = [n for n in made if n not in read or self.random.random() < 0.15]
        shapes = {self.buffers[n].shape: n for n in ("y", "row", "column")}
        updated = []
        for name in list(returned):
            given = shapes.get(self.buffers[name].shape)
            if given and given not in updated and self.random.random() < 0.35:
                updated.append(given)
                returned.remove(name)
                returned.insert(len(updated) - 1, name)
        outputs = tuple(map(self.reference, returned))
        once = frozenset(n for n in made if self.random.random() < 0.05)
        program = Program(self.inputs, {}, self.buffers, tuple(self.steps), outputs, once=once)
        return program, tuple(updated)
