"""When a GPU computes a value once more rather than write and read it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from codegen_triton_bodies import F32, at, axes, buffer, read
from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Compute, Store
from fusec.ir.node import Node, recording
from fusec.schedule.choices import cheaper_again

ROWS, COLUMNS = 512, 4096
HALF = torch.float16


def buffers(device: str) -> dict[str, Buffer]:
    """Return a float32 value made from two tensors of halves, and what is made of it."""
    shape = (ROWS, COLUMNS)
    found = {name: buffer(name, shape, HALF) for name in ("x", "gradient", "out")}
    found |= {"made": buffer("made", shape, F32)}
    found |= {name: buffer(name, (ROWS,), F32) for name in ("sum", "other")}
    found["columns"] = buffer("columns", (COLUMNS,), F32)
    return {n: replace(b, device=torch.device(device)) for n, b in found.items()}


def producer(functions: int) -> Body:
    """Return a value that takes that many elementary functions."""
    i, j = axes(ROWS, COLUMNS)
    value = read("x", at(i, j), HALF)
    for _ in range(functions):
        value = ops.unary("tanh", value)
    value = ops.binary("mul", value, read("gradient", at(i, j), HALF))
    return Body((i, j), (), (Store("made", at(i, j), value),))


def row_sums(name: str, times: bool) -> Compute:
    """Return the sums of the value's rows, or of the products with x."""
    (i,), (r,) = axes(ROWS), axes(COLUMNS, prefix="r")
    value: Node = ops.load("made", at(i, r), F32)
    if times:
        value = ops.binary("mul", value, read("x", at(i, r), HALF))
    return Compute(
        name, Body((i,), (r,), (Store(name, at(i), ops.reduce("sum", value, (r,), F32)),))
    )


def column_sums() -> Compute:
    (j,), (r,) = axes(COLUMNS), axes(ROWS, prefix="r")
    total = ops.reduce("sum", ops.load("made", at(r, j), F32), (r,), F32)
    return Compute("columns", Body((j,), (r,), (Store("columns", at(j), total),)))


def alone(*consumers: Compute) -> list[tuple[Compute]]:
    """Return consumers that are not about to be inlined."""
    return [(consumer,) for consumer in consumers]


def product() -> Compute:
    """Return the products with x by themselves, as they are before anything is inlined."""
    i, j = axes(ROWS, COLUMNS)
    value = ops.binary("mul", ops.load("made", at(i, j), F32), read("x", at(i, j), HALF))
    return Compute("product", Body((i, j), (), (Store("other", at(i, j), value),)))


def result() -> Compute:
    i, j = axes(ROWS, COLUMNS)
    value = ops.binary("add", ops.load("made", at(i, j), F32), read("x", at(i, j), HALF))
    return Compute("out", Body((i, j), (), (Store("out", at(i, j), ops.cast(value, HALF)),)))


@pytest.mark.parametrize(("functions", "expected"), [(0, True), (4, True), (5, False), (20, False)])
def test_it_pays_while_the_memory_is_what_is_waited_for(functions: int, expected: bool) -> None:
    with recording():
        consumers = [row_sums("sum", True), result()]
        assert cheaper_again(producer(functions), alone(*consumers), buffers("cuda")) is expected


def test_consumers_that_loop_alike_are_one_kernel() -> None:
    with recording():
        alike = [row_sums("sum", True), row_sums("other", False), result()]
        apart = [row_sums("sum", True), column_sums(), result()]
        assert cheaper_again(producer(3), alone(*alike), buffers("cuda"))
        assert not cheaper_again(producer(3), alone(*apart), buffers("cuda"))


def test_what_is_about_to_be_inlined_counts_where_it_ends() -> None:
    with recording():
        chains = [(product(), row_sums("sum", False)), (row_sums("other", False),), (result(),)]
        assert cheaper_again(producer(4), chains, buffers("cuda"))
        assert not cheaper_again(
            producer(4), [*chains[:1], (column_sums(),), *chains[2:]], buffers("cuda")
        )


def test_a_processor_computes_for_longer_than_it_reads() -> None:
    with recording():
        assert not cheaper_again(
            producer(0), alone(row_sums("sum", True), result()), buffers("cpu")
        )
