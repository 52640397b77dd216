"""What one walk over rows cannot express is refused."""

from __future__ import annotations

import pytest

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr
from fusec.ir.node import Load, Node, recording
from fusec.schedule.align import (
    Refusal,
    _check_levels,
    _check_overwrites,
    _reindexed,
    _value_at,
    merge,
)
from support.triton_bodies import F32, at, axes, read


@pytest.mark.parametrize(
    ("sizes", "refused"), [((1, 4, 3), True), ((4, 5, 3), True), ((1, 1, 3), False)]
)
def test_a_sum_over_a_part_of_the_reduced_dimensions(
    sizes: tuple[int, int, int], refused: bool
) -> None:
    """Dimensions of size one beside it are no part."""
    with recording():
        (i,) = axes(2)
        first, second, third = axes(*sizes)
        value = ops.reduce("sum", read("x", at(i, first, second, third), F32), (third,), F32)
        body = Body((i,), (first, second, third), (Store("out", at(i), value),))
        assert isinstance(_check_levels(body), Refusal) == refused


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_value_of_each_row_goes_beside_the_sum_of_rows(first: bool) -> None:
    """It has no place in the rows' elements, and one in the rows."""
    with recording():
        (i,), (r,) = axes(4), axes(6, prefix="r")
        total = ops.reduce("sum", read("x", at(i, r), F32), (r,), F32)
        rows = Body((i,), (r,), (Store("total", at(i), total),))
        (j,) = axes(4)
        each = Body((j,), (), (Store("half", at(j), ops.unary("neg", read("y", at(j), F32))),))
        merged = merge(*((each, rows) if first else (rows, each)))
    assert not isinstance(merged, Refusal)
    assert len(merged.axes) == len(merged.reduce_axes) == 1
    assert {store.buffer for store in merged.stores} == {"total", "half"}


def test_what_fits_neither_rows_nor_elements_stays_apart() -> None:
    with recording():
        (i,), (r,) = axes(4), axes(6, prefix="r")
        total = ops.reduce("sum", read("x", at(i, r), F32), (r,), F32)
        rows = Body((i,), (r,), (Store("total", at(i), total),))
        (j,) = axes(5)
        each = Body((j,), (), (Store("half", at(j), ops.unary("neg", read("y", at(j), F32))),))
        assert isinstance(merge(rows, each), Refusal)
        (k,), (s,) = axes(4), axes(7, prefix="s")
        other = ops.reduce("sum", read("z", at(k, s), F32), (s,), F32)
        longer = Body((k,), (s,), (Store("other", at(k), other),))
        refused = merge(rows, longer)
        (k,), (s,) = axes(5), axes(6, prefix="s")
        other = ops.reduce("sum", read("z", at(k, s), F32), (s,), F32)
        assert isinstance(merge(rows, Body((k,), (s,), (Store("other", at(k), other),))), Refusal)
    assert isinstance(refused, Refusal)
    assert "reduce over different dimensions" in refused.reason


def stored(body_index: tuple[Expr, ...], value: Node, **given: str) -> Store:
    return Store("a", body_index, value, **given)


def test_a_stored_value_at_another_place() -> None:
    """Its terms move along; a reduction's value does not, unless it binds what moves."""
    with recording():
        i, j, k = axes(4, 6, 5)
        (r,) = axes(6, prefix="r")
        x, zero = ops.load("x", at(i, j), F32), Expr.of(0)
        place = (Expr.of(i), Expr.of(k) + 1)
        moved = _reindexed(stored(at(i, j), x), ops.load("a", place, F32))
        assert isinstance(moved, Load)
        assert moved.index == place
        both = _reindexed(stored(at(i, j), x), ops.load("a", (Expr.of(k), Expr.of(k)), F32))
        assert isinstance(both, Load)
        assert both.index == at(k, k)
        # one that is no loop's position must be the same constant
        flat = stored((Expr.of(i), zero), ops.load("x", (Expr.of(i), zero), F32))
        assert _reindexed(flat, ops.load("a", (Expr.of(k), zero), F32)) is not None
        assert _reindexed(flat, ops.load("a", (Expr.of(k), Expr.of(1)), F32)) is None
        twice = stored((2 * Expr.of(i),), ops.load("x", at(i, i), F32))
        assert _reindexed(twice, ops.load("a", (2 * Expr.of(i),), F32)) is None
        # a diagonal has no element off it
        diagonal = stored(at(i, i), ops.load("x", at(i, i), F32))
        assert _reindexed(diagonal, ops.load("a", at(k, k), F32)) is not None
        assert _reindexed(diagonal, ops.load("a", at(k, j), F32)) is None
        # computed of a loop that its place says nothing of
        assert _reindexed(stored((Expr.of(i),), x), ops.load("a", at(k), F32)) is None
        # of reductions
        row = ops.reduce("sum", ops.load("x", at(i, r), F32), (r,), F32)
        of_row = ops.binary("sub", ops.load("x", at(i, r), F32), row)
        assert _reindexed(stored(at(i, r), of_row), ops.load("a", at(i, k), F32)) is not None
        assert _reindexed(stored(at(i, r), of_row), ops.load("a", at(k, r), F32)) is None
        assert _reindexed(stored(at(i, r), of_row), ops.load("a", at(k, k), F32)) is None
        running = ops.scan("sum", ops.load("x", at(i, j), F32), j, F32)
        assert _reindexed(stored(at(i, j), running), ops.load("a", at(i, k), F32)) is None


def test_the_value_of_an_element_that_is_read() -> None:
    with recording():
        i, k = axes(4, 6)
        x = ops.load("x", at(i), F32)
        load = ops.load("a", at(i), F32)
        assert _value_at(stored(at(i), x), load) is x
        assert isinstance(_value_at(stored(at(i), x, mode="add"), load), Refusal)
        assert isinstance(_value_at(stored(at(i), x, mode="sum"), load), Refusal)
        other = _value_at(stored((2 * Expr.of(i),), x), ops.load("a", at(k), F32))
        assert isinstance(other, Refusal)
        assert "reads other elements" in other.reason


@pytest.mark.parametrize(
    ("reads", "shift", "writes", "into", "reason"),
    [
        ("x", 0, "a", "z", ""),
        ("x", 0, "a", "x", ""),  # the element that was read
        ("x", 1, "a", "x", "x is overwritten while other elements are needed"),
        ("x", 1, "a", "z", ""),
        ("x", 0, "a", "a", "both write a"),
        ("x", 0, "ab", "a", "both write a"),
        ("x", 0, "ab", "b", "both write b"),
        ("x", 0, "ab", "z", ""),
    ],
)
def test_what_is_overwritten(reads: str, shift: int, writes: str, into: str, reason: str) -> None:
    with recording():
        (i,) = axes(4)
        value = ops.load(reads, (Expr.of(i) + shift,), F32)
        producer = Body((i,), (), tuple(Store(each, at(i), value) for each in writes))
        consumer = Body((i,), (), (Store(into, at(i), ops.load("y", at(i), F32)),))
        refused = _check_overwrites(producer, consumer)
    assert (refused.reason if refused else "") == reason
