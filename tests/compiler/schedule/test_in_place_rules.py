"""When a kernel may write an input where it lies: each condition alone, nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr
from fusec.ir.node import Node, dot, index_value, recording, reduce
from fusec.ir.program import Compute, Extern, Program, Step, TensorRef
from fusec.schedule.in_place import hindrance, update_in_place
from support.triton_bodies import F32, at, axes, buffer, f32

ROWS, COLUMNS = 6, 10
NAMES = {"a": (ROWS, COLUMNS), "x": (ROWS, COLUMNS), "new": (ROWS, COLUMNS)}
NAMES |= {"rest": (ROWS, COLUMNS), "row": (ROWS,), "new_row": (ROWS,)}
BUFFERS = {name: buffer(name, shape) for name, shape in NAMES.items()}


@pytest.fixture(autouse=True)
def _recorder():
    with recording():
        yield


def ref(name: str) -> TensorRef:
    return TensorRef(name, BUFFERS[name].shape, BUFFERS[name].strides, Expr.of(0), F32)


def step(into: str = "new", reads: tuple[str, ...] = ("a", "x"), name: str = "add") -> Compute:
    i, j = axes(ROWS, COLUMNS)
    value: Node = f32(1.0)
    for each in reads:
        value = ops.binary("add", value, ops.load(each, at(i, j), F32))
    return Compute(name, Body((i, j), (), (Store(into, at(i, j), value),)))


def program(*steps: Step, outputs: tuple[object, ...] = (ref("new"),)) -> Program:
    return Program(("a", "x"), {}, BUFFERS, steps, outputs)


def reason(given: Program, updated: tuple[str, ...] = ("a",)) -> str:
    changed, (decision, *_) = update_in_place(given, updated)
    assert decision.fused is (changed != given)
    assert decision.fused or (decision.producer, decision.consumer) == ("new", "a")
    return "" if decision.fused else decision.reason


def test_what_is_written_where_it_lies() -> None:
    given = program(step("rest", ("a",), "first"), step())
    changed, (decision,) = update_in_place(given, ("a",))
    assert (decision.producer, decision.consumer) == ("add", "a")
    assert decision.bytes_saved == 2 * ROWS * COLUMNS * 4
    first, second = changed.steps
    assert first is given.steps[0]
    (store,) = second.body.stores  # type: ignore[union-attr]
    assert (store.buffer, store.made) == ("a", "new")
    assert changed.outputs == (replace(ref("new"), buffer="a"),)
    assert changed.buffers.keys() == BUFFERS.keys() - {"new"}
    # of several results, the one alone that is copied
    both = step()
    (store,) = both.body.stores
    body = replace(both.body, stores=(store, replace(store, buffer="rest")))
    outputs = (ref("new"), ref("rest"))
    changed, _ = update_in_place(program(replace(both, body=body), outputs=outputs), ("a",))
    assert changed.steps[0].writes() == ("a", "rest")


def test_two_inputs_in_turn() -> None:
    given = program(step(), step("rest", ("x",), "other"), outputs=(ref("new"), ref("rest")))
    changed, decisions = update_in_place(given, ("a", "x"))
    assert [d.fused for d in decisions] == [True, True]
    assert [s.writes() for s in changed.steps] == [("a",), ("x",)]


OTHER = "the new value is not a tensor that a kernel makes"
LAID = "the new value does not lie as the input does"
PART = "the new value is a part of a tensor"
NOT_ALONE = "no element by itself"
TWICE = "the graph returns it more than once"


def test_what_is_not_a_tensor_of_a_kernel() -> None:
    assert reason(replace(program(step()), buffers={n: BUFFERS[n] for n in ("x", "new")})) == OTHER
    assert reason(replace(program(step()), inputs=("a", "x", "new"))) == OTHER
    call = Extern("add", torch.add, (ref("a"), ref("x")), {}, ("new",), "")
    assert reason(program(call)) == "an operator of ATen makes the new value"
    assert reason(program(step(), step(name="again"))) == "an operator of ATen makes the new value"


@pytest.mark.parametrize(
    "other",
    [
        buffer("a", (ROWS, COLUMNS), torch.int32),
        buffer("a", (ROWS, COLUMNS), strides=(1, ROWS)),
        buffer("a", (ROWS, COLUMNS), device="cuda"),
        buffer("a", (COLUMNS, ROWS), strides=(COLUMNS, 1)),
    ],
    ids=["type", "strides", "device", "shape"],
)
def test_what_lies_otherwise(other: object) -> None:
    assert reason(replace(program(step()), buffers=BUFFERS | {"a": other})) == LAID


@pytest.mark.parametrize(
    "view",
    [
        {"shape": (Expr.of(2), Expr.of(COLUMNS))},
        {"strides": (Expr.of(1), Expr.of(ROWS))},
        {"offset": Expr.of(1)},
    ],
    ids=str,
)
def test_a_part_of_the_new_value(view: dict[str, object]) -> None:
    assert reason(program(step(), outputs=(replace(ref("new"), **view),))) == PART  # type: ignore[arg-type]


def test_what_is_returned_or_updated_twice() -> None:
    assert reason(program(step(), outputs=(ref("new"), ref("new")))) == TWICE
    assert reason(program(step(), outputs=(ref("new"), ref("a")))) == TWICE
    assert reason(program(step(), outputs=(ref("new"), ref("a"), ref("new")))) == TWICE
    assert reason(program(step(), outputs=(ref("new"), ref("rest"))), ("a", "a")) == TWICE
    assert reason(program(step(), outputs=(ref("new"), ref("x")))) == ""


def test_who_else_reads_and_writes() -> None:
    reader = Extern("exp", torch.exp, (ref("new"),), {}, ("rest",), "")
    assert reason(program(step(), reader)) == "an operator of ATen reads the new value"
    both = step("rest", ("new", "a"), "reader")
    assert reason(program(step(), both)) == "the old value is read later"
    old = step("rest", ("a",), "old")
    assert reason(program(step(), old)) == "the old value is read later"
    assert reason(program(old, step())) == ""
    writer = step("a", ("x",), "writer")
    assert reason(program(writer, step())) == "the input is written elsewhere"
    assert reason(program(step(), writer)) == "the input is written elsewhere"


def test_kernels_read_the_new_value_in_the_input() -> None:
    reader = step("rest", ("new", "x"), "reader")
    outputs = (ref("new"), ref("rest"))
    changed, _ = update_in_place(program(step(), reader, outputs=outputs), ("a",))
    assert [s.reads() for s in changed.steps] == [("a", "x"), ("a", "x")]
    assert [s.writes() for s in changed.steps] == [("a",), ("rest",)]
    assert changed.outputs == (replace(ref("new"), buffer="a"), ref("rest"))
    assert "new" not in changed.buffers
    # which may update another input, in whichever order they are asked for
    for updated, given in (("a", "x"), outputs), (("x", "a"), outputs[::-1]):
        changed, decisions = update_in_place(program(step(), reader, outputs=given), updated)
        assert all(decision.fused for decision in decisions)
        assert [s.reads() for s in changed.steps] == [("a", "x"), ("a", "x")]
        assert [s.writes() for s in changed.steps] == [("a",), ("x",)]


def test_a_kernel_that_adds_to_the_new_value() -> None:
    plain = step()
    (store,) = plain.body.stores
    added = replace(plain.body, stores=(replace(store, mode="add"),))
    assert reason(program(replace(plain, body=added))) == NOT_ALONE


def elementwise(
    load_at: Callable[[Expr, Expr], tuple[Expr, Expr]], store_at: Callable[..., tuple[Expr, ...]]
) -> Compute:
    symbols = axes(ROWS, COLUMNS)
    i, j = at(*symbols)
    value = ops.unary("neg", ops.load("a", load_at(i, j), F32))
    return Compute("neg", Body(symbols, (), (Store("new", store_at(i, j), value),)))


def same(*places: Expr) -> tuple[Expr, ...]:
    return places


def hindered(each: Compute, made: str = "new", given: str = "a", device: str = "cpu") -> str:
    of = [replace(BUFFERS[name], device=torch.device(device)) for name in (made, given)]
    return hindrance(each, *of)


def test_an_element_is_written_where_its_old_value_is_read() -> None:
    assert hindered(elementwise(same, same)) == ""  # type: ignore[arg-type]
    shifted = elementwise(lambda i, j: ((i + 1) % ROWS, j), same)
    assert hindered(shifted) == NOT_ALONE
    assert hindered(elementwise(same, lambda i, j: (i, i))) == NOT_ALONE  # type: ignore[arg-type]
    # of another layout it is the place in memory that counts
    turned = buffer("a", (COLUMNS, ROWS), strides=(1, COLUMNS))
    across = elementwise(lambda i, j: (j, i), same)
    assert hindrance(across, BUFFERS["new"], turned) == ""
    straight = buffer("a", (COLUMNS, ROWS))
    assert hindrance(across, BUFFERS["new"], straight) == NOT_ALONE
    # all of the old values that are read, in either layout
    for given, own, other in (
        (turned, lambda i, j: (j, i), lambda i, j: ((j + 1) % COLUMNS, i)),
        (BUFFERS["a"], lambda i, j: (i, j), lambda i, j: (i, (j + 1) % COLUMNS)),
    ):
        i, j = axes(ROWS, COLUMNS)
        places = [at(*(Expr.of(e) for e in f(Expr.of(i), Expr.of(j)))) for f in (own, other)]
        for order in (places, places[::-1]):
            value = ops.binary("add", *(ops.load("a", place, F32) for place in order))
            both = Compute("both", Body((i, j), (), (Store("new", at(i, j), value),)))
            assert hindrance(both, BUFFERS["new"], given) == NOT_ALONE
    # one loop of a single step decides nothing
    (i,), (one,) = axes(ROWS), axes(1, prefix="k")
    value = ops.unary("neg", ops.load("row", at(i), F32))
    short = Compute("neg", Body((one, i), (), (Store("new_row", at(i), value),)))
    assert hindered(short, "new_row", "row") == ""
    several = Compute("neg", replace(short.body, axes=(*axes(2), i)))
    assert hindered(several, "new_row", "row") == NOT_ALONE


@pytest.mark.parametrize("mode", ["add", "put"])
def test_updates_and_results_written_twice_stay(mode: str) -> None:
    plain = elementwise(same, same)  # type: ignore[arg-type]
    (store,) = plain.body.stores
    updated = replace(plain, body=replace(plain.body, stores=(replace(store, mode=mode),)))
    assert hindered(updated) == NOT_ALONE
    twice = replace(plain, body=replace(plain.body, stores=(store, replace(store))))
    assert hindered(twice) == NOT_ALONE


def row_sum(
    value: Callable[[Node, Node], Node], store_at: Callable[..., tuple[Expr, ...]] = at
) -> Compute:
    """A row's old value and the sum of its elements make the new value."""
    (i,), (j,) = axes(ROWS), axes(COLUMNS, prefix="r")
    old = ops.load("row", at(i), F32)
    total = reduce("sum", ops.load("x", at(i, j), F32), (j,), F32)
    body = Body((i,), (j,), (Store("new_row", store_at(i), value(old, total)),))
    return Compute("mean", body)


