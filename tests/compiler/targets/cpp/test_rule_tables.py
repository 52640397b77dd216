"""Decisions on C++ loops at both sides of each bound: nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusec.codegen.common.c_language import Expression
from fusec.errors import CompileError
from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, indirect, recording
from fusec.targets.cpp.assembly import assembly
from fusec.targets.cpp.memory.prefetch import declare_line
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.columns import row_step
from fusec.targets.cpp.plan.deinterleave import (
    Deinterleaved,
    _casts,
    _neighbors,
    deinterleaved_rows,
)
from fusec.targets.cpp.plan.facts import Facts
from fusec.targets.cpp.plan.row_reuse import (
    _indices,
    _seldom_changes,
    _sources,
    repeated_rows,
)
from fusec.targets.cpp.plan.rows import _is_next_to_it
from fusec.targets.cpp.plan.staging import _is_stream
from fusec.targets.cpp.text.reductions import combined
from fusec.targets.cpp.text.writer import wrap
from support.decisions import runs
from support.triton_bodies import F32, at, axes, buffer

F16, F64 = torch.float16, torch.float64
I8, I16, I32, I64, U8 = torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


def test_rows_of_which_every_second_element_is_taken() -> None:
    def worth(*lengths: int) -> set[bool]:
        return {choices.worth_deinterleaving(length) for length in lengths}

    assert worth(8, 12, 16, 20, 28, 32, 44, 60, 64, 72, 256, 257, 260, 500, 2048) == {True}
    assert worth(4, 7, 9, 13, 31, 47, 63, 68, 76, 97, 127, 252, 261, 511, 2049, 2056) == {False}
    assert not choices.worth_deinterleaving(None)


def test_small_decisions() -> None:
    assert runs(choices.grain, range(18, 23)) == "18 to 19: 32768; 20 to 22: 8192"
    rows = (None, 0, 1, 65536, 65537)
    assert [choices.may_keep_rows(n) for n in rows] == [False, False, True, True, False]
    assert runs(choices.worth_keeping, range(6, 10)) == "6 to 7: False; 8 to 9: True"
    assert runs(choices.whole_vectors, range(18)) == "0: 0; 1 to 8: 8; 9 to 16: 16; 17: 24"
    assert runs(choices.quiet_line, (1, 4, 8, 16)) == "1 to 4: 64; 8: 16; 16: 8"
    kinds: tuple[set[str], ...] = (set(), {"max"}, {"sum"}, {"max", "sum"})
    assert [len(choices.read_as_floats(each)) for each in kinds] == [1, 1, 2, 2]


def test_halves_that_go_through_arrays() -> None:
    lengths = (7, 8, 47, 48, 255, 256)

    def worth(*dtypes: torch.dtype) -> str:
        return runs(lambda length: choices.worth_staging(length, dtypes), lengths)

    assert worth() == "7 to 256: False"
    assert worth(torch.bfloat16) == "7 to 47: False; 48 to 255: True; 256: False"
    assert worth(F16) == worth(F16, torch.bfloat16) == "7: False; 8 to 255: True; 256: False"


def test_which_reductions_read_well_alone() -> None:
    def alone(kind: str) -> set[torch.dtype]:
        return {d for d in (F16, F32, F64, I32) if choices.reads_well_alone(kind, d)}

    assert alone("sum") == {F32, F64}
    assert alone("max") == alone("min") == {F32}
    assert alone("prod") == alone("argmax") == set()


def test_columns_side_by_side() -> None:
    def widths(rows: int | None) -> str:
        columns = (None, 1, 4095, 4096, 8191, 8192, 16383, 16384)
        return runs(lambda n: choices.tile_columns(n, rows), columns)

    assert widths(None) == widths(129) == "None to 16384: 1024"
    narrow = "None: 1024; 1 to 8191: 256; 8192 to 16383: 512; 16384: 1024"
    assert widths(128) == narrow


@pytest.mark.parametrize(
    ("units", "work", "rows", "split"),
    [
        (15, 65536, None, True),
        (16, 65536, None, False),
        (15, 65535, None, False),
        (15, None, None, True),
        (None, 65536, None, False),
        (15, 65536, 128, False),
        (15, 65536, 129, True),
    ],
)
def test_who_shares_the_rows_of_a_reduction(
    units: int | None, work: int | None, rows: int | None, split: bool
) -> None:
    assert choices.split_rows(units, work, rows) is split


def test_short_rows_side_by_side() -> None:
    assert runs(lambda n: choices.may_turn_rows(n, None, 4), range(1, 34)) == (
        "1: False; 2 to 32: True; 33: False"
    )
    assert runs(lambda n: choices.may_turn_rows(8, n, 4), (63, 64)) == "63: False; 64: True"
    assert runs(lambda n: choices.may_turn_rows(8, None, n), (3, 4)) == "3: False; 4: True"
    points = (2, 32, 64, 65, 128, 129, 256, 257, 4096)
    assert runs(choices.turned_rows, points) == "2 to 64: 64; 65 to 128: 32; 129 to 4096: 16"


def test_what_a_short_vector_loop_takes() -> None:
    assert runs(choices.turns, (1, 7, 8, 9, 15, 16, 24, 31, 255, 256)) == (
        "1: 1; 7: 7; 8: 1; 9: 2; 15: 8; 16: 1; 24: 2; 31: 9; 255: 23; 256: 0"
    )


@pytest.mark.parametrize(
    ("itemsize", "extent", "step", "rows", "columns"),
    [
        (4, None, None, 64, 64),
        (8, None, None, 32, 64),
        (2, None, None, 128, 128),
        (1, None, None, 256, 256),
        (4, 64, None, 64, 64),
        (4, 33, None, 64, 64),
        (4, 32, None, 64, 32),
        (4, 8, None, 64, 8),
        (4, 3, None, 64, 8),
        (4, None, 1024, 128, 64),
        (4, None, 2048, 128, 64),
        (4, None, 512, 64, 64),
        (4, None, 1000, 64, 64),
        (8, None, 512, 64, 64),
    ],
)
def test_a_turned_tile(
    itemsize: int, extent: int | None, step: int | None, rows: int, columns: int
) -> None:
    assert choices.tile(itemsize, extent, step) == (rows, columns)


def test_what_a_request_is_for() -> None:
    kernel: Any = SimpleNamespace(tunables={})
    for elements, count, meaning in (
        (None, 64, "asked for"),
        (64, 64, "asked for"),
        (128, 128, "taken"),
        (16, 16, "taken"),
    ):
        assert declare_line(kernel, elements) == "LINE"
        text = f"constexpr int64_t LINE = {count}; // elements {meaning} at a time"
        assert kernel.tunables["LINE"] == text


# -- results that are combined ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype", "text", "used"),
    [
        ("sum", I32, "wrap_add32(total, a + b)", 1),
        ("sum", I64, "wrap_add(total, a + b)", 1),
        ("sum", I8, "(int8_t)(total + (a + b))", 0),
        ("sum", I16, "(int16_t)(total + (a + b))", 0),
        ("sum", U8, "(uint8_t)(total + (a + b))", 0),
        ("sum", torch.uint32, "(uint32_t)(total + (a + b))", 0),
        ("prod", I32, "wrap_mul32(total, a + b)", 1),
        ("sum", F32, "total + (a + b)", 0),
        ("prod", F32, "total * (a + b)", 0),
        ("any", torch.bool, "total | (a + b)", 0),
        ("all", torch.bool, "total & (a + b)", 0),
        ("max", torch.bool, "total | (a + b)", 0),
        ("min", torch.bool, "total & (a + b)", 0),
        ("max", F32, "nan_max(a + b, total)", 1),
        ("min", F64, "nan_min(a + b, total)", 1),
        ("argmax", F32, "nan_max(a + b, total)", 1),
        ("max", I32, "fx_maximum<int32_t>(a + b, total)", 1),
        ("min", U8, "fx_minimum<uint8_t>(a + b, total)", 1),
    ],
)
def test_a_running_result_and_a_value(kind: str, dtype: torch.dtype, text: str, used: int) -> None:
    names: list[str] = []
    node = SimpleNamespace(kind=kind)
    kernel: Any = SimpleNamespace(use=names.append, extremes_of_numbers=())
    item: Any = SimpleNamespace(node=node, dtype=dtype, place="total")
    value = Expression("a + b", 8)
    assert combined(kernel, item, value) == text
    assert len(names) == used
    if kind == "max" and dtype == F32:
        kernel.extremes_of_numbers = (node,)
        assert combined(kernel, item, value) == "number_max(a + b, total)"


# -- rows of which every second element is taken ----------------------------------------------


def test_loads_of_one_row_and_of_another() -> None:
    places = [0, 1, 2, 2 + choices.DEINTERLEAVED_GAP, 3 + 2 * choices.DEINTERLEAVED_GAP]
    loads: Any = [(f"load {place}", place) for place in reversed(places)]
    groups = [[place for _, place in group] for group in _neighbors(loads)]
    assert groups == [places[:4], places[4:]]
    assert _neighbors([]) == []


def test_halves_that_nothing_but_casts_read() -> None:
    (i,) = axes(64)
    half, single = ops.load("h", at(i), F16), ops.load("x", at(i), F32)
    wide, double = ops.cast(half, F32), ops.cast(half, F64)
    other = ops.unary("neg", half)

    def casts(load: Node, *users: Node) -> int:
        facts: Any = SimpleNamespace(users={load: list(users)})
        return len(_casts(facts, [(load, 0)]))  # type: ignore[list-item]

    assert casts(half, wide) == 1
    assert casts(half) == 1
    assert casts(half, wide, double) == casts(half, double) == casts(half, other) == 0
    assert casts(half, wide, other) == 0
    assert casts(single, single) == casts(single) == 0


# -- rows that are the same for several places ------------------------------------------------


def test_what_depends_on_computed_places_alone() -> None:
    """Such as a row that is enlarged: neighbors are made of the same one."""
    i, j = axes(64, 48)
    key = ops.binary("floordiv", ops.index_value(Expr.of(i), I64), ops.const(4, I64))
    place = indirect(key, Expr.of(16))
    picked = ops.load("x", (place, Expr.of(j)), F32)
    twice = ops.binary("add", picked, ops.const(2.0, F32))
    beside = ops.binary("mul", twice, ops.load("y", at(i, j), F32))
    body = Body((i, j), (), (Store("out", at(i, j), beside),))
    buffers = {n: buffer(n, (64, 48)) for n in ("x", "y", "out")}
    facts = Facts(body, buffers)
    assert _indices(facts) == [key]
    found = _sources(facts, [key], i)
    assert found[key] == found[picked] == found[twice] == {key}
    assert found[beside] == {key, None}
    assert found[ops.const(2.0, F32)] == frozenset()
    assert found[ops.load("y", at(i, j), F32)] == {None}
    assert _seldom_changes(facts, key, i)


@pytest.mark.parametrize(
    ("size", "divisor", "seldom"),
    [(64, 4, True), (64, 1, False), (64, 2, True), (1, 4, False), (8192, 2, True),
     (8193, 2, False)],
)  # fmt: skip
def test_places_that_seldom_change(size: int, divisor: int, seldom: bool) -> None:
    i, j = axes(size, 8)
    key = ops.binary("floordiv", ops.index_value(Expr.of(i), I64), ops.const(divisor, I64))
    picked = ops.load("x", (indirect(key, Expr.of(size)), Expr.of(j)), F32)
    body = Body((i, j), (), (Store("out", at(i, j), picked),))
    facts = Facts(body, {n: buffer(n, (size, 8)) for n in ("x", "out")})
    assert _seldom_changes(facts, key, i) is seldom


@pytest.mark.parametrize("dtype", [F32, F64, F16], ids=str)
def test_room_for_rows_that_are_shared(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many bytes as the values of one row have, and no fewer."""
    n, i, j = axes(choices.UNITS, 64, 48)
    key = ops.binary("floordiv", ops.index_value(Expr.of(i), I64), ops.const(4, I64))
    place = indirect(key, Expr.of(16))
    picked = [ops.load("x", (Expr.of(n), place, Expr.of(j) + k), dtype) for k in (0, 1)]
    value = ops.binary("add", *picked)
    beside = ops.binary("mul", value, ops.load("y", at(n, i, j), dtype))
    shapes = {"x": (choices.UNITS, 16, 49), "y": (choices.UNITS, 64, 48)}
    buffers = {n: buffer(n, shapes.get(n, shapes["y"]), dtype) for n in ("x", "y", "out")}
    facts = Facts(Body((n, i, j), (), (Store("out", at(n, i, j), beside),)), buffers)
    room = 48 * dtype.itemsize
    for limit, found in ((room, [(key, (value,))]), (room - 1, [])):
        monkeypatch.setattr(choices, "REPEATED_BYTES", limit)
        assert [(each.key, each.nodes) for each in repeated_rows(facts, ())] == found
    monkeypatch.setattr(choices, "REPEATED_BYTES", room)
    monkeypatch.setattr(choices, "UNITS", choices.UNITS + 1)
    assert not repeated_rows(facts, ()), "too few of them for the threads"
    once = Body((n, i, j), (), (Store("out", at(n, i, j), ops.binary("mul", picked[0], beside)),))
    monkeypatch.setattr(choices, "UNITS", choices.UNITS - 1)
    assert not repeated_rows(Facts(once, buffers), ()), "read once for each value"
    flat = Body((i, j), (), (Store("out", at(i, j), value),))
    assert not repeated_rows(Facts(flat, buffers), ()), "no loop that threads share"
    long = Body((n, i, *axes(Expr.of(Symbol("k", "size", low=2)))), (), facts.body.stores)
    assert not repeated_rows(Facts(long, buffers), ()), "rows of a length that nobody knows"


