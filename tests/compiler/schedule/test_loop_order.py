"""The order of loops on a CPU: writes are streams, whatever that costs the reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr
from fusec.ir.interpret import run_body
from fusec.ir.node import index_value, recording
from fusec.schedule.loops import _joinable, _score, arrange_loops
from support.triton_bodies import F32, at, axes, buffer

CHANNELS_LAST = torch.channels_last


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def innermost(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> str:
    """Return the size of the innermost loop; the result is eager's, and lies as it does."""
    compiled = fusec.compile(function)
    found, eager = compiled(*inputs), function(*inputs)
    assert torch.equal(found, eager)
    assert found.stride() == eager.stride()
    (kernel,) = compiled.kernels.values()
    return kernel.generated.summary.rpartition(" x ")[2].removeprefix("pointwise over ")


@pytest.mark.parametrize("side", [14, 32, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_channels_turned_to_the_last_place(side: int, dtype: torch.dtype) -> None:
    """However far apart they were: also where they lie a power of two apart."""
    x = torch.randn(2, 24, side, side).to(dtype)
    assert innermost(lambda x: x.contiguous(memory_format=CHANNELS_LAST) * 2, x) == "24"


def test_channels_turned_back() -> None:
    x = torch.randn(2, 24, 16, 16).to(memory_format=CHANNELS_LAST)
    assert innermost(lambda x: x.contiguous() * 2, x) == "256"


def test_a_few_channels_are_no_vector() -> None:
    x = torch.randn(2, 3, 40, 48)
    assert innermost(lambda x: x.contiguous(memory_format=CHANNELS_LAST) * 2, x) == "48"


def test_more_is_read_than_written() -> None:
    x, y = torch.randn(50, 60), torch.randn(50, 60)
    added: Any = lambda x, y: (x.t() + y.t()).contiguous()  # noqa: E731
    assert innermost(added, x, y) == "50"


def test_loops_of_different_reductions_stay_apart() -> None:
    """The largest of the sums of each row: no one loop goes over both."""
    buffers = {"x": buffer("x", (5, 6, 7)), "y": buffer("y", (5,))}
    with recording():
        (i,), (r, s) = axes(5), axes(6, 7, prefix="r")
        total = ops.reduce("sum", ops.load("x", at(i, r, s), F32), (s,), F32)
        body = Body((i,), (r, s), (Store("y", at(i), ops.reduce("max", total, (r,), F32)),))
        arranged = arrange_loops(body, buffers)
    assert len(arranged.reduce_axes) == 2
    x = torch.randn(5, 6, 7)
    tensors = {"x": x, "y": torch.empty(5)}
    run_body(arranged, tensors)
    torch.testing.assert_close(tensors["y"], x.sum(2).amax(1))


def test_which_loops_are_one() -> None:
    """Those that walk through memory as one does: in every access, and in every sum."""
    buffers = {"x": buffer("x", (5, 6)), "y": buffer("y", (5, 6)), "z": buffer("z", (6, 5))}

    def joinable(place: str, turned: bool = False) -> bool:
        with recording():
            i, j = axes(5, 6)
            value = {
                "row": lambda: ops.load("x", at(i, j), F32),
                "column": lambda: ops.load("z", at(j, i), F32),
                "half": lambda: ops.load("x", at(i, Expr.of(j) // 2), F32),
                "place": lambda: index_value(Expr.of(j), torch.int64),
                "number": lambda: ops.const(1.0, F32),
                "part": lambda: ops.reduce("sum", ops.load("x", at(i, j), F32), (j,), F32),
            }[place]()
            body = Body((i, j), (), (Store("y", at(i, j), value),))
        return _joinable(body, buffers, *((j, i) if turned else (i, j)))

    assert joinable("row")
    assert joinable("number")
    assert not joinable("row", turned=True)
    assert not any(map(joinable, ("column", "half", "place", "part")))


@pytest.mark.parametrize("shape", [(5, 0), (0, 5), (5, 1)])
def test_a_loop_of_no_steps_is_joined_with_none(shape: tuple[int, ...]) -> None:
    steps = (shape[1], 1)
    buffers = {name: buffer(name, shape, strides=steps) for name in ("x", "y")}
    with recording():
        i, j = axes(*shape)
        value = ops.unary("neg", ops.load("x", at(i, j), F32))
        body = Body((i, j), (), (Store("y", at(i, j), value),))
        arranged = arrange_loops(body, buffers)
    sizes = [axis.size.constant for axis in arranged.axes if axis.size is not None]
    assert math.prod(size for size in sizes if size is not None) == math.prod(shape)
    assert len(sizes) == (2 if shape == (5, 0) else 1)


def test_what_lies_in_other_lines_anyway_counts_little_on_a_processor() -> None:
    i, j = axes(64, 64)

    def score(*strides: int, beyond: float = 0.1) -> float:
        return _score(i, [(stride * Expr.of(i) + Expr.of(j), 1) for stride in strides], beyond)

    assert score(1) == 0
    assert score(2) == 1
    assert score(16) == 4
    assert score(1024) == pytest.approx(4 + 0.6)
    assert score(1024, beyond=1.0) == 10
    assert score(1, 1024) == pytest.approx(2.3)
    assert score(0) == 50  # nothing moves along it
    assert score(0, 2) == 1
