"""Axes of one turn that are left out, axes that are several: what stays, and what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, index_value, indirect, recording, reduce
from fusec.targets.cpp.plan.axes import split_last_axis, without_unit_axes
from fusec.targets.cpp.plan.facts import Facts, extent
from support.triton_bodies import F32, Case, at, axes, buffer

I64 = torch.int64
ROWS = 3


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


def copied(
    size: int, place: Callable[[Expr], tuple[Expr, ...]], shape: tuple[int, ...], *strides: int
) -> tuple[Body, dict[str, Buffer]]:
    """Each row of ``out`` is what lies at ``place`` of a row of ``x``."""
    i, j = axes(ROWS, size)
    value = ops.load("x", (Expr.of(i), *place(Expr.of(j))), F32)
    row = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    buffers = {
        "x": buffer("x", (ROWS, *shape), strides=(max(row, 1), *strides)),
        "out": buffer("out", (ROWS, size)),
    }
    return Body((i, j), (), (Store("out", at(i, j), value),)), buffers


def lengths(body: Body, buffers: dict[str, Buffer]) -> list[int | None] | None:
    """Return what the last axis is split into; what the loops compute is seen to be the same."""
    found = split_last_axis(Facts(body, buffers))
    if found is None:
        return None
    given = Case("whole", body, buffers).inputs()
    wanted = Case("whole", body, buffers).expected(given)
    assert Case("split", found, buffers).expected(given).keys() == wanted.keys()
    for name, tensor in Case("split", found, buffers).expected(given).items():
        assert torch.equal(tensor, wanted[name])
    assert found.axes[:-1][: len(body.axes) - 1] == body.axes[:-1]
    return [extent(axis) for axis in found.axes[len(body.axes) - 1 :]]


# The size, where ``x`` is read, its shape and strides, and what the axis becomes.
SPLIT: dict[str, tuple[int, Callable[[Expr], tuple[Expr, ...]], tuple[int, ...], tuple[int, ...],
                       list[int] | None]] = {
    "patches": (96, lambda j: (j // 48, j // 16 % 3, j % 16), (2, 3, 16), (16, 40, 1), [2, 3, 16]),
    "two parts": (64, lambda j: (j // 16, j % 16), (4, 16), (20, 1), [4, 16]),
    "one of each part": (64, lambda j: (j // 16,), (4,), (1,), [4, 16]),
    "the same again": (64, lambda j: (j % 16,), (16,), (1,), [4, 16]),
    "one part": (16, lambda j: (j % 16 + j // 16,), (16,), (1,), None),
    "in order": (64, lambda j: (j,), (64,), (1,), None),
    "short parts": (64, lambda j: (j // 4, j % 4), (16, 4), (5, 1), None),
    "eight neighbors": (64, lambda j: (j // 8, j % 8), (8, 8), (9, 1), [8, 8]),
    "seven neighbors": (63, lambda j: (j // 7, j % 7), (9, 7), (9, 1), None),
    "a rest": (72, lambda j: (j // 16, j % 16), (5, 16), (20, 1), None),
    "steps that do not divide": (96, lambda j: (j // 32, j % 48), (3, 48), (48, 1), None),
    "from another place on": (64, lambda j: ((j + 3) // 16,), (5,), (1,), None),
    "a part of a part": (96, lambda j: (j % 48 // 16, j % 16), (3, 16), (20, 1), None),
    "every second": (64, lambda j: (j // 16, j % 16), (4, 16), (40, 2), None),
    "backward": (64, lambda j: (j // 16, 15 - j % 16), (4, 16), (20, 1), None),
}  # fmt: skip


@pytest.mark.parametrize("name", SPLIT)
def test_an_axis_of_several_parts(name: str) -> None:
    size, place, shape, strides, wanted = SPLIT[name]
    assert lengths(*copied(size, place, shape, *strides)) == wanted


def test_positions_and_places_that_are_looked_up_stay_whole() -> None:
    """Positions may be compared, and what is looked up may lie anywhere."""
    body, buffers = copied(64, lambda j: (j // 16, j % 16), (4, 16), 20, 1)
    (i, j), (store,) = body.axes, body.stores
    buffers |= {"at": buffer("at", (64,), I64)}
    rows, columns = (index_value(Expr.of(axis), F32) for axis in (i, j))
    looked_up = Expr.of(indirect(ops.load("at", at(j), I64), Expr.of(64)))

    def parts(value: Node, index: tuple[Expr, ...] = store.index) -> list[int | None] | None:
        stored = Store("out", index, ops.binary("add", store.value, value))
        found = split_last_axis(Facts(Body(body.axes, (), (stored,)), buffers))
        return None if found is None else [extent(axis) for axis in found.axes[1:]]

    assert parts(rows) == [4, 16]
    assert parts(columns) is None
    assert parts(rows, (Expr.of(i), looked_up)) is None


def test_what_has_no_axes_or_another_size_stays() -> None:
    value = ops.load("x", (), F32)
    nothing = Body((), (), (Store("out", (), value),))
    assert split_last_axis(Facts(nothing, {n: buffer(n, ()) for n in ("x", "out")})) is None
    n = Expr.of(Symbol("n", "size", low=2))
    (j,) = axes(n)
    read = ops.load("x", (Expr.of(j) // 16, Expr.of(j) % 16), F32)
    buffers = {"x": buffer("x", (n // 16 + 1, 16), strides=(20, 1)), "out": buffer("out", (n,))}
    assert split_last_axis(Facts(Body((j,), (), (Store("out", at(j), read),)), buffers)) is None


@pytest.mark.parametrize(
    ("outer", "reduced", "left"),
    [
        ((4, 5), (), "4 5 |"),
        ((1, 5), (), "5 |"),
        ((4, 1), (), "4 |"),
        ((1, 1), (), "|"),
        ((4, 0), (), "4 0 |"),
        ((1, 5), (3, 1), "5 | 3"),
        ((4, 5), (1, 3), "4 5 | 3"),
        ((4, 1), (1, 1), "4 | 1 1"),
        ((4, 5), (1,), "4 5 | 1"),
    ],
)
def test_axes_of_one_turn(outer: tuple[int, ...], reduced: tuple[int, ...], left: str) -> None:
    """They are left out, but for those of a reduction over nothing else."""
    loops, inner = axes(*outer), axes(*reduced, prefix="r")
    value = ops.load("x", at(*loops, *inner), F32)
    if inner:
        value = reduce("sum", value, inner, F32)
    body = Body(loops, inner, (Store("out", at(*loops), value),))
    buffers = {"x": buffer("x", (*outer, *reduced)), "out": buffer("out", outer)}
    found = without_unit_axes(body)
    sizes = (" ".join(str(extent(a)) for a in each) for each in (found.axes, found.reduce_axes))
    assert " | ".join(sizes).strip() == left.strip()
    given = Case("all", body, buffers).inputs()
    whole, less = (Case("", each, buffers).expected(given)["out"] for each in (body, found))
    torch.testing.assert_close(less, whole)


def test_a_reduction_along_one_turn_alone_keeps_all_of_them() -> None:
    """Beside another one that has more: without its axis it would reduce nothing."""
    (i,), (r, s) = axes(4), axes(3, 1, prefix="r")
    long = reduce("sum", ops.load("x", at(i, r), F32), (r,), F32)
    short = reduce("sum", ops.load("y", at(i, s), F32), (s,), F32)
    stores = tuple(Store(n, at(i), v) for n, v in (("a", long), ("b", short)))
    assert without_unit_axes(Body((i,), (r, s), stores)).reduce_axes == (r, s)
    assert without_unit_axes(Body((i,), (r, s), stores[:1])).reduce_axes == (r,)
