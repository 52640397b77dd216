"""Every target says the same of what a kernel moves: what its loops can reach, once each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.codegen.common.traffic import read_bytes, written_bytes
from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, indirect, recording, reduce
from support.triton_bodies import at, axes, buffer, f32

TABLE = torch.randn(4096, 64)
ROWS = torch.arange(16) * 7
BYTES, I64 = 4, 8
F32 = torch.float32


def scattered(x: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return x.index_put_((at,), values)


CASES: list[tuple[str, Callable[..., torch.Tensor], tuple[torch.Tensor, ...], int, int]] = [
    # name, function, inputs, bytes read, bytes written
    ("pointwise", lambda x: x * 2, (TABLE,), 4096 * 64 * BYTES, 4096 * 64 * BYTES),
    ("a part", lambda x: x[:10] * 2, (TABLE,), 10 * 64 * BYTES, 10 * 64 * BYTES),
    ("twice", lambda x: x * x.roll(1, 0), (TABLE,), 4096 * 64 * BYTES, 4096 * 64 * BYTES),
    ("row sums", lambda x: x.sum(1), (TABLE,), 4096 * 64 * BYTES, 4096 * BYTES),
    ("a gather", F.embedding, (ROWS, TABLE), 16 * I64 + 16 * 64 * BYTES, 16 * 64 * BYTES),
    (
        "a gather that is spread",
        lambda at, x: x[at, 0][:, None] * torch.ones(1, 1000),
        (ROWS, TABLE),
        16 * I64 + 16 * BYTES,
        16 * 1000 * BYTES,
    ),
]


@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize(
    ("function", "inputs", "read", "written"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_bytes(
    target: str,
    function: Callable[..., torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
    read: int,
    written: int,
) -> None:
    compiled = fusec.compile(function, target=target, dynamic=False)
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    (kernel,) = compiled.kernels.values()
    assert (kernel.generated.read_bytes, kernel.generated.written_bytes) == (read, written)


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_an_update_of_some_rows_moves_those_alone(target: str) -> None:
    compiled = fusec.compile(scattered, target=target, dynamic=False)
    compiled(TABLE.clone(), ROWS, torch.randn(16, 64))
    *_, kernel = compiled.kernels.values()  # the table is copied before
    rows = 16 * 64 * BYTES
    assert kernel.generated.written_bytes == rows
    assert kernel.generated.read_bytes == 2 * rows + 16 * I64  # what is there counts as read


def test_elements_that_loops_reach() -> None:
    """At most one for each point, and no more than there are; -1 where a size is not known."""
    i, j = axes(6, 10)
    (r,) = axes(4, prefix="r")
    n = Expr.of(Symbol("n", "size", low=2))
    buffers = {
        "x": buffer("x", (100, 100)),
        "small": buffer("small", (3,)),
        "at": buffer("at", (6,), torch.int64),
        "out": buffer("out", (6, 10)),
        "long": buffer("long", (n,)),
        "double": buffer("double", (100, 100), torch.float64),
    }

    def moved(value: Node, *index: Expr, name: str = "out") -> tuple[int, int]:
        body = Body((i, j), (r,), (Store(name, index or at(i, j), value),))
        return read_bytes(body, buffers), written_bytes(body, buffers)

    with recording():
        row = indirect(ops.load("at", at(i), torch.int64), Expr.of(100))
        assert moved(f32(1.0)) == (0, 60 * 4)
        assert moved(ops.load("x", at(i, j), F32)) == (60 * 4, 60 * 4)
        assert moved(ops.load("double", at(i, j), torch.float64))[0] == 60 * 8
        assert moved(ops.load("x", (Expr.of(i), Expr.of(0)), F32))[0] == 6 * 4
        assert moved(ops.load("small", (Expr.of(i) % 3,), F32))[0] == 3 * 4  # each once
        assert moved(ops.load("x", (row, Expr.of(j)), F32))[0] == 6 * 8 + 60 * 4
        two = ops.binary("add", ops.load("x", at(i, j), F32), ops.load("x", at(j, i), F32))
        assert moved(two)[0] == 120 * 4
        total = reduce("sum", ops.load("x", at(i, r), F32), (r,), F32)
        assert moved(total)[0] == 24 * 4
        assert moved(f32(1.0), row, Expr.of(j), name="x") == (6 * 8, 60 * 4)
        assert moved(f32(1.0), Expr.of(i), Expr.of(3), name="x")[1] == 6 * 4
        assert moved(f32(1.0), Expr.of(j) + n, name="long") == (0, -1)
        assert moved(ops.load("long", at(j), F32))[0] == -1
        (k,) = axes(n)
        known = Body((k,), (), (Store("small", (Expr.of(k) % 3,), ops.load("x", at(k, k), F32)),))
        assert read_bytes(known, buffers) == -1
        assert written_bytes(known, buffers) == -1