# -- long lines -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("short", ["short"]),
        ("x" * 30, ["x" * 30]),  # nothing to break it at
        ("x" * 30 + " y", ["x" * 30 + " y"]),
        ("a23456789 + c23456789", ["a23456789", "    + c23456789"]),
        ("a23456789 * b2 + c23", ["a23456789 * b2 + c23"]),
        ("a23456789 * b2 + c234", ["a23456789 * b2", "    + c234"]),
        ("f(a2345678, b2 + c234)", ["f(a2345678,", "    b2 + c234)"]),
        ("// words of a comment that goes on", ["// words of a", "// comment that goes", "// on"]),
    ],
)
def test_where_lines_are_broken(text: str, lines: list[str]) -> None:
    assert wrap(text, 20) == lines
    marked = wrap(text, 22, " \\")
    assert all(len(line) <= 22 or "x" * 20 in line for line in marked)
    assert all(line.endswith(" \\") for line in marked[:-1])


def test_assembly_of_what_does_not_compile() -> None:
    with pytest.raises(CompileError) as raised:
        assembly("int first = 1;\nint second = ;\n")
    (wrong, *_) = raised.value.diagnostics
    assert wrong.line == 2


# -- rows and random words --------------------------------------------------------------------


def test_how_far_rows_are_apart() -> None:
    (column,), (point,) = axes(40), axes(12, prefix="r")
    picked = ops.load("at", at(column), torch.int64)
    row = Expr.of(column)
    places = {
        "rows": at(column, point),
        "every other row": (2 * row, Expr.of(point)),
        "columns": at(point, column),
        "every other column": (row, 2 * Expr.of(point)),
        "picked rows": (indirect(picked, Expr.of(40)), Expr.of(point)),
        "picked columns": (row, indirect(picked, Expr.of(12)) + Expr.of(point)),
        "blocks of rows": (row // 2, Expr.of(point)),
        "blocks of columns": (row, Expr.of(point) // 2),
        "products": (Expr.of(0), row * Expr.of(point) + Expr.of(point)),
        "no row": (Expr.of(3), Expr.of(point)),
    }
    loads = [ops.load("x", place, F32) for place in places.values()]
    body = Body((column,), (point,), tuple(Store("y", at(column), load) for load in loads))
    held = {"x": buffer("x", (80, 12)), "at": buffer("at", (40,), torch.int64)}
    held |= {"half": buffer("half", (80, 12), torch.float16)}
    held |= {"bfloat": buffer("bfloat", (80, 12), torch.bfloat16)}
    held |= {"complex": buffer("complex", (80, 12), torch.complex64)}
    facts = Facts(body, held | {"y": buffer("y", (40,))})
    found = {name: row_step(facts, "x", place, column) for name, place in places.items()}
    assert {name: step.constant for name, step in found.items() if step is not None} == {
        "rows": 12,
        "every other row": 24,
        "no row": 0,
    }
    kinds = {name: row_step(facts, name, places["rows"], column) for name in held if name != "at"}
    assert [name for name, step in kinds.items() if step is None] == ["half", "complex"]


def test_random_words_of_consecutive_positions() -> None:
    i, j = axes(8, 64)
    (row, column), stream = at(i, j), ops.const(3, torch.int64)
    seed = ops.load("seed", (), torch.int64)
    picked = indirect(ops.load("at", at(i), torch.int64), Expr.of(9))

    def is_stream(position: Expr, seed: Node = seed, stream: Node = stream) -> bool:
        place = ops.index_value(position, torch.int64)
        node: Any = ops.random_word(seed, place, stream)
        facts = Facts(Body((i, j), (), (Store("y", at(i, j), node),)), {})
        return _is_stream(facts, node, j)

    assert is_stream(64 * row + column)
    assert is_stream(column + 5)
    assert not is_stream(column * 2)
    assert not is_stream(row), "the same for all"
    assert not is_stream(column // 2 + column), "not straight"
    assert not is_stream(row * column + column), "as far apart as the row says"
    assert not is_stream(picked + column)
    assert is_stream(column, ops.load("seeds", at(i), torch.int64))
    assert not is_stream(column, ops.load("seeds", at(j), torch.int64)), "a seed each"
    assert not is_stream(column, stream=ops.load("stream", (), torch.int64))


def test_random_words_of_positions_that_are_computed() -> None:
    (j,) = axes(64)
    seed, place = ops.load("seed", (), torch.int64), ops.load("at", at(j), torch.int64)
    node: Any = ops.random_word(seed, place, ops.const(3, torch.int64))
    facts = Facts(Body((j,), (), (Store("y", at(j), node),)), {})
    assert not _is_stream(facts, node, j)


def test_what_lies_beside_the_last_or_is_one_for_all() -> None:
    (i,), (j,) = axes(8), axes(40, prefix="r")
    masked = ops.load("x", at(i, j), F32, ops.load("ok", at(j), torch.bool))
    picked = indirect(ops.load("at", at(j), torch.int64), Expr.of(40))
    loads: dict[str, Any] = {
        "neighbors": ops.load("x", at(i, j), F32),
        "one": ops.load("x", (Expr.of(i), Expr.of(3)), F32),
        "a column": ops.load("x", at(j, i), F32),
        "every other": ops.load("x", (Expr.of(i), 2 * Expr.of(j)), F32),
        "backwards": ops.load("x", (Expr.of(i), 39 - Expr.of(j)), F32),
        "blocks": ops.load("x", (Expr.of(i), Expr.of(j) // 2), F32),
        "masked": masked,
        "picked": ops.load("x", (Expr.of(i), picked), F32),
    }
    stores = tuple(Store("y", at(i), load) for load in loads.values())
    held = {"x": buffer("x", (40, 80)), "ok": buffer("ok", (40,), torch.bool)}
    facts = Facts(Body((i,), (j,), stores), held | {"at": buffer("at", (40,), torch.int64)})
    found = [name for name, load in loads.items() if _is_next_to_it(facts, load, j)]
    assert found == ["neighbors", "one", "picked"]


@pytest.mark.parametrize(
    ("distances", "lengths"),
    [((0,), (10, 0)), ((1,), (0, 10)), ((0, 1), (10, 10)), ((0, 2, 1, 5), (11, 12)), ((), (0, 0))],
)
def test_how_much_of_neighbors_is_taken_apart(
    distances: tuple[int, ...], lengths: tuple[int, int]
) -> None:
    load: Any = ops.load("x", (Expr.of(0),), F32)
    loads = tuple((load, distance) for distance in distances)
    assert Deinterleaved(Expr.of(0), loads, 10, {}).lengths == lengths


def test_rows_of_which_windows_take_every_second_element() -> None:
    (i,), (j,) = axes(8), axes(64)
    picked = indirect(ops.load("at", at(i), I64), Expr.of(8))
    held = {"x": buffer("x", (8, 200)), "at": buffer("at", (8,), I64)}
    held |= {"ok": buffer("ok", (64,), torch.bool), "y": buffer("y", (8, 64))}

    def rows(*places: tuple[Expr, ...], size: int = 64, mask: Node | None = None) -> list[int]:
        j = axes(size, prefix="j")[0]
        moved = [tuple(e.substitute({axis: Expr.of(j)}) for e in place) for place in places]
        loads = [ops.load("x", place, F32, mask) for place in moved]
        stores = tuple(Store("y", at(i, j), load) for load in loads)
        found = deinterleaved_rows(Facts(Body((i, j), (), stores), held), j, loads)
        return [len(row.loads) for row in found]

    axis = j
    row, column = Expr.of(i), 2 * Expr.of(j)
    assert rows((row, column), (row, column + 1), (row, column + 2)) == [3]
    assert rows((row, column), (row, column + 1)) == [], "pairs"
    assert rows((row, column), (row, column + 2), size=13) == []
    assert rows((row, Expr.of(j)), (row, Expr.of(j) + 2)) == [], "a step of one"
    both = [(r, column + k) for r in (row, row + 1) for k in (0, 2)]
    assert rows(*both) == [2, 2]
    assert rows((picked, column), (picked, column + 2)) == [], "at rows that are picked"
    ok = ops.load("ok", (Expr.of(3),), torch.bool)
    assert rows((row, column), (row, column + 2), mask=ok) == []


def test_keys_of_unknown_sizes_are_not_computed() -> None:
    i, j = axes(64, 8)
    n = Symbol("n", "size", low=2)
    for key, seldom in ((Expr.of(i) // 4, True), (Expr.of(i) // 4 + n, False)):
        node = ops.binary("floordiv", ops.index_value(key, I64), ops.const(3, I64))
        picked = ops.load("x", (indirect(node, Expr.of(64)), Expr.of(j)), F32)
        body = Body((i, j), (), (Store("out", at(i, j), picked),))
        facts = Facts(body, {name: buffer(name, (64, 8)) for name in ("x", "out")})
        assert _seldom_changes(facts, node, i) is seldom
