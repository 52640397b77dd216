"""What a pass over a row stores where the same memory is still read, and how loops are cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node, const, index_value, recording, reduce
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts
from fusec.targets.cpp.plan.pointwise import _block
from fusec.targets.cpp.plan.row_passes import plan_steps
from fusec.targets.cpp.plan.wanted import Wanted
from support.triton_bodies import F32, at, axes, buffer, f32

ROWS, COLUMNS = 50, 600
SHAPES = {"x": (ROWS, COLUMNS), "m": (ROWS,), "s": (ROWS,), "t": (ROWS,), "y": (ROWS, COLUMNS)}
BUFFERS = {name: buffer(name, shape) for name, shape in SHAPES.items()}


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


def facts(*names: str) -> Facts:
    """``m += sum(x)``, ``s = sum(exp(x - max(x)) * m)``, ``x *= 2``, ``y = x - max(x)``.

    And ``t``, which is as ``s``, but takes ``m`` at the first elements of the row alone.
    """
    (i,), (j,) = axes(ROWS), axes(COLUMNS, prefix="r")
    x, m = ops.load("x", at(i, j), F32), ops.load("m", at(i), F32)
    most = reduce("max", x, (j,), F32)
    apart = ops.binary("sub", x, most)
    weighted = ops.binary("mul", ops.unary("exp", apart), m)
    first = ops.binary("lt", index_value(Expr.of(j), torch.int64), const(3, torch.int64))
    there = ops.load("m", at(i), F32, first, 1.0)
    some = ops.binary("mul", ops.unary("exp", apart), there)
    known = {
        "m": Store("m", at(i), ops.binary("add", m, reduce("sum", x, (j,), F32))),
        "s": Store("s", at(i), reduce("sum", weighted, (j,), F32)),
        "t": Store("t", at(i), reduce("sum", some, (j,), F32)),
        "x": Store("x", at(i, j), ops.binary("mul", x, f32(2.0))),
        "y": Store("y", at(i, j), apart),
    }
    return Facts(Body((i,), (j,), tuple(known[name] for name in names)), BUFFERS)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    "names",
    ["x", "m", "xs", "ms", "xy", "my", "xm", "xms", "xmy", "xmsy", "ysmx", "mt", "mst", "mtx"],
)
def test_all_of_a_point_is_read_before_it_is_written(names: str, keep: bool) -> None:
    given = facts(*names)
    passes = plan_steps(given, keep=keep).passes
    stored = [s.buffer for step in passes for s in (*step.row_stores, *step.stores)]
    assert sorted(stored) == sorted(names)
    for name in given.updated:
        reading = [
            number
            for number, step in enumerate(passes)
            if any(isinstance(n, Load) and n.buffer == name for n in (*step.before, *step.inside))
        ]
        for number, step in enumerate(passes):
            whole = any(store.buffer == name for store in step.stores)
            single = any(store.buffer == name for store in step.row_stores)
            assert not whole or number >= reading[-1]
            # what is stored before a loop is read in none from there on
            assert not single or number > reading[-1] or not step.loops
    for step in passes:
        needed: list[Node] = [store.value for store in step.stores]
        assert all(isinstance(n, Load) or n in step.inside or n in step.before for n in needed)


def test_what_is_not_read_again_is_stored_at_once() -> None:
    first, *_ = plan_steps(facts("x"), keep=False).passes
    assert [store.buffer for store in first.stores] == ["x"]


@pytest.mark.parametrize(
    ("outer", "length", "settings", "cut"),
    [
        (1, 1_000_000, (), True),
        (choices.UNITS - 1, 1_000_000, (), True),
        (choices.UNITS, 1_000_000, (), False),
        (1, 100, (), False),
        (1, None, (), True),
        (1, 1_000_000, (("threads", 0),), False),
        (1, 1_000_000, (("threads", 1),), True),
    ],
)
def test_a_long_loop_is_cut_for_the_threads(
    outer: int, length: int | None, settings: tuple[tuple[str, int], ...], cut: bool
) -> None:
    size = Expr.of(Symbol("n", "size", low=0) if length is None else length)
    i, j = axes(outer, size)
    body = Body((i, j), (), (Store("y", at(i, j), ops.load("x", at(i, j), F32)),))
    given = Facts(body, BUFFERS, wanted=Wanted(settings=settings))
    found = _block(given, (i,), j)
    assert (found is not None) is cut
    if found is not None:
        assert (found.name, found.value) == ("BLOCK", choices.BLOCK)
    assert [d.name for d in given.decisions] == ["block"] * cut


def test_the_grain_of_a_cut_loop() -> None:
    def cut(length: int) -> bool:
        (i,), (j,) = axes(1), axes(length)
        body = Body((i, j), (), (Store("y", at(i, j), ops.load("x", at(i, j), F32)),))
        return _block(Facts(body, BUFFERS), (i,), j) is not None

    least = choices.grain(0)
    assert cut(least)
    assert not cut(least - 1)
