"""Rows and columns in one kernel, products and their readers: conditions, nothing compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr, IntLike, Symbol
from fusec.ir.node import Node, dot, load, recording, reduce, scan
from fusec.ir.program import Compute, Program, TensorRef
from fusec.schedule import choices, choices_products
from fusec.schedule.align import Refusal
from fusec.schedule.fusion_groups import Groups
from fusec.schedule.overrides import FORBIDDEN, Overrides, pair
from fusec.schedule.products import STAND_IN, as_sum, join_product, loops_of, without_product
from fusec.schedule.row_and_column import (
    Crossed,
    _cross,
    _free_name,
    _join_rests,
    _may_cross,
    _turned_sizes,
    column_sums,
    cross_all,
    one_row_axis,
)
from support.triton_bodies import F32, at, axes, buffer, f32

ROWS, COLUMNS = 4096, 96
SHAPES: dict[str, tuple[int, ...]] = dict.fromkeys("xgtu", (ROWS, COLUMNS))
SHAPES |= {"row": (ROWS,), "other": (ROWS,), "column": (COLUMNS,), "second": (COLUMNS,)}
BUFFERS = {name: buffer(name, shape) for name, shape in SHAPES.items()}


@pytest.fixture(autouse=True)
def _recorder():
    with recording():
        yield


def rows(name: str = "rows", into: str = "row", also: str = "") -> Compute:
    """A sum of each row; and what it makes of the row."""
    (i,), (j,) = axes(ROWS), axes(COLUMNS, prefix="r")
    x = ops.load("x", at(i, j), F32)
    total = reduce("sum", x, (j,), F32)
    stores = [Store(into, at(i), total)]
    if also:
        stores.append(Store(also, at(i, j), ops.binary("sub", x, total)))
    return Compute(name, Body((i,), (j,), tuple(stores)), "norm")


def columns(
    source: str = "x", into: str = "column", name: str = "columns", **more: object
) -> Compute:
    (j,), (i,) = axes(COLUMNS), axes(ROWS, prefix="r")
    value = ops.load(source, at(i, j), F32)
    total = reduce(str(more.get("kind", "sum")), value, (i,), F32)
    return Compute(name, Body((j,), (i,), (Store(into, at(j), total),)), "sum")


def ref(name: str) -> TensorRef:
    return TensorRef(name, BUFFERS[name].shape, BUFFERS[name].strides, Expr.of(0), F32)


def group(*steps: Compute, outputs: tuple[str, ...] = ("row", "column")) -> Groups:
    program = Program(("x", "g"), {}, BUFFERS, steps, tuple(map(ref, outputs)))
    return Groups(program, steps, {})


def crossed(groups: Groups) -> Crossed:
    found = _cross(groups, 0, 1, 0, wanted=True)
    assert isinstance(found, Crossed)
    return found


def test_the_kernel_of_rows_leaves_a_sum_for_each_piece() -> None:
    found = crossed(group(rows(), columns()))
    (part,) = found.parts
    kept, summed = found.kernel.stores
    assert (kept.buffer, kept.mode, summed.buffer, summed.mode) == (
        "row", "set", part.name, "sum",
    )  # fmt: skip
    piece = found.kernel.rows_of_piece
    assert part.shape == (Expr.of(-(-ROWS // piece)), Expr.of(COLUMNS))
    assert (part.name, part.dtype, part.hint) == ("columns_part0", F32, "column_sums")
    assert found.rest.reads() == (part.name,)
    assert found.rest.writes() == ("column",)
    assert [axis.size for axis in found.rest.reduce_axes] == [part.shape[0]]
    # a name that another buffer has is left alone
    taken = group(rows(), columns())
    taken.buffers["columns_part0"] = BUFFERS["x"]
    assert crossed(taken).parts[0].name == "columns_part0_"
    assert _free_name("a", {"a": BUFFERS["x"], "a_": BUFFERS["x"]}) == "a__"


@pytest.mark.parametrize(("outputs", "read", "stored"), [
    (("row", "column"), False, False), (("row", "column", "t"), False, True),
    (("row", "column"), True, True),
])  # fmt: skip
def test_what_the_sums_alone_need_is_not_written(
    outputs: tuple[str, ...], read: bool, stored: bool
) -> None:
    steps = [rows(also="t"), columns("t")]
    if read:
        steps.append(columns("t", "second", "again"))
    found = crossed(group(*steps, outputs=outputs))
    assert ("t" in found.kernel.writes()) is stored
    assert "row" in found.kernel.writes()


def test_what_does_not_pay_has_a_reason() -> None:
    assert isinstance(_cross(group(rows(), columns()), 0, 1, 0, wanted=False), Refusal)


def test_one_axis_counts_all_rows() -> None:
    i, j = axes(6, 5)
    (r,) = axes(7, prefix="r")
    total = reduce("sum", ops.load("x", at(i, j, r), F32), (r,), F32)
    body = Body((i, j), (r,), (Store("out", at(i, j), total),))
    found = one_row_axis(body)
    (row,) = found.axes
    assert (row.name, row.kind, row.size) == ("i0", "axis", Expr.of(30))
    assert found.stores[0].index == (Expr.of(row) // 5, Expr.of(row) % 5)
    assert found.reduce_axes == (r,)
    assert one_row_axis(found) is found
    none = Body((), (r,), (Store("out", (), reduce("sum", ops.load("x", at(r), F32), (r,), F32)),))
    assert [axis.size for axis in one_row_axis(none).axes] == [Expr.of(1)]


def test_sums_of_columns() -> None:
    plain = columns().body
    (j,), (i,) = plain.axes, plain.reduce_axes
    (total,) = plain.roots
    assert column_sums(plain) == (total,)

    def of(value: Node, **changes: object) -> object:
        stores = changes.pop("stores", (Store("column", at(j), value),))
        return column_sums(replace(plain, stores=stores, **changes))  # type: ignore[arg-type]

    x = ops.load("x", at(i, j), F32)
    assert of(ops.unary("exp", total)) == (total,)
    assert of(reduce("max", x, (i,), F32)) is None
    assert of(ops.binary("add", total, reduce("max", x, (i,), F32))) is None
    assert of(ops.load("column", at(j), F32)) is None  # no sum at all
    assert of(reduce("sum", ops.load("n", at(i, j), torch.int64), (i,), torch.int64)) is None
    assert of(reduce("sum", ops.cast(x, torch.float64), (i,), torch.float64)) is not None
    assert of(reduce("sum", x, (i,), torch.float64)) is None
    assert of(total, reduce_axes=()) is None
    assert of(total, stores=(Store("column", at(j), total, "add"),)) is None
    mean = ops.binary("sub", x, ops.binary("truediv", total, f32(ROWS)))
    assert of(reduce("sum", mean, (i,), F32)) is None  # sums of what sums have made
    assert of(ops.reduce("sum", scan("sum", x, i, F32), (i,), F32)) is None
    stored = Store("t", at(i, j), mean)
    assert of(total, stores=(Store("column", at(j), total), stored)) is None
    alone = Store("t", at(i, j), ops.unary("exp", x))
    assert of(total, stores=(Store("column", at(j), total), alone)) == (total,)
    (one,) = axes(1, prefix="k")
    wide = reduce("sum", x, (i, one), F32)
    assert of(wide, reduce_axes=(i, one)) == (wide,)
    (two,) = axes(2, prefix="k")
    assert of(total, reduce_axes=(i, two)) is None
    k, m = axes(8, prefix="k"), axes(12, prefix="m")
    made = dot(ops.load("x", at(i, *k), F32), ops.load("x", at(*k, *m), F32), k, F32, "ieee")
    product = Body((i, *m), k, (Store("t", at(i, *m), made),))
    assert column_sums(product) is None


def test_sizes_that_are_turned() -> None:
    assert _turned_sizes(rows().body, columns().body)
    assert not _turned_sizes(rows().body, rows().body)
    short = columns().body
    for axes_of in ("axes", "reduce_axes"):
        other = replace(short, **{axes_of: axes(7)})
        assert not _turned_sizes(rows().body, other)


def test_who_may_cross() -> None:
    def may(first: Compute, second: Compute, mutated: str = "", *more: Compute) -> bool:
        return _may_cross(group(first, second, *more), 0, 1, {mutated} - {""})

    assert may(rows(), columns())
    for name in ("x", "row", "column"):
        assert not may(rows(), columns(), name)
    assert may(rows(), columns(), "g")
    assert not may(rows(), columns(kind="max"))
    assert not may(rows(), rows("again", "other"))
    (store,) = rows().body.stores
    plain = rows().body
    (i,), (j,) = plain.axes, plain.reduce_axes
    x = ops.load("x", at(i, j), F32)
    assert not may(Compute("rows", replace(plain, stores=(Store("t", at(i, j), x),))), columns())
    assert not may(Compute("rows", replace(plain, stores=(replace(store, mode="add"),))), columns())
    scanned = Store("t", at(i, j), scan("sum", x, j, F32))
    assert not may(Compute("rows", replace(plain, stores=(scanned,))), columns())
    # it needs the sums itself, or another step needs rows and gives columns
    more = ops.binary("add", store.value, ops.load("column", (Expr.of(0),), F32))
    needs = Compute("rows", replace(plain, stores=(replace(store, value=more),)))
    assert not _may_cross(group(columns(), needs), 1, 0, set())
    between = rows("between", "other")
    (given,) = between.body.stores
    value = ops.binary("add", given.value, ops.load("row", given.index, F32))
    between = replace(between, body=replace(between.body, stores=(replace(given, value=value),)))
    last = columns()
    (total,) = last.body.roots
    more = ops.binary("add", total, ops.load("other", (Expr.of(0),), F32))
    last = replace(
        last, body=replace(last.body, stores=(replace(last.body.stores[0], value=more),))
    )
    assert not _may_cross(group(rows(), between, last), 0, 2, set())
    assert _may_cross(group(rows(), between, columns()), 0, 2, set())
    # tensors of two devices
    groups = group(rows(), columns())
    groups.buffers["column"] = buffer("column", (COLUMNS,), device="cuda")
    assert not _may_cross(groups, 0, 1, set())


def test_rows_and_columns_that_pay() -> None:
    groups = group(rows(), columns())
    (decision,) = cross_all(groups, Overrides(), set())
    parts = [b for name, b in groups.buffers.items() if name not in BUFFERS]
    saved = ROWS * COLUMNS * 4 - sum(2 * choices.buffer_bytes(part) for part in parts)
    assert (decision.producer, decision.consumer, decision.fused) == ("rows", "columns", True)
    assert decision.bytes_saved == saved
    assert f"save {saved:,} bytes" in decision.reason
    kernel, rest = groups.in_order()
    assert (kernel.name, rest.name) == ("rows", "columns")
    assert isinstance(kernel, Compute)
    assert kernel.label == "norm + sum"
    apart = Overrides(apart=frozenset({pair("rows", "columns")}))
    groups = group(rows(), columns())
    (decision,) = cross_all(groups, apart, set())
    assert (decision.fused, decision.reason) == (False, FORBIDDEN)
    assert decision.bytes_saved == ROWS * COLUMNS * 4
    assert len(groups.in_order()) == 2
    assert cross_all(group(rows(), columns()), Overrides(), {"x"}) == []
    assert cross_all(group(rows(), columns("g")), Overrides(), set()) == []


def test_what_was_counted_before_a_kernel_changed_is_forgotten() -> None:
    """Each pair is decided on once, for the kernel as it has become."""
    groups = group(
        rows(), columns(), columns("x", "second", "more"), outputs=("row", "column", "second")
    )
    apart = Overrides(apart=frozenset({pair("rows", "more")}))
    found = [(d.producer, d.consumer, d.fused) for d in cross_all(groups, apart, set())]
    assert found == [("rows", "columns", True), ("rows", "more", False)]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_kernel_of_rows_takes_all_sums_wherever_it_stands(at: int) -> None:
    steps = [columns(), columns("x", "second", "more")]
    steps.insert(at, rows())
    groups = group(*steps, outputs=("row", "column", "second"))
    found = {(d.producer, d.consumer) for d in cross_all(groups, Overrides(), set()) if d.fused}
    assert {("rows", "columns"), ("rows", "more")} <= found
    assert len(groups.in_order()) == 2


def test_what_adds_up_the_pieces_is_joined_and_told() -> None:
    groups = group(
        rows(), columns(), columns("x", "second", "more"), outputs=("row", "column", "second")
    )
    crossed, again, joined = cross_all(groups, Overrides(), set())
    assert [(d.producer, d.consumer, d.fused) for d in (crossed, again)] == [
        ("rows", "columns", True), ("rows", "more", True),
    ]  # fmt: skip
    assert (joined.fused, joined.bytes_saved) == (True, 0)
    assert {joined.producer, joined.consumer} == {"columns", "more"}
    assert joined.reason == "both add up sums of the same pieces of rows"
    assert len(groups.in_order()) == 2


def test_sums_of_the_same_pieces_are_added_up_by_one_kernel() -> None:
    def rest(name: str, into: str, size: int = 32, width: int = COLUMNS) -> Compute:
        (j,), (p,) = axes(width), axes(size, prefix="r")
        total = reduce("sum", ops.load(f"{name}_part", at(p, j), F32), (p,), F32)
        return Compute(name, Body((j,), (p,), (Store(into, at(j), total),)), "sum")

    def groups(*steps: Compute) -> Groups:
        made = {f"{s.name}_part": buffer(f"{s.name}_part", (32, COLUMNS)) for s in steps}
        program = Program((), {}, BUFFERS | made, steps, (ref("column"), ref("second")))
        return Groups(program, steps, {})

    both = groups(rest("one", "column"), rest("two", "second"))
    joined = _join_rests(both, 0, 1)
    assert joined is not None
    assert (joined.producer, joined.consumer, joined.fused, joined.bytes_saved) == (
        "one", "two", True, 0,
    )  # fmt: skip
    (step,) = both.in_order()
    assert (step.name, step.writes()) == ("one", ("column", "second"))
    assert _join_rests(both, None, 0) is None
    assert _join_rests(groups(rest("one", "column"), rest("two", "second", width=7)), 0, 1) is None
    first = rest("one", "column")
    second = rest("two", "second")
    (store,) = second.body.stores
    more = ops.binary("add", store.value, ops.load("column", store.index, F32))
    second = replace(second, body=replace(second.body, stores=(replace(store, value=more),)))
    needs = groups(first, second)
    assert _join_rests(needs, 0, 1) is None
    assert _join_rests(needs, 1, 0) is None
    assert len(needs.in_order()) == 2


# -- products -----------------------------------------------------------------------------------


def matrix(rows: IntLike = 6, columns: IntLike = 10, batch: IntLike = 0) -> Body:
    b = axes(batch, prefix="b") if batch else ()
    (i, j), k = axes(rows, columns), axes(4, prefix="r")
    left, right = ops.load("left", at(*b, i, *k), F32), ops.load("right", at(*b, *k, j), F32)
    return Body((*b, i, j), k, (Store("p", at(*b, i, j), dot(left, right, k, F32, "ieee")),))


def test_places_of_a_product() -> None:
    body = matrix(batch=3)
    assert loops_of(body) == at(*body.axes)
    thin = matrix(1, 10)
    assert loops_of(thin) == (Expr.of(0), Expr.of(thin.axes[1]))
    i, j = body.axes[1:]
    whole = replace(body, axes=body.axes[:2], reduce_axes=(j, *body.reduce_axes))
    assert loops_of(whole) == at(*body.axes[:2], j)
    plain, stand_in = without_product(body)
    assert plain.reduce_axes == ()
    assert plain.roots == (stand_in,)
    assert (stand_in.buffer, stand_in.index) == (STAND_IN, at(*body.axes))
    assert i in plain.axes
    (total,) = as_sum(body).roots
    assert (total.kind, total.axes) == ("sum", body.reduce_axes)  # type: ignore[attr-defined]


def reader(value: Callable[[Expr, Expr], Node], reduced: bool = False) -> Body:
    i, j = axes(6, 10)
    made = value(Expr.of(i), Expr.of(j))
    if reduced:
        return Body((i,), (j,), (Store("out", at(i), reduce("max", made, (j,), F32)),))
    return Body((i, j), (), (Store("out", at(i, j), made),))


def p(i: Expr, j: Expr) -> Node:
    return load("p", (i, j), F32)


def test_what_reads_a_product_joins_it() -> None:
    first = matrix()
    joined = join_product(first, reader(lambda i, j: ops.unary("exp", p(i, j))))
    assert isinstance(joined, Body)
    assert len(joined.products) == 1
    assert joined.axes == first.axes
    assert joined.reduce_axes == first.reduce_axes
    rows_too = join_product(first, reader(p, reduced=True))
    assert isinstance(rows_too, Body)
    assert rows_too.reduce_axes == (first.axes[1], *first.reduce_axes)


@pytest.mark.parametrize(
    "value",
    [
        lambda i, j: ops.binary("add", p(i, j), p(i, Expr.of(0))),
        lambda i, j: ops.binary("add", p(i, j), p(Expr.of(2), j)),
        lambda i, j: ops.binary("add", p(i, j), p((i + 1) % 6, j)),
        lambda i, j: ops.binary("add", ops.load("x", (i, j), F32), p(i, 9 - j)),
    ],
)
def test_what_reads_it_elsewhere_stays(value: Callable[[Expr, Expr], Node]) -> None:
    refused = join_product(matrix(), reader(value))
    assert isinstance(refused, Refusal)
    assert refused.reason == "it reads a matrix product elsewhere than where a tile computes it"


def test_what_reduces_down_its_columns_stays() -> None:
    j, i = axes(10, 6)
    down = Body((j,), (i,), (Store("out", at(j), reduce("max", p(*at(i, j)), (i,), F32)),))
    refused = join_product(matrix(), down)
    assert isinstance(refused, Refusal)
    assert refused.reason.startswith("it reduces down columns")
    both = Body((), (i, j), (Store("out", (), reduce("max", p(*at(i, j)), (i, j), F32)),))
    assert isinstance(join_product(matrix(), both), Refusal)
    b, i, j = axes(3, 6, 10)
    wide = Body((b, i, j), (), (Store("out", at(b, i, j), p(*at(i, j))),))
    assert isinstance(join_product(matrix(), wide), Refusal)


# -- operands that are unpacked -----------------------------------------------------------------


def unpacking(
    scales: int, dtype: torch.dtype = torch.uint8, stores: int = 1, reduced: bool = False
) -> tuple[Body, dict[str, object]]:
    (i,), (r,) = axes(64), axes(2, prefix="r")
    value = ops.cast(ops.load("packed", at(i), dtype), F32)
    if scales:
        value = ops.binary("mul", value, ops.load("scales", (Expr.of(i) % scales,), F32))
    if reduced:
        value = reduce("sum", value, (r,), F32)
    made = tuple(Store(f"w{n}", at(i), value) for n in range(stores))
    buffers = {"packed": buffer("packed", (64,), dtype), "scales": buffer("scales", (scales,))}
    buffers |= {f"w{n}": buffer(f"w{n}", (64,), torch.float16) for n in range(stores)}
    return Body((i,), (r,) if reduced else (), made), buffers  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("scales", "more", "unpacked"),
    [
        (0, {}, True), (2, {}, True), (3, {}, False),  # a ninth of the bytes may be scales
        (2, {"dtype": torch.int8}, True), (0, {"dtype": torch.bool}, False),
        (0, {"dtype": torch.float8_e4m3fn}, False), (0, {"dtype": torch.int16}, False),
        (0, {"stores": 2}, False), (0, {"reduced": True}, False),
    ],
)  # fmt: skip
def test_what_is_unpacked(scales: int, more: dict[str, object], unpacked: bool) -> None:
    assert choices_products.unpacks(*unpacking(scales, **more)) is unpacked  # type: ignore[arg-type]


def test_a_size_may_be_symbolic() -> None:
    n = Expr.of(Symbol("n", "size", low=2))
    assert loops_of(matrix(n))[0] != Expr.of(0)
