"""What C++ loops are decided by, condition for condition: nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.checks import CheckKind, check_name
from fusec.ir.index import Expr, IntLike, Symbol
from fusec.ir.node import Node, const, index_value, indirect, op, recording, reduce, scan
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.columns import column_axis
from fusec.targets.cpp.plan.facts import Facts
from fusec.targets.cpp.plan.loop_tables import short_indices, tabled_nodes
from fusec.targets.cpp.plan.scatter import plan_scatter, separate_axes
from fusec.targets.cpp.plan.split_ranges import _may_repeat, fill_out, split_ranges
from fusec.targets.cpp.plan.tiles import turned_loads
from fusec.targets.cpp.plan.wanted import Wanted
from support.triton_bodies import F32, at, axes, buffer, f32

I64, I32, F64 = torch.int64, torch.int32, torch.float64


@pytest.fixture(autouse=True)
def _recorder():
    with recording():
        yield


def size(low: int = 2) -> Expr:
    return Expr.of(Symbol("n", "size", low=low))


def number(value: int) -> Node:
    return const(value, I64)


# -- tiles that are turned over -------------------------------------------------------------


def turning(
    rows: IntLike,
    columns: IntLike,
    source: Callable[[Expr, Expr], tuple[Expr, ...]] = lambda i, j: (j, i),
    **more: object,
) -> tuple[Facts, Symbol, Symbol]:
    """``out[i, j] = x[source(i, j)]``, where ``x`` is 1000 wide."""
    first, second = axes(rows, columns)
    mask = more.get("mask")
    value = ops.load("x", source(*at(first, second)), F32, mask)  # type: ignore[arg-type]
    stores = (Store("out", at(first, second), value),)
    body = Body((first, second), (), stores)
    buffers = {"x": buffer("x", (5000, 1000)), "out": buffer("out", (rows, columns))}
    buffers |= {"at": buffer("at", (rows,), I64), "ok": buffer("ok", (rows,), torch.bool)}
    return Facts(body, buffers), first, second


@pytest.mark.parametrize(
    ("columns", "wide"),
    [(8, 8), (9, 16), (16, 16), (17, 32), (64, 64), (65, 64), (3000, 64)],
)
def test_what_is_contiguous_along_another_axis_is_turned(columns: int, wide: int) -> None:
    facts, first, second = turning(40, columns)
    found = turned_loads(facts, second)
    assert found is not None
    assert found.across is first
    ((load, step),) = found.steps
    assert (load, step.constant) == (facts.body.loads()[0], 1000)
    assert (found.rows, found.columns, found.even) == (64, wide, columns % 64 == 0)


def test_a_step_of_two_is_turned() -> None:
    facts, _, last = turning(64, 64, lambda i, j: (Expr.of(0), 2 * j + i))
    found = turned_loads(facts, last)
    assert found is not None
    assert found.steps[0][1] == 2


def test_a_tile_of_symbolic_sizes_and_of_pages() -> None:
    facts, _, second = turning(size(), size())
    found = turned_loads(facts, second)
    assert found is not None
    assert (found.rows, found.columns, found.even) == (64, 64, False)
    facts, _, second = turning(40, 64)
    for width, itemsize, rows in ((1024, 4, 128), (2048, 4, 128), (1536, 4, 64), (512, 8, 64)):
        dtype = F64 if itemsize == 8 else F32
        x = buffer("x", (5000, width), dtype)
        found = turned_loads(replace(facts, buffers=facts.buffers | {"x": x}), second)
        assert found is not None
        assert found.rows == rows, width
        assert found.columns == 64


@pytest.mark.parametrize(
    ("rows", "columns", "turned"),
    [(7, 64, False), (8, 64, True), (64, 7, False), (64, 8, True), (7, 7, False), (8, 8, True)],
)
def test_short_axes_are_not_worth_a_tile(rows: int, columns: int, turned: bool) -> None:
    facts, _, last = turning(rows, columns)
    assert (turned_loads(facts, last) is not None) is turned


@pytest.mark.parametrize(
    "source",
    [
        lambda i, j: (i, j),  # contiguous along the vector
        lambda i, j: (i, Expr.of(3)),  # the same for all of it
        lambda i, j: (j // 2, i),  # not straight
        lambda i, j: (j, i // 2),
        lambda i, j: (j, i + i // 2),
        lambda i, j: (Expr.of(0), i + j),  # a window: both run along memory
        lambda i, j: (j, 2 * i),  # with gaps along both
        lambda i, j: (j * i, i),  # crossed
        lambda i, j: (j + indirect(ops.load("at", (i,), I64), Expr.of(9)), i),
    ],
    ids=[
        "straight",
        "fixed",
        "parts",
        "parts across",
        "partly",
        "window",
        "gaps",
        "crossed",
        "gathered",
    ],
)
def test_other_reads_are_not_turned(source: Callable[[Expr, Expr], tuple[Expr, ...]]) -> None:
    facts, _, last = turning(64, 64, source)
    assert turned_loads(facts, last) is None


def test_what_is_updated_or_masked_is_not_turned() -> None:
    facts, first, last = turning(64, 64)
    (store,) = facts.body.stores
    over = replace(facts, body=replace(facts.body, stores=(replace(store, buffer="x"),)))
    assert turned_loads(over, last) is None
    masked, _, last = turning(64, 64, mask=ops.load("ok", at(first), torch.bool))
    assert turned_loads(masked, last) is None


def test_the_axis_along_which_most_loads_lie_is_taken() -> None:
    i, k, j = axes(32, 32, 32)
    one, two, three = (
        ops.load("x", (Expr.of(j), Expr.of(a), Expr.of(b)), F32)
        for a, b in ((i, k), (k, i), (k, i))
    )
    other = ops.load("y", at(j, k, i), F32)
    total = ops.binary("add", ops.binary("add", one, two), ops.binary("add", three, other))
    body = Body((i, k, j), (), (Store("out", at(i, k, j), total),))
    buffers = {n: buffer(n, (32, 32, 32)) for n in ("x", "y", "z", "out")}
    found = turned_loads(Facts(body, buffers), j)
    assert found is not None
    assert found.across is i
    assert {load for load, _ in found.steps} == {two, other}


# -- loops that are split ---------------------------------------------------------------------


def chosen(test: Callable[[Expr, Expr], Node], length: IntLike = 20) -> tuple[Body, Symbol, Symbol]:
    i, j = axes(6, length)
    value = ops.where(test(Expr.of(i), Expr.of(j)), f32(1.0), f32(2.0))
    return Body((i, j), (), (Store("out", at(i, j), value),)), i, j


def lengths(bodies: list[Body]) -> list[tuple[int | None, ...]]:
    return [tuple(a.size.constant if a.size else None for a in body.axes) for body in bodies]


@pytest.mark.parametrize(
    ("name", "limit", "first"),
    [
        ("lt", 7, 7), ("ge", 7, 7), ("le", 7, 8), ("gt", 7, 8),
        ("lt", 1, 1), ("lt", 19, 19), ("le", 0, 1), ("le", 18, 19),
    ],
)  # fmt: skip
def test_a_loop_is_split_where_a_comparison_turns(name: str, limit: int, first: int) -> None:
    body, _, j = chosen(lambda i, j: op(name, (index_value(j, I64), number(limit)), torch.bool))
    found = split_ranges(body, {j})
    assert lengths(found) == [(6, first), (6, 20 - first)]
    kept = "lt" in name or "le" in name
    values = [part.stores[0].value for part in found]
    assert values == [f32(1.0), f32(2.0)][:: 1 if kept else -1]
    # the second one begins where the first one has ended
    assert found[1].stores[0].index[1] == Expr.of(found[1].axes[1]) + first


@pytest.mark.parametrize(
    "test",
    [
        lambda i, j: op("eq", (index_value(j, I64), number(7)), torch.bool),
        lambda i, j: op("lt", (number(7), index_value(j, I64)), torch.bool),
        lambda i, j: op("lt", (index_value(j, I64), number(0)), torch.bool),
        lambda i, j: op("lt", (index_value(j, I64), number(20)), torch.bool),
        lambda i, j: op("le", (index_value(j, I64), number(19)), torch.bool),
        lambda i, j: op("gt", (index_value(j, I64), number(-1)), torch.bool),
        lambda i, j: op("lt", (index_value(2 * j, I64), number(7)), torch.bool),
        lambda i, j: op("lt", (index_value(j // 2, I64), number(7)), torch.bool),
        lambda i, j: op("lt", (index_value(j + j // 2, I64), number(12)), torch.bool),
        lambda i, j: op("lt", (index_value(j + i, I64), number(7)), torch.bool),
        lambda i, j: op("lt", (index_value(i, I64), number(3)), torch.bool),  # not to be split
        lambda i, j: op("lt", (index_value(j, I64), index_value(i, I64)), torch.bool),
        lambda i, j: op("lt", (index_value(j, F32), f32(7.5)), torch.bool),
        lambda i, j: op("lt", (ops.load("x", (j,), I64), number(7)), torch.bool),
        lambda i, j: op("lt", (index_value(j, I64), index_value(size(0), I64)), torch.bool),
    ],
)
def test_what_is_not_split(test: Callable[[Expr, Expr], Node]) -> None:
    body, _, j = chosen(test)
    assert split_ranges(body, {j}) == [body]


def test_places_and_symbolic_sizes_that_are_split() -> None:
    def shifted(i: Expr, j: Expr) -> Node:
        return op("lt", (index_value(j + 3, I64), number(7)), torch.bool)

    body, _, j = chosen(shifted)
    assert lengths(split_ranges(body, {j})) == [(6, 4), (6, 16)]
    n = size(1)
    body, i, j = chosen(
        lambda i, j: op("lt", (index_value(j, I64), index_value(n, I64)), torch.bool), n + 1
    )
    found = split_ranges(body, {i, j})
    assert [part.axes[1].size for part in found] == [n, Expr.of(1)]


def test_a_loop_that_is_not_to_be_split_stays_whole() -> None:
    def both(i: Expr, j: Expr) -> Node:
        tests = [op("lt", (index_value(e, I64), number(3)), torch.bool) for e in (i, j)]
        return op("logical_and", tuple(tests), torch.bool)

    body, i, j = chosen(both)
    assert lengths(split_ranges(body, {j})) == [(6, 3), (6, 17)]
    assert lengths(split_ranges(body, {i})) == [(3, 20), (3, 20)]
    assert sorted(lengths(split_ranges(body, {i, j}))) == [(3, 3), (3, 17), (3, 20)]


def test_a_loop_is_split_into_eight_at_most() -> None:
    def many(count: int) -> Callable[[Expr, Expr], Node]:
        def test(i: Expr, j: Expr) -> Node:
            total: Node = op("lt", (index_value(j, I64), number(1)), torch.bool)
            for n in range(1, count):
                more = op("lt", (index_value(j, I64), number(2 * n + 1)), torch.bool)
                total = op("logical_xor", (total, more), torch.bool)
            return total

        return test

    def turned(i: Expr, j: Expr) -> Node:
        total: Node = op("lt", (index_value(j, I64), number(30)), torch.bool)
        for n in range(29, 19, -1):  # what is cut off first has no more conditions
            more = op("lt", (index_value(j, I64), number(n)), torch.bool)
            total = op("logical_xor", (total, more), torch.bool)
        return total

    tests = [(many(count), parts) for count, parts in ((1, 2), (6, 7), (7, 8), (9, 8))]
    for test, parts in (*tests, (turned, 8)):
        body, _, j = chosen(test, 40)
        found = lengths(split_ranges(body, {j}))
        assert len(found) == parts
        assert sum(n for _, n in found if n) == 40


def windows(edge: int, total: int, **more: object) -> tuple[Body, list[Body], dict[str, Buffer]]:
    """Sums of two neighbors, the first and the last ones alone: split at both ends."""
    (j,) = axes(total)
    inside = op("ge", (index_value(Expr.of(j), I64), number(edge)), torch.bool)
    near = ops.load("x", (Expr.of(j) + 4,), F32)
    far = ops.load("x", (Expr.of(j) + 5,), F32)
    body = Body(
        (j,), (), (Store("out", at(j), ops.where(inside, ops.binary("add", near, far), near)),)
    )
    buffers = {"x": buffer("x", (total + 10,)), "out": buffer("out", (total,))}
    return body, split_ranges(body, {j}), buffers


@pytest.mark.parametrize(
    ("edge", "total", "whole"),
    [
        (1, 32, True),  # two vectors instead of one and fifteen elements
        (4, 32, True),
        (5, 32, False),  # too many for nothing
        (1, 33, False),  # two vectors and one, or two vectors
        (1, 256, True),  # a long loop has blocks, with a mask for the rest
        (1, 257, False),
        (1, 48, True),
    ],
)
def test_an_edge_is_computed_with_the_rest_where_that_pays(
    edge: int, total: int, whole: bool
) -> None:
    body, parts, buffers = windows(edge, total)
    assert lengths(parts) == [(edge,), (total - edge,)]
    found = fill_out(body, parts, buffers)
    if not whole:
        assert found == parts
        return
    assert lengths(found) == [(total,), (edge,)]
    assert found[1] is parts[0]
    (axis,) = found[0].axes
    assert found[0].stores[0].index == (Expr.of(axis),)  # each where it was


def test_an_edge_of_each_row() -> None:
    (row,) = axes(3)
    body, parts, buffers = windows(1, 32)
    body, *parts = (replace(each, axes=(row, *each.axes)) for each in (body, *parts))
    assert lengths(fill_out(body, parts, buffers)) == [(3, 32), (3, 1)]


def test_what_lies_outside_is_not_read_for_an_edge() -> None:
    body, parts, buffers = windows(1, 32)
    short = buffers | {"x": buffer("x", (36,))}  # the last one reads beyond
    assert fill_out(body, parts, short) == parts
    assert fill_out(body, parts[:1], buffers) == parts[:1]
    n = size()
    (j,) = axes(n)
    plain = Body((j,), (), (Store("out", at(j), f32(1.0)),))
    halves = [plain, plain]
    assert fill_out(plain, halves, {"out": buffer("out", (n,))}) == halves


def test_what_another_part_reads_stays_as_it_was() -> None:
    """``x[:31] = y[:31]`` reads the last element of x, to write it as it is."""
    (j,) = axes(32)
    buffers = {name: buffer(name, (32,)) for name in ("x", "y", "z", "out")}
    last = op("ge", (index_value(Expr.of(j), I64), number(31)), torch.bool)
    for source, whole in (("y", True), ("x", False)):
        rest = ops.load(source, (Expr.of(j),), F32)
        for value in (f32(0.0), ops.load("z", (Expr.of(j),), F32)):
            body = Body((j,), (), (Store("x", at(j), ops.where(last, rest, value)),))
            parts = split_ranges(body, {j})
            assert lengths(parts) == [(31,), (1,)]
            found = fill_out(body, parts, buffers)
            assert lengths(found) == ([(32,), (1,)] if whole else [(31,), (1,)])
    other = Store("out", at(j), ops.where(last, ops.load("x", (Expr.of(j),), F32), f32(1.0)))
    parts = split_ranges(body := replace(body, stores=(*body.stores, other)), {j})
    assert fill_out(body, parts, buffers) == parts


def repeats(value: Callable[[Expr], Node], mode: str = "set", out: str = "out") -> bool:
    (i,), (r,) = axes(8), axes(4, prefix="r")
    body = Body((i,), (r,), (Store(out, at(i), value(Expr.of(i)), mode),))
    names = {"out": buffer("out", (8,)), "x": buffer("x", (8,)), "n": buffer("n", (8,), I64)}
    names["ok"] = buffer("ok", (8,), torch.bool)
    return _may_repeat(body, names)


def test_what_may_be_computed_where_nobody_wants_it() -> None:
    (r,) = axes(4, prefix="r")

    def x(i: Expr) -> Node:
        return ops.load("x", (i,), F32)

    def n(i: Expr) -> Node:
        return ops.load("n", (i,), I64)

    assert repeats(x)
    assert repeats(lambda i: ops.binary("truediv", x(i), x(i)))
    assert not repeats(x, mode="add")
    assert not repeats(lambda i: reduce("sum", ops.load("x", at(r), F32), (r,), F32))
    assert not repeats(lambda i: scan("sum", ops.load("x", at(r), F32), r, F32))
    assert not repeats(lambda i: op("floordiv", (n(i), n(i)), I64))
    body = Body((r,), (), (Store("out", at(r), f32(1.0)), Store("out", at(r), f32(2.0), "add")))
    assert not _may_repeat(body, {"out": buffer("out", (4,))}), "one of both adds"
    valid = check_name(CheckKind.INDEX, "it")
    assert not repeats(lambda i: op(valid, (ops.load("ok", (i,), torch.bool), n(i)), I64))
    for outside in (lambda i: i + 1, lambda i: i - 1):
        assert not repeats(lambda i: ops.load("x", (outside(i),), F32))  # noqa: B023
    assert repeats(lambda i: ops.load("x", (7 - i,), F32))
    assert not repeats(lambda i: ops.load("x", (indirect(n(i), Expr.of(8)),), F32))


# -- tables -------------------------------------------------------------------------------------


def rotary(
    rows: IntLike = 16,
    columns: IntLike = 64,
    angle: Callable[[Node], Node] = lambda x: ops.unary("exp", x),
    dtype: torch.dtype = F32,
) -> tuple[Facts, Node]:
    """``x[i, j] * angle(j)``; what is to be in the table."""
    i, j = axes(rows, columns)
    made = angle(index_value(Expr.of(j), dtype))
    value = ops.binary("mul", ops.load("x", at(i, j), dtype), made)
    body = Body((i, j), (), (Store("out", at(i, j), value),))
    buffers = {name: buffer(name, (rows, columns), dtype) for name in ("x", "out")}
    return Facts(body, buffers), made


@pytest.mark.parametrize(
    ("rows", "columns", "tabled"),
    [
        (16, 64, True), (15, 64, False), (16, 4096, True), (16, 4097, False), (16, 1, True),
        (16, 0, False), ("n", 64, True), (16, "n", False),
    ],
)  # fmt: skip
def test_a_table_of_what_the_last_axis_decides(
    rows: int | str, columns: int | str, tabled: bool
) -> None:
    facts, made = rotary(*(size() if n == "n" else n for n in (rows, columns)))  # type: ignore[arg-type]
    assert tabled_nodes(facts) == ([made] if tabled else [])


def test_a_table_has_what_others_use_and_is_worth_it() -> None:
    # a cheap value is computed again
    cheap, _ = rotary(angle=lambda x: ops.binary("mul", x, f32(2.0)))
    assert tabled_nodes(cheap) == []
    eight, made = rotary(
        angle=lambda x: ops.unary("sqrt", ops.binary("truediv", ops.unary("neg", x), f32(3.0)))
    )
    assert tabled_nodes(eight) == [made]  # but not what it is made of
    # of two results of such values, the one that is stored by itself as well
    (i, j), facts = eight.body.axes, eight
    alone = Store("row", at(i, j), made.args[0])
    both = replace(facts, body=replace(facts.body, stores=(*facts.body.stores, alone)))
    assert tabled_nodes(both) == [made.args[0], made]
    # nothing is kept of one loop alone, of what does not fit, or of a type that C++ has not
    (j,) = axes(64)
    value = ops.unary("exp", index_value(Expr.of(j), F32))
    assert tabled_nodes(Facts(Body((j,), (), (Store("row", at(j), value),)), {})) == []
    assert choices.SCRATCH_BYTES == 4096 * 64


def test_tables_fit_on_the_stack() -> None:
    def summed(count: int) -> Facts:
        i, j = axes(16, 4096)
        total: Node = ops.load("x", at(i, j), F32)
        for n in range(count):
            made = ops.unary("exp", ops.binary("mul", index_value(Expr.of(j), F32), f32(n + 0.5)))
            total = ops.binary("mul", total, made)
        return Facts(Body((i, j), (), (Store("out", at(i, j), total),)), {})

    assert len(tabled_nodes(summed(16))) == 16
    assert tabled_nodes(summed(17)) == []


def test_places_of_32_bits() -> None:
    def places(value: Node, bound: IntLike = 9) -> bool:
        (i,) = axes(8)
        x = ops.load("x", (indirect(value, Expr.of(bound)),), F32)
        facts = Facts(Body((i,), (), (Store("out", at(i), x),)), {})
        assert short_indices(facts) <= {value}
        return bool(short_indices(facts))

    (i,) = axes(8)
    n = ops.load("n", at(i), I64)
    assert not places(n)  # who knows
    ok = check_name(CheckKind.INDEX, "it")
    valid = ops.logical_not(ops.load("ok", at(i), torch.bool))
    assert places(op(ok, (valid, n), I64))
    assert places(op(ok, (valid, n), I64), (1 << 31) - 1)
    assert not places(op(ok, (valid, n), I64), 1 << 31)
    assert not places(op(ok, (valid, n), I64), size())
    for least, length, short in (
        (-(1 << 31), 4, True), (-(1 << 31) - 1, 4, False),
        ((1 << 31) - 4, 4, True), ((1 << 31) - 3, 4, False),
    ):  # fmt: skip
        (j,) = axes(length)
        value = op("neg", (index_value(-Expr.of(j) - least, I64),), I64)
        assert places(value) is short, least
    assert not places(op("neg", (ops.load("m", at(i), I32),), I32))  # 32 bits already


# -- updates ------------------------------------------------------------------------------------


def update(
    index: Callable[[Expr, Expr], tuple[Expr, ...]],
    sizes: tuple[IntLike, IntLike] = (300, 200),
    mode: str = "add",
) -> Facts:
    i, j = axes(*sizes)
    value = ops.load("x", at(i, j), F32)
    return Facts(Body((i, j), (), (Store("out", index(*at(i, j)), value, mode),)), {})


def row(i: Expr) -> Expr:
    return indirect(ops.load("n", (i,), I64), Expr.of(50))


def test_which_loops_update_elements_of_their_own() -> None:
    def named(facts: Facts) -> str:
        found = separate_axes(facts.body)
        return "".join(a.name for a in facts.body.axes if a in found)

    assert named(update(lambda i, j: (i, j))) == "i0i1"
    assert named(update(lambda i, j: (row(i), j))) == "i1"
    assert named(update(lambda i, j: (row(j), i))) == "i0"
    assert named(update(lambda i, j: (row(i), i))) == "i0"
    assert named(update(lambda i, j: (i, row(i) + row(j)))) == "i0"
    assert named(update(lambda i, j: (i + j, j))) == "i1"
    assert named(update(lambda i, j: (i + j, j + 1))) == ""
    assert named(update(lambda i, j: (i + 1, j))) == "i1"
    assert named(update(lambda i, j: (row(i), row(j)))) == ""
    assert named(update(lambda i, j: (row(i), row(j)), mode="set")) == "i0i1"
    one, two = update(lambda i, j: (row(i), j)), update(lambda i, j: (i, row(j)))
    i, j = one.body.axes
    moved = two.body.moved((i, j), (), dict(zip(two.body.axes, at(i, j), strict=True)))
    both = replace(one, body=replace(one.body, stores=(*one.body.stores, *moved.stores)))
    assert named(both) == ""


@pytest.mark.parametrize(
    ("sizes", "shared", "block"),
    [
        ((300, 200), "i1", 128),
        ((163, 200), None, None),  # 32,600 elements: a thread does that alone
        ((164, 200), "i1", 128),
        ((30_000, 3), None, None),  # three turns for all threads
        ((30_000, 4), "i1", 128),
        (("n", 200), "i1", 128),
        ((30_000, "n"), "i1", 128),
    ],
)
def test_what_threads_share(
    sizes: tuple[IntLike, IntLike], shared: str | None, block: int | None
) -> None:
    facts = update(lambda i, j: (row(i), j), tuple(size() if n == "n" else n for n in sizes))  # type: ignore[arg-type]
    plan = plan_scatter(facts)
    assert (plan.shared.name if plan.shared else None, plan.vector) == (shared, True)
    assert (plan.block.value if plan.block else None) == block
    assert {d.name: d.value for d in facts.decisions} == {
        "vectors": "i1", "threads": f"share {shared}" if shared else "one",
    }  # fmt: skip


def test_rows_whose_elements_find_their_places_are_shared() -> None:
    def places(i: Expr, j: Expr) -> tuple[Expr, ...]:
        both = Expr.of(indirect(ops.load("at", (i + j,), I64), 300))
        return i, both

    plan = plan_scatter(update(places, (300, 200)))
    assert plan.shared is not None
    assert (plan.shared.name, plan.vector) == ("i0", False)
    plan = plan_scatter(update(lambda i, j: places(i, j)[::-1], (300, 200)))
    assert plan.shared is not None
    assert (plan.shared.name, plan.vector) == ("i0", False)


def test_windows_are_reduced_side_by_side() -> None:
    def column(elements: IntLike, step: int = 1) -> str | None:
        i, j = axes(40, 500)
        (t,) = axes(elements)
        value = reduce(
            "sum", ops.load("x", (Expr.of(i), Expr.of(j) * step + Expr.of(t)), F32), (t,), F32
        )
        body = Body((i, j), (t,), (Store("out", at(i, j), value),))
        buffers = {"x": buffer("x", (40, 5000)), "out": buffer("out", (40, 500))}
        found = column_axis(Facts(body, buffers), forced=False)
        return found.name if found else None

    assert column(5) == column(64) == "i1"
    assert column(65) is None
    assert column(5, 2) is None


def test_the_first_loop_of_its_own_is_shared() -> None:
    both = plan_scatter(update(lambda i, j: (i, j)))
    assert both.shared is not None
    assert (both.shared.name, both.block, both.vector) == ("i0", None, True)
    outer = update(lambda i, j: (i, row(j)))
    plan = plan_scatter(outer)
    assert plan.shared is outer.body.axes[0]
    assert (plan.block, plan.vector) == (None, False)
    alone = plan_scatter(replace(outer, wanted=Wanted(settings=(("threads", 0),)), decisions=[]))
    assert (alone.shared, alone.vector) == (None, False)
    single = Facts(Body((), (), (Store("out", (), f32(1.0), "add"),)), {})
    assert plan_scatter(single).shared is None
    assert single.decisions == []
