"""Rules of C++ kernels at their limits: nothing is compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import recording
from fusec.machine import using
from fusec.targets.cpp.emit import emit_cpp
from fusec.targets.cpp.plan import choices, moderate_angles, nontemporal, threads
from fusec.targets.cpp.plan.rows import _split_axis
from fusec.targets.cpp.text.reductions import clause
from support.decisions import runs
from support.triton_bodies import F32, at, axes, buffer
from support.whole_programs import MACHINE

F16, BF16, I32, I64 = torch.float16, torch.bfloat16, torch.int32, torch.int64


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with using(MACHINE), recording():
        yield


@pytest.mark.parametrize(("dtype", "name"), [(F16, "fx_f16"), (BF16, "fx_bf16")])
def test_a_type_that_is_only_copied_is_defined_and_a_size_has_a_name_of_its_own(
    dtype: torch.dtype, name: str
) -> None:
    size = Expr.of(Symbol("x", "size", None, 2))
    (i,) = axes(size)
    body = Body((i,), (), (Store("y", at(i), ops.load("x", at(i), dtype)),))
    source = emit_cpp("copy", body, {n: buffer(n, (size,), dtype) for n in "xy"})
    assert re.search(rf"struct {name} {{|using {name} =|typedef .* {name};", source.text)
    (given,) = re.findall(r'extern "C" int copy\((.*?)\)', source.text, re.DOTALL)
    names = [each.split()[-1].strip("*") for each in given.split(",")]
    assert len(names) == len(set(names)) == 4
    assert names[:2] == ["x", "y"]


@pytest.mark.parametrize(
    ("sizes", "kinds", "place"),
    [
        ((4, 64), (), 1),
        ((64, 4), (), 0),
        ((64, 128), (), 0),
        ((3, 5), (), 1),
        ((5, 3), (), 0),
        ((4, 64), ("argmax",), 0),
        ((4, 64), ("sum", "argmin"), 0),
        ((4, 64), ("sum",), 1),
        ((choices.PIECES - 1, choices.PIECES), (), 1),
        ((choices.PIECES, 9999), (), 0),
    ],
)
def test_which_dimension_of_a_sum_is_cut(
    sizes: tuple[int, ...], kinds: tuple[str, ...], place: int
) -> None:
    reduced = axes(*sizes, prefix="r")
    nodes = [SimpleNamespace(kind=kind) for kind in kinds] + [SimpleNamespace()]
    facts: Any = SimpleNamespace(body=SimpleNamespace(reduce_axes=reduced), nodes=nodes)
    assert _split_axis(facts) is reduced[place]


@pytest.mark.parametrize(
    ("kind", "dtype", "text"),
    [
        ("sum", F32, "reduction(+ : a)"),
        ("prod", I64, "reduction(* : a)"),
        ("max", F32, "reduction(max : a)"),
        ("min", I32, "reduction(min : a)"),
        ("argmax", F32, "reduction(max : a)"),
        ("argmin", I64, "reduction(min : a)"),
        ("max", torch.bool, "reduction(|| : a)"),
        ("min", torch.bool, "reduction(&& : a)"),
        ("argmax", torch.bool, "reduction(|| : a)"),
    ],
)
def test_clauses_of_vector_loops(kind: str, dtype: torch.dtype, text: str) -> None:
    item: Any = SimpleNamespace(node=SimpleNamespace(kind=kind), dtype=dtype, place="a")
    assert clause(item) == text
    assert clause(item, "nans") == f"{text} reduction(| : nans)"


def facts_of(body: Body, **more: Any) -> Any:
    noted: list[tuple[str, ...]] = []
    usual = {
        "body": body, "nodes": body.nodes(), "may_thread": True, "allows": lambda name: True,
        "note": lambda *said: noted.append(said), "noted": noted,
        "wanted": SimpleNamespace(size=lambda name, value, among: value),
    }  # fmt: skip
    return SimpleNamespace(**(usual | more))


def added(size: int | Expr) -> Body:
    (i,) = axes(size)
    value = ops.binary("add", ops.load("x", at(i), F32), ops.load("y", at(i), F32))
    return Body((i,), (), (Store("z", at(i), value),))


def test_who_shares_work() -> None:
    least = choices.grain(threads.cost(added(8).nodes()))
    assert not threads.plan_sharing(facts_of(added(least - 1))).shared
    whole = threads.plan_sharing(facts_of(added(least)))
    assert (whole.shared, whole.work, whole.grain, whole.rows) == (True, None, None, None)
    for wrong in ({"may_thread": False}, {"allows": lambda name: name != "threads"}):
        assert not threads.plan_sharing(facts_of(added(least), **wrong)).shared
    symbolic = threads.plan_sharing(facts_of(added(Expr.of(Symbol("n", "size", None, 2)))))
    assert symbolic.shared
    assert symbolic.grain is not None
    assert symbolic.grain.value == least
    for count in (choices.ROWS_WORTH_CHUNKS - 1, choices.ROWS_WORTH_CHUNKS):
        (rows,) = axes(count)
        found = threads.plan_sharing(facts_of(added(1 << 24)), rows)
        assert (found.rows is not None) == (count == choices.ROWS_WORTH_CHUNKS)


def test_what_goes_past_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []

    def worth(*given: int) -> bool:
        seen.append(given)
        return True

    monkeypatch.setattr(choices, "worth_streaming", worth)
    wide = choices.MIN_BLOCKED
    i, j = axes(64, wide)
    value = ops.unary("neg", ops.load("x", at(i, j), F32))
    stores = tuple(Store(name, at(i, j), value) for name in ("x", "y", "z"))
    buffers = {name: buffer(name, (64, wide)) for name in "xy"}
    buffers["z"] = buffer("z", (64, wide), torch.complex64)
    body = Body((i, j), (), stores)
    assert nontemporal.streamed_buffers(body, buffers) == {"y"}, "x is read, z is complex"
    assert seen == [(256 * wide, 4 * 256 * wide, 64 * wide)]
    facts: Any = SimpleNamespace(buffers=buffers, streamed={"y"})
    assert nontemporal.is_streamed(facts, stores[1], j)
    assert not nontemporal.is_streamed(facts, stores[1], i)
    assert not nontemporal.is_streamed(facts, stores[0], j)
    narrow = choices.CACHE_LINE // 4
    for columns, streams in ((narrow, False), (choices.MIN_BLOCKED, True)):
        k, m = axes(64, columns)
        facts = SimpleNamespace(buffers={"y": buffer("y", (64, columns))}, streamed={"y"})
        store = Store("y", at(k, m), ops.load("x", at(k, m), F32))
        assert nontemporal.is_streamed(facts, store, m) is (streams and columns % narrow == 0)
    k, m = axes(64, choices.MIN_BLOCKED)
    for rows, shift, streams in ((narrow, 0, True), (narrow * 2, 0, True), (narrow, 1, False)):
        step = choices.MIN_BLOCKED + rows
        facts = SimpleNamespace(
            buffers={"y": buffer("y", (64, step), strides=(step, 1))}, streamed={"y"}
        )
        store = Store("y", (Expr.of(k), Expr.of(m) + shift), ops.load("x", at(k, m), F32))
        assert nontemporal.is_streamed(facts, store, m) is streams


# -- what loops ask the memory for ------------------------------------------------------------


def text_of_sums(rows: int, columns: int, dtype: torch.dtype, *, along: int = 1) -> str:
    """Return the loops that add up each row of a matrix, or each column."""
    (i,), (r,) = axes(rows if along else columns), axes(columns if along else rows, prefix="r")
    place = at(i, r) if along else at(r, i)
    value = ops.reduce("sum", ops.load("x", place, dtype), (r,), dtype)
    body = Body((i,), (r,), (Store("y", at(i), value),))
    buffers = {"x": buffer("x", (rows, columns), dtype), "y": buffer("y", (i.size,), dtype)}
    return emit_cpp("sums", body, buffers).text


def test_short_loops_ask_above_themselves() -> None:
    """Sums of whole numbers have no blocks, and ask for nothing where rows are long."""

    def asks(columns: int) -> bool:
        above, found, _ = text_of_sums(1 << 16, columns, I64).partition("for (int64_t r0 = ")
        assert found
        return "prefetch<" in above

    assert runs(asks, (64, 255, 256, 257)) == "64 to 255: True; 256 to 257: False"


def test_rows_beyond_the_cache_are_asked_for_line_by_line() -> None:
    """A row that stays in the cache is asked for while the one before it is read."""

    def ahead(columns: int) -> str:
        text = text_of_sums(512, columns, F32)
        (found,) = re.findall(r"prefetch<LINE>.*r0_line \+ (\d+)\]", text)
        return "a row" if int(found) == columns else found

    assert runs(ahead, (1024, 32767, 32768, 32769)) == "1024 to 32768: a row; 32769: 512"


@pytest.mark.parametrize("columns", [9, 3000])
def test_pieces_of_rows_are_shared_and_tiles_within_them_are_not(columns: int) -> None:
    """Threads within threads would be none, or too many."""
    text = text_of_sums(1 << 16, columns, F32, along=0)
    shared = re.findall(r"#pragma omp parallel for.*\n *(for \(int64_t \w+)", text)
    assert shared == ["for (int64_t piece"]


@pytest.mark.parametrize(
    ("what", "found"),
    [("plain", 1), ("checked", 0), ("outer", 0), ("masked", 0), ("reduced", 0), ("costly", 0)],
)
def test_whose_sines_have_a_quick_form(what: str, found: int) -> None:
    i, j = axes(64, 64)
    (r,) = axes(8, prefix="r")
    inside = ops.load("ok", at(i), torch.bool) if what == "masked" else None
    argument = ops.load("x", at(i) if what == "outer" else at(i, j), F32, inside)
    if what == "outer":
        argument = ops.load("x", at(i), F32)
    if what == "reduced":
        total = ops.reduce("sum", ops.load("y", at(r), F32), (r,), F32)
        argument = ops.binary("add", argument, total)
    for _ in range(choices.ANGLE_COST * 4 if what == "costly" else 0):
        argument = ops.unary("exp", argument)
    sine = ops.unary("sin", argument)
    body = Body((i, j), (), (Store("z", at(i, j), sine),))
    from fusec.ir.walk import free_axes

    nodes = body.nodes()
    facts: Any = SimpleNamespace(
        checked=what == "checked",
        free=free_axes(nodes),
        closure=lambda ends, known: [n for n in nodes if n is not sine],
    )
    assert len(moderate_angles.angles(facts, j, nodes, frozenset())) == found
