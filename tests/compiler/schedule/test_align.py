"""What one walk over rows cannot express is refused."""

from __future__ import annotations

import pytest

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.node import recording
from fusec.schedule.align import Refusal, _check_levels, merge
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
