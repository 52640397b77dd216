"""Sums of rows with a single one, which become that one value: what is folded, and to what."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr
from fusec.ir.interpret import run_body
from fusec.ir.node import Node, Reduce, index_value, recording, reduce
from fusec.schedule.one_hot import fold_one_hots
from support.triton_bodies import F32, at, axes, f32

ROWS, CLASSES = 7, 5
I64 = torch.int64
PLACES = torch.tensor([0, 4, 2, 5, -1, 3, 2])  # two of them are none
Value = Callable[[Node, Node, Node], Node]


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


def hot(position: Node, place: Node, one: Node, zero: float = 0.0, turned: bool = False) -> Node:
    pair = (place, position) if turned else (position, place)
    return ops.where(ops.binary("eq", *pair), one, f32(zero))


def summed(value: Value, kind: str = "sum", classes: int = CLASSES, whole: bool = False) -> Body:
    """Return ``out[i]``, of each row's classes: of their positions, the row's place and number."""
    (i,), (j,) = axes(ROWS), axes(classes, prefix="r")
    position = index_value(Expr.of(j), I64)
    place, number = ops.load("places", at(i), I64), ops.load("numbers", at(i), F32)
    total = reduce(kind, value(position, place, number), (j,), F32)
    stores = [Store("out", at(i), total)]
    if whole:
        shifted = ops.binary("sub", ops.load("x", at(i, j), F32), total)
        stores = [Store("wide", at(i, j), shifted)]
    return Body((i,), (j,), tuple(stores))


def results(body: Body, numbers: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    given = {
        "places": PLACES, "numbers": numbers, "x": torch.randn(ROWS, CLASSES, generator=generator),
        "out": torch.full((ROWS,), -7.0), "wide": torch.full((ROWS, CLASSES), -7.0),
    }  # fmt: skip
    run_body(body, given)
    return given["wide" if body.stores[0].buffer == "wide" else "out"]


def has_sum(body: Body) -> bool:
    return any(isinstance(node, Reduce) for node in body.nodes())


FOLDED: dict[str, Value] = {
    "ones": lambda j, t, n: hot(j, t, f32(1.0)),
    "turned": lambda j, t, n: hot(j, t, f32(1.0), turned=True),
    "numbers": hot,
    "ones times numbers": lambda j, t, n: ops.binary("mul", hot(j, t, f32(1.0)), n),
    "numbers times ones": lambda j, t, n: ops.binary("mul", n, hot(j, t, f32(1.0))),
    "numbers of their own": lambda j, t, n: ops.binary("mul", hot(j, t, n), ops.unary("exp", n)),
}
KEPT: dict[str, Value] = {
    "no zeros": lambda j, t, n: hot(j, t, f32(1.0), zero=0.5),
    "another comparison": lambda j, t, n: ops.where(ops.binary("lt", j, t), f32(1.0), f32(0.0)),
    "no position": lambda j, t, n: ops.where(
        ops.binary("eq", ops.binary("add", j, ops.const(1, I64)), t), f32(1.0), f32(0.0)
    ),
    "two places": lambda j, t, n: ops.binary("add", hot(j, t, n), hot(j, t, f32(1.0))),
    "of the position": lambda j, t, n: ops.binary("mul", hot(j, t, n), ops.cast(j, F32)),
    "one of the position": lambda j, t, n: hot(j, t, ops.cast(j, F32)),
    "numbers alone": lambda j, t, n: ops.binary("mul", n, n),
}


@pytest.mark.parametrize("numbers", [1.0, float("inf"), float("nan"), -0.0])
@pytest.mark.parametrize("name", FOLDED)
def test_folded(name: str, numbers: float) -> None:
    body = summed(FOLDED[name])
    given = torch.arange(ROWS) - 2.5
    given[2] = numbers
    folded = fold_one_hots(body)
    assert not has_sum(folded)
    assert (folded.axes, folded.reduce_axes) == (body.axes, body.reduce_axes)
    torch.testing.assert_close(results(folded, given), results(body, given), equal_nan=True)


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    body = summed(KEPT[name])
    assert fold_one_hots(body) is body


@pytest.mark.parametrize(
    ("kind", "classes", "folds"),
    [("sum", 2, True), ("sum", 1, False), ("max", 5, False), ("prod", 5, False)],
)
def test_which_reductions(kind: str, classes: int, folds: bool) -> None:
    body = summed(FOLDED["numbers"], kind, classes)
    assert (fold_one_hots(body) is not body) is folds


def test_where_elements_are_left_they_are_the_loops() -> None:
    body = summed(FOLDED["numbers"], whole=True)
    folded = fold_one_hots(body)
    assert folded.axes == (*body.axes, *body.reduce_axes)
    assert folded.reduce_axes == ()
    given = torch.arange(ROWS) - 2.5
    torch.testing.assert_close(results(folded, given), results(body, given))


def test_where_one_of_two_results_is_no_element_the_loops_stay() -> None:
    (i,), (j,) = axes(ROWS), axes(CLASSES, prefix="r")
    place, number = ops.load("places", at(i), I64), ops.load("numbers", at(i), F32)
    total = reduce("sum", hot(index_value(Expr.of(j), I64), place, number), (j,), F32)
    wide = Store("wide", at(i, j), ops.binary("sub", ops.load("x", at(i, j), F32), total))
    for stores in ((Store("out", at(i), total), wide), (wide, Store("out", at(i), total))):
        folded = fold_one_hots(Body((i,), (j,), stores))
        assert not has_sum(folded)
        assert (folded.axes, folded.reduce_axes) == ((i,), (j,))


def test_where_a_sum_is_left_the_loops_stay() -> None:
    body = summed(FOLDED["numbers"], whole=True)
    (j,) = body.reduce_axes
    (store,) = body.stores
    other = reduce("sum", ops.load("x", store.index, F32), (j,), F32)
    stores = (Store("wide", store.index, ops.binary("add", store.value, other)),)
    folded = fold_one_hots(Body(body.axes, body.reduce_axes, stores))
    assert [node for node in folded.nodes() if isinstance(node, Reduce)] == [other]
    assert (folded.axes, folded.reduce_axes) == (body.axes, body.reduce_axes)


def test_one_sum_of_two_is_left() -> None:
    (i,), (j,) = axes(ROWS), axes(CLASSES, prefix="r")
    both = summed(FOLDED["numbers"])
    (i,), (j,) = both.axes, both.reduce_axes
    other = reduce("sum", ops.load("x", at(i, j), F32), (j,), F32)
    stores = (Store("out", at(i), ops.binary("add", both.stores[0].value, other)),)
    body = Body(both.axes, both.reduce_axes, stores)
    folded = fold_one_hots(body)
    sums = [node for node in folded.nodes() if isinstance(node, Reduce)]
    assert sums == [other]
    given = torch.arange(ROWS) - 2.5
    torch.testing.assert_close(results(folded, given), results(body, given))
