"""Sizes of writes, asked of one call: what is refused for which reason, and what is not."""

from __future__ import annotations

import logging
import operator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fusec.graph.refusals import grown
from fusec.graph.refusals.shapes import refused_write
from support.captured import call_of

SHARED, PARTLY, SIZES = "share memory", "at other indices", "do not fit"
X, Y, V = torch.zeros(6, 8), torch.zeros(6, 2), torch.zeros(8)
ROWS = torch.tensor([1, 2, 3])
COLUMNS = torch.tensor([[0], [1]])
MASK = torch.zeros(6, dtype=torch.bool)
aten = torch.ops.aten


def base(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


LINE, SQUARE = base(12), base(4, 4)
CASES: list[tuple[str, str, Any, tuple[Any, ...], dict[str, Any]]] = [
    # What is computed in place.
    ("a number raised by a row", SIZES, "pow_", (base(), V), {}),
    ("a row of one and a row", SIZES, "remainder_", (base(1), V), {}),
    ("a row and a matrix", SIZES, operator.iadd, (V, X), {}),
    ("a row, mixed with a matrix", SIZES, "addcmul_", (V, V, X), {}),
    ("a matrix and a row", "", "xlogy_", (X, V), {}),
    ("a matrix and a number", "", operator.imul, (X, base()), {}),
    ("a row and a row of one in two dimensions", SIZES, "copysign_", (V, base(1, 1)), {}),
    ("a row and a matrix, in no place", "", "pow", (V, X), {}),
    # What is written at an index.
    ("a slice", "", torch.slice_scatter, (X, Y, 1, 2, 4), {}),
    ("a slice by its step", "", torch.slice_scatter, (X, base(6, 4), 1), {"step": 2}),
    ("the first rows", "", torch.slice_scatter, (X, base(2, 8)), {"end": 2}),
    ("the last rows", "", torch.slice_scatter, (X, base(4, 8)), {"start": 2}),
    ("all rows", "", torch.slice_scatter, (X, base(6, 8)), {}),
    ("rows, one too few", SIZES, torch.slice_scatter, (X, base(1, 8)), {"end": 2}),
    ("rows that lack a dimension", SIZES, torch.slice_scatter, (X, V), {}),
    ("a slice too wide", SIZES, "slice_scatter", (X, Y, 1, 2, 5), {}),
    ("a row", "", "select_scatter", (X, V, 0, 5), {}),
    ("a row of one", SIZES, "select_scatter", (X, V[:1], 0, 5), {}),
    ("a row outside", SIZES, "select_scatter", (X, V, 0, 6), {}),
    ("a diagonal", "", torch.diagonal_scatter, (X, V[:6]), {}),
    ("a diagonal of a square", "", torch.diagonal_scatter, (SQUARE, V[:4].clone()), {}),
    ("a diagonal above", "", torch.diagonal_scatter, (X, V[:5], 3), {}),
    ("a diagonal below", "", torch.diagonal_scatter, (X, V[:5], -1), {}),
    ("a diagonal too short", SIZES, torch.diagonal_scatter, (X, V[:5]), {}),
    ("a diagonal, turned", "", torch.diagonal_scatter, (X, V[:3], 3), {"dim1": 1, "dim2": 0}),
    ("rows added", "", "index_add", (X, 0, ROWS, X[:3].clone()), {}),
    ("columns added", "", "index_add_", (X, -1, ROWS, base(6, 3)), {"alpha": 2}),
    ("rows added, broadcast", SIZES, torch.index_add, (X, 0, ROWS, base(3, 1)), {}),
    ("columns added, broadcast", SIZES, torch.index_add, (X, 1, ROWS, base(1, 3)), {}),
    ("rows of another rank added", SIZES, torch.index_add, (X, 0, ROWS, V[:3].clone()), {}),
    ("a number added to one", SIZES, torch.index_add, (base(), 0, ROWS[:1], base(1)), {}),
    ("a number added to a row", SIZES, torch.index_add, (base(4), 0, ROWS[:1], base()), {}),
    ("rows taken", "", torch.index_select, (X, 0, ROWS), {}),
    ("rows taken by a number", "", torch.index_select, (X, 0, torch.tensor(1)), {}),
    ("rows taken by a matrix", SIZES, "index_select", (X, 0, COLUMNS), {}),
    ("elements put", "", "index_put", (X, (ROWS,), base(3, 8)), {}),
    ("one row put three times", "", "index_put", (X, (ROWS,), base(1, 8)), {}),
    ("one number put", "", torch.index_put, (X, (ROWS,), base()), {"accumulate": True}),
    ("a column put", "", "index_put_", (X, (ROWS, COLUMNS), base(2, 1)), {}),
    ("columns put", "", "index_put", (X, (None, ROWS), base(6, 3)), {}),
    ("columns put that do not fit", SIZES, "index_put", (X, (None, ROWS), base(6, 2)), {}),
    ("two rows put in three places", SIZES, "index_put", (X, (ROWS,), base(2, 8)), {}),
    ("too many dimensions put", SIZES, "index_put", (X, (ROWS,), base(1, 3, 8)), {}),
    ("put by a mask", "", "index_put", (X, (MASK,), base(5, 8)), {}),
    ("put by a mask of bytes", "", "index_put", (X, (MASK.byte(), None), base(5, 8)), {}),
    ("put by a mask beside indices", "", "index_put", (X, (MASK, ROWS), base(2, 2)), {}),
    ("numbers put in their order", "", "put_", (X, ROWS, V[:3].clone()), {}),
    ("numbers put, one too few", SIZES, "put_", (X, ROWS, V[:2].clone()), {}),
    ("numbers put in a matrix of places", "", "put_", (X, COLUMNS, V[:2].clone()), {}),
    ("numbers put into nothing", SIZES, "put_", (base(0), ROWS, V[:3].clone()), {}),
    ("no numbers put into nothing", "", "put_", (base(0), ROWS[:0], V[:0].clone()), {}),
    ("no numbers put", "", "put_", (X, ROWS[:0], V[:0].clone()), {}),
    ("assigned rows", "", operator.setitem, (X, ROWS, base(3, 8)), {}),
    ("assigned rows of one more dimension", "", operator.setitem, (X, ROWS, base(1, 1, 3, 8)), {}),
    ("assigned two rows", SIZES, operator.setitem, (X, ROWS, base(2, 8)), {}),
    ("assigned two more", SIZES, operator.setitem, (X, ROWS, base(2, 3, 8)), {}),
    ("assigned two, one dimension more", SIZES, operator.setitem, (X, ROWS, base(1, 2, 8)), {}),
    ("assigned columns", "", operator.setitem, (X, (slice(None), ROWS), base(6, 1)), {}),
    ("assigned five columns", SIZES, operator.setitem, (X, (slice(None), ROWS), base(6, 2)), {}),
    ("assigned a number", "", operator.setitem, (X, ROWS, 1.0), {}),
    ("assigned by a mask", "", operator.setitem, (X, MASK, base(5, 8)), {}),
    ("assigned by a mask and rows that do not fit", SIZES, operator.setitem,
     (X, (MASK[:2], torch.tensor([0, 1])), 1.0), {}),
    ("assigned by rows and a mask that does not fit", SIZES, operator.setitem,
     (X, (ROWS, torch.ones(5, dtype=torch.bool)), 1.0), {}),
    ("assigned by bytes", "", operator.setitem, (X, MASK.byte(), base(5, 8)), {}),
    ("assigned by a mask beside rows", "", operator.setitem, (X, (MASK, ROWS), base(9)), {}),
    ("assigned to a view", "", operator.setitem, (X, 2, base(9)), {}),  # tracing sees that
    # Memory that is written to twice.
    ("expanded", SHARED, "mul_", (V.expand(3, 8), 2), {}),
    ("expanded once", "", "mul_", (V.expand(1, 8), 2), {}),
    ("expanded, none of it", "", "mul_", (V.expand(0, 8), 2), {}),
    ("expanded beside one", SHARED, "mul_", (V.expand(3, 1, 8), 2), {}),
    ("one, of no distance", "", "mul_", (V.as_strided((1, 8), (0, 1)), 2), {}),
    ("expanded, read alone", "", "mul", (V.expand(3, 8), 2), {}),
    ("expanded, as a function", SHARED, torch.clamp_, (V.expand(3, 8), 2), {}),
    ("expanded, by an operator", SHARED, operator.iadd, (V.expand(3, 8), 2), {}),
    ("expanded, assigned", SHARED, operator.setitem, (V.expand(3, 8), ROWS[:1], 1.0), {}),
    ("expanded, into", SHARED, torch.add, (base(3, 8), 1), {"out": V.expand(3, 8)}),
    ("expanded, into the second", SHARED, torch.max, (base(3, 8), 1),
     {"out": (base(3), torch.zeros(1, dtype=torch.int64).expand(3))}),
    ("expanded, seen otherwise", "", "squeeze_", (V.expand(3, 8),), {}),
    ("expanded, a method of Python", "", "__add__", (V.expand(3, 8), 1), {}),
    ("windows", SHARED, "add_", (LINE.unfold(0, 3, 1), 1), {}),
    ("windows side by side", "", "add_", (LINE.unfold(0, 3, 3), 1), {}),
    ("windows one apart", "", "add_", (LINE.unfold(0, 3, 4), 1), {}),
    ("windows of one too many", SHARED, "add_", (LINE.unfold(0, 4, 3), 1), {}),
    ("columns first", "", "add_", (SQUARE.t(), 1), {}),
    ("rows one short of overlapping", "", "add_", (LINE.as_strided((3, 2), (2, 1)), 1), {}),
    ("a number, stretched", SHARED, "add_", (base(1).expand(2), 1), {}),
    ("a sparse tensor", "", "add_", (base(3, 3).to_sparse(), base(3, 3).to_sparse()), {}),
    # Memory that is read and written.
    ("its neighbors", PARTLY, "add_", (LINE[1:], LINE[:-1]), {}),
    ("its neighbors before", PARTLY, "add_", (LINE[:-1], LINE[1:]), {}),
    ("its halves", "", "add_", (LINE[:6], LINE[6:]), {}),
    ("its halves, turned round", "", "add_", (LINE[6:], LINE[:6]), {}),
    ("itself", "", "add_", (LINE, LINE), {}),
    ("itself as another tensor", "", "add_", (LINE, LINE.view(12)), {}),
    ("itself in another form", PARTLY, "add_", (SQUARE, SQUARE.view(16)), {}),
    ("itself with a dimension more", PARTLY, "add_", (LINE.view(12, 1), LINE), {}),
    ("its transpose", PARTLY, "mul_", (SQUARE, SQUARE.t()), {}),
    ("its first row", PARTLY, "add_", (SQUARE, SQUARE[0]), {}),
    ("its first column, with gaps", "", "add_", (SQUARE, SQUARE[:, 0]), {}),
    ("its own column, from rows", "", "add_", (SQUARE[:, 0], SQUARE[0]), {}),
    ("another tensor", "", "add_", (SQUARE, base(4, 4)), {}),
    ("another tensor, turned", "", "add_", (SQUARE, base(4, 4).t()), {}),
    ("no tensor", "", "add_", (SQUARE, 3), {}),
    ("into its neighbors", PARTLY, torch.add, (LINE[1:], 1), {"out": LINE[:-1]}),
    ("into its neighbors, one of two", PARTLY, torch.max, (LINE[1:].view(1, 11), 0),
     {"out": (LINE[:-1], torch.zeros(11, dtype=torch.int64))}),
    ("into nothing", "", torch.add, (LINE[1:], 1), {"out": None}),
    ("from its neighbors by name", PARTLY, "add_", (LINE[1:],), {"other": LINE[:-1]}),
    ("assigned from its neighbors", "", operator.setitem, (LINE[:-1], ROWS, LINE[1:4]), {}),
    ("bytes of the same numbers", PARTLY, "add_", (LINE.view(torch.uint8)[4:], LINE[:-1]), {}),
    ("bytes after the numbers", "", "add_", (LINE.view(torch.uint8)[24:30], LINE[:6]), {}),
    # What is no write.
    ("a function of the user's", "", len, (V.expand(3, 8),), {}),
    ("resized", "", "resize_", (V.expand(3, 8), 2), {}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: CASES[n][0])
def test_reasons(number: int) -> None:
    _, reason, target, args, kwargs = CASES[number]
    node = call_of(target, *args, **kwargs)
    found = refused_write(node)
    assert found.startswith(node.name) if reason else not found, found
    assert found.endswith(reason)


def test_operators_that_are_torchs_and_others() -> None:
    taken = torch.ops.aten.index_select
    assert SIZES in refused_write(call_of(taken, X, 0, COLUMNS))
    with torch.library._scoped_library("sizes_of_mine", "FRAGMENT") as library:
        library.define("index_select(Tensor x, int dim, Tensor i) -> Tensor")
        mine = torch.ops.sizes_of_mine.index_select
        assert not refused_write(call_of(mine, X, 0, COLUMNS))


def test_parts_of_a_batch_are_not_judged() -> None:
    found = []

    def one(x: torch.Tensor) -> torch.Tensor:
        found.append(refused_write(call_of(torch.index_select, x, 0, COLUMNS)))
        return x

    torch.vmap(one)(base(3, 6, 8))
    assert found == [""]


def test_symbolic_sizes_are_compared_as_they_are_now() -> None:
    """An unbacked size says nothing; one with a value is taken for that, without a guard."""
    shapes = ShapeEnv()
    with FakeTensorMode(shape_env=shapes):
        unknown = shapes.create_unbacked_symint()
        assert not refused_write(call_of("add_", torch.empty(1, 8).expand(unknown, 8), 1))
        assert not refused_write(call_of("index_put", torch.empty(6, unknown), (torch.empty(
            3, dtype=torch.int64),), torch.empty(3, 5)))  # fmt: skip


@pytest.mark.parametrize("target", ["mul_", "addcdiv_"])
def test_what_is_asked_on_purpose_is_no_failure_in_a_log(target: str) -> None:
    logged: list[logging.LogRecord] = []
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addFilter(logged.append)  # type: ignore[arg-type]
    grown._grow.clear()  # whoever asked before
    try:
        node = call_of(target, torch.ones(2), *[torch.ones(3, 2)] * (1 + (target != "mul_")))
        grown._grows(target, node.args[0], (node.args[1:], {}), set())
    finally:
        log.removeFilter(logged.append)  # type: ignore[arg-type]
    assert not logged
    assert not log.disabled


def test_each_of_a_list_has_the_size_of_its_place() -> None:
    x, small = torch.ones(2, 3), torch.ones(3)
    for refused, places, values in (
        (False, [x, x], [small, x]),
        (True, [small, x], [x, x]),
        (True, [x, small], [x, x]),
        (True, [small, small], [x, x]),
    ):
        assert bool(refused_write(call_of(torch._foreach_add_, places, values))) is refused