def test_a_row_has_one_value_that_is_read_for_nothing_else() -> None:
    def add(old: Node, total: Node) -> Node:
        return ops.binary("add", old, total)

    plain = row_sum(add)
    assert hindered(plain, "new_row", "row") == ""
    body = plain.body
    # where it is summed as well, another thread may read it when it is written
    (i,), (j,) = body.axes, body.reduce_axes
    scaled = ops.binary("mul", ops.load("x", at(i, j), F32), ops.load("row", at(i), F32))
    total = reduce("sum", scaled, (j,), F32)
    inside = replace(
        body, stores=(Store("new_row", at(i), add(ops.load("row", at(i), F32), total)),)
    )
    assert hindered(Compute("mean", inside), "new_row", "row") == NOT_ALONE
    # so may it where another result needs it
    also = Store("rest", at(i, j), ops.load("row", at(i), F32))
    assert hindered(Compute("mean", replace(body, stores=(*body.stores, also))), "new_row", "row")
    # a result for each element of a row is none of one value
    each = Store("new", at(i, j), ops.load("a", at(i, j), F32))
    assert hindered(Compute("mean", replace(body, stores=(each,)))) == NOT_ALONE
    # another row's old value may be the new one
    shifted = Store("new_row", at(i), ops.load("row", ((Expr.of(i) + 1) % ROWS,), F32))
    assert (
        hindered(Compute("mean", replace(body, stores=(shifted,))), "new_row", "row") == NOT_ALONE
    )
    # the sums of pieces are written by whoever comes last
    summed = Store("rest", (Expr.of(i) // 2, Expr.of(j)), ops.load("x", at(i, j), F32), "sum")
    pieces = replace(body, stores=(*body.stores, summed))
    assert hindered(Compute("mean", pieces), "new_row", "row") == NOT_ALONE


def test_a_product_is_written_by_tiles() -> None:
    i, j = axes(ROWS, COLUMNS)
    (k,) = axes(4, prefix="r")
    made = dot(ops.load("left", at(i, k), F32), ops.load("right", at(k, j), F32), (k,), F32, "ieee")
    value = ops.binary("add", ops.load("a", at(i, j), F32), made)
    body = Body((i, j), (k,), (Store("new", at(i, j), value),))
    assert hindered(Compute("mm", body)) == NOT_ALONE


def test_threads_of_a_gpu_read_before_they_write() -> None:
    plain = elementwise(same, same)  # type: ignore[arg-type]
    assert hindered(plain, device="cuda") == ""
    (store,) = plain.body.stores
    i, j = plain.body.axes
    # the old value is read for another result alone: maybe when the new one is there
    other = Store("rest", at(i, j), store.value)
    fixed = replace(plain.body, stores=(replace(store, value=f32(0.0)), other))
    assert hindered(Compute("zero", fixed)) == ""
    told = "threads of a GPU might read the old value after it is written"
    assert hindered(Compute("zero", fixed), device="cuda") == told
    # all that is read of it is needed, not only something; of other tensors nothing has to be
    old = ops.load("a", at(i, j), F32)
    inside = ops.binary("lt", index_value(Expr.of(i), torch.int64), ops.const(3, torch.int64))
    for beside, reason in (
        (old, ""),
        (ops.load("x", at(i, j), F32), ""),
        (ops.load("a", at(i, j), F32, inside), told),
    ):
        stores = replace(store, value=ops.unary("neg", old)), Store("rest", at(i, j), beside)
        assert hindered(Compute("two", replace(plain.body, stores=stores)), device="cuda") == reason
        assert hindered(Compute("two", replace(plain.body, stores=stores))) == ""


@pytest.mark.parametrize("reader", [False, True], ids=["updates", "updates-and-reads"])
def test_an_optimizer_of_twice_as_many_parameters_is_twice_the_work(
    monkeypatch: pytest.MonkeyPatch, reader: bool
) -> None:
    """Who reads and who writes a buffer is looked up, not looked for among all steps."""
    asked: list[str] = []
    original = Compute.reads

    def counted(self: Compute) -> tuple[str, ...]:
        asked.append(self.name)
        return original(self)

    work = []
    for count in (20, 40):
        names = [f"a{n}" for n in range(count)]
        shapes = dict.fromkeys((*names, *(f"new{n}" for n in range(count)), "x", "all"), (6, 10))
        buffers = {name: buffer(name, shape) for name, shape in shapes.items()}
        made = [replace(ref("new"), buffer=f"new{n}") for n in range(count)]
        steps = [step(f"new{n}", (f"a{n}", "x"), f"add{n}") for n in range(count)]
        if reader:
            steps.append(step("all", ("new0", "new1"), "last"))
        given = Program((*names, "x"), {}, buffers, tuple(steps), tuple(made))
        asked.clear()
        monkeypatch.setattr(Compute, "reads", counted)
        changed, decisions = update_in_place(given, names)
        monkeypatch.setattr(Compute, "reads", original)
        work.append(len(asked))
        assert all(decision.fused for decision in decisions)
        assert [each.buffer for each in changed.outputs] == names  # type: ignore[union-attr]
        assert [each.writes() for each in changed.steps[:count]] == [(name,) for name in names]
        assert not reader or changed.steps[-1].reads() == ("a0", "a1")
        assert changed.buffers.keys() == {*names, "x", "all"}
    assert work[1] < 2.2 * work[0], work
