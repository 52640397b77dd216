"""What one walk over rows cannot express is refused."""

from __future__ import annotations

import pytest

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.node import recording
from fusec.schedule.align import Refusal, _check_levels
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
