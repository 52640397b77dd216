"""Triton kernels whose loads step over elements: neighbors in one load, rows in a loop."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr
from fusec.ir.node import recording
from fusec.ir.walk import free_axes
from fusec.targets.triton.plan.pairs import pairs_along
from fusec.targets.triton.toolchain.cross_compile import artifacts
from support.triton_bodies import F32, Case, at, axes, buffer, f32
from support.triton_cases import HALF, emit, run, symbolic_rows
from support.triton_windows import blended, neighbors, overlapping, windows


@pytest.mark.sample(20)
@pytest.mark.parametrize("strategy", ["", "tiled", "rows"])
@pytest.mark.parametrize(
    "case",
    [
        neighbors(20, 64),
        neighbors(7, 33, HALF, masked=True),
        neighbors(1, 5, masked=True),
        neighbors(300, 3),
        symbolic_rows(9, lambda n: neighbors(n, 33)),
        symbolic_rows(0, lambda n: neighbors(n, 64, masked=True)),
        windows(2, 3, 300),
        windows(1, 7, 3, HALF),
        windows(2, 4, 64, torch.float64),
        overlapping(5, 64, (-1, 0, 1), width=130),
        overlapping(5, 64, (-1, 0, 1), width=129),
        overlapping(3, 61, (0, 1, 2, 3, 4)),
        overlapping(3, 16, (-3, -2, -1), width=40),
        overlapping(3, 40, (-1, 0, 1), width=82),
        blended(5, 120),
        blended(1, 24, torch.bfloat16),
        symbolic_rows(11, lambda n: blended(n, 33)),
    ],
    ids=lambda c: f"{c.name}-{'x'.join(map(str, c.buffers['out'].shape))}",
)
def test_steps_over_elements(case: Case, strategy: str) -> None:
    run(case, strategy)


def test_neighbors_are_loaded_together() -> None:
    text = emit(neighbors(20, 64)).text
    assert text.count("tl.load(x_ptr") == 1
    assert "tl.split" in text
    code = artifacts(text, emit(neighbors(20, 64)).signature, gpu="sm_90")
    assert "ld.global.v4.b32" in code["ptx"], "16-byte loads"


def test_what_a_row_loop_does_not_change_is_before_it() -> None:
    text = emit(blended(21, 50), "rows").text
    before, _, inside = text.partition("for row in")
    assert "weight_ptr +" in before
    assert "shift_ptr + row" in inside
    assert "0.5" in before
    assert "0.5" not in inside.partition("def launch")[0]


def test_the_third_of_a_window_is_loaded_with_the_one_before_it() -> None:
    case = windows(2, 4, 64, HALF)
    text = emit(case).text
    assert text.count("tl.load(") == 6
    assert text.count("_, x") == 3
    code = artifacts(text, emit(case).signature, gpu="sm_90")
    assert "ld.global.v4.b32" in code["ptx"]
    assert "ld.global.b16" not in code["ptx"], "no element by itself"
    assert "convert_layout" not in code["ttgir"], "no thread hands anything to another"


def test_an_element_is_not_loaded_with_one_that_may_not_be_there() -> None:
    # the fifth of a row is even: with the one after it it might end after the tensor does
    assert "tl.split" not in emit(overlapping(3, 64, (0, 1, 4))).text
    # rows of an odd length begin at an odd element every other time
    assert "tl.split" not in emit(overlapping(3, 64, (-1, 0, 1), width=129)).text
    assert "tl.split" in emit(overlapping(3, 64, (-1, 0, 1), width=130)).text


@pytest.mark.parametrize(
    ("step", "places", "count"),
    [
        (2, (0, 1), 1),
        (2, (0, 1, 5), 2),  # the element before an odd place is there
        (2, (0, 1, 4), 0),
        (2, (0,), 0),
        (2, (1,), 0),
        (3, (0, 1), 0),
        (4, (0, 1), 0),
    ],
)
def test_loads_of_every_second_element_are_pairs_if_all_are(
    step: int, places: tuple[int, ...], count: int
) -> None:
    buffers = {"x": buffer("x", (6, 90)), "y": buffer("y", (6, 20))}
    with recording():
        i, j = axes(6, 20)
        value = f32(0.0)
        for place in places:
            value = ops.binary(
                "sub", value, ops.load("x", (Expr.of(i), step * Expr.of(j) + place), F32)
            )
        body = Body((i, j), (), (Store("y", at(i, j), value),))
    assert len(pairs_along(body, buffers, j, free_axes(body.computed))) == count


@pytest.mark.sample(1)
@pytest.mark.parametrize("step", [3, 4, -2])
def test_other_steps_than_two_make_no_pairs(step: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        one, other = (x[:, 0::3], x[:, 1::3]) if step == 3 else (x[:, 0::4], x[:, 1::4])
        if step == -2:
            one, other = x.flip(1)[:, 0::2], x.flip(1)[:, 1::2]
        return one - other * 2

    torch._dynamo.reset()
    compiled = fusec.compile(function, target="triton")
    x = torch.randn(6, 96)
    torch.testing.assert_close(compiled(x), function(x))
    assert not compiled.fallbacks
