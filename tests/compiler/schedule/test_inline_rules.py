"""What is computed where it is read, what stays, and why: conditions, nothing compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, recording, reduce
from fusec.ir.program import Compute, Extern, Program, Step, TensorRef
from fusec.schedule import choices
from fusec.schedule.inline import (
    ONCE,
    _belongs_to_its_producer,
    _chain,
    _expansion,
    _only_widens,
    inline_pointwise,
    inlined_members,
)
from fusec.schedule.loops import _too_short
from fusec.schedule.overrides import FORBIDDEN, Overrides, pair
from support.triton_bodies import F32, at, axes, buffer

HALF = torch.float16
N = 64
BUFFERS: dict[str, Buffer] = {name: buffer(name, (N,)) for name in "abcdefgxyz"}


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


def kernel(source: str, into: str, cost: int = 1, mode: str = "set") -> Compute:
    """A pointwise step that takes so many elementary functions."""
    (i,) = axes(N)
    value: Node = ops.load(source[0], at(i), F32)
    for each in source[1:]:
        value = ops.binary("add", value, ops.load(each, at(i), F32))
    for _ in range(cost):
        value = ops.unary("tanh", value)
    return Compute(into, Body((i,), (), (Store(into, at(i), value, mode),)), f"to_{into}")


def total(source: str, into: str) -> Compute:
    (r,) = axes(N, prefix="r")
    value = reduce("sum", ops.load(source, at(r), F32), (r,), F32)
    (i,) = axes(N)
    return Compute(into, Body((i,), (r,), (Store(into, at(i), value),)), f"to_{into}")


def ref(name: str) -> TensorRef:
    return TensorRef(name, BUFFERS[name].shape, BUFFERS[name].strides, Expr.of(0), F32)


def call(reads: str, into: str = "", mutates: str = "") -> Extern:
    args = tuple(map(ref, reads))
    outputs = (into,) if into else ()
    return Extern(f"call_{reads}", torch.ops.aten.mm.default, args, {}, outputs, "", (*mutates,))


def inlined(
    *steps: Step, outputs: str = "z", overrides: Overrides | None = None, once: str = ""
) -> tuple[list[str], dict[tuple[str, str], str]]:
    """Return the names of what is left, and each refusal's reason by its pair."""
    program = Program(
        ("x", "y"), {}, BUFFERS, steps, tuple(map(ref, outputs)), once=frozenset(once)
    )
    left, decisions = inline_pointwise(program, overrides)
    refused = {(d.producer, d.consumer): d.reason for d in decisions if not d.fused}
    made = {(d.producer, d.consumer) for d in decisions if d.fused}
    assert made.isdisjoint(refused)
    assert len(left) + len({producer for producer, _ in made}) == len(steps)
    return [step.name for step in left], refused


def test_a_chain_is_one() -> None:
    steps = kernel("x", "a"), kernel("a", "b"), kernel("b", "z")
    assert inlined(*steps) == (["z"], {})
    left, decisions = inline_pointwise(Program(("x",), {}, BUFFERS, steps, (ref("z"),)))
    (only,) = left
    assert isinstance(only, Compute)
    assert only.label == "to_a + to_b + to_z"
    assert only.reads() == ("x",)
    assert {d.bytes_saved for d in decisions} == {2 * 4 * N}
    assert inlined_members(decisions) == {"b": {"a", "b"}, "z": {"a", "b", "z"}}


@pytest.mark.parametrize(
    ("steps", "outputs"),
    [
        ((kernel("x", "a"), kernel("a", "z")), "az"),  # the caller gets it
        ((kernel("x", "a"), kernel("x", "z")), "z"),  # nobody reads it
        ((kernel("x", "y"), kernel("y", "z")), "z"),  # an input
        ((total("x", "a"), kernel("a", "z")), "z"),  # a sum
        ((kernel("x", "a"), call("a", "z")), "z"),  # for a call
        ((kernel("x", "a"), call("a", "b"), kernel("a", "z")), "z"),  # for one of two
        ((kernel("x", "a"), call("b", "", "a"), kernel("a", "z")), "z"),  # changed in place
        ((kernel("x", "a"), call("b", "", "x"), kernel("a", "z")), "z"),  # what it reads is
        ((kernel("x", "a", mode="add"), kernel("a", "z")), "z"),  # adds to what is there
    ],
)
def test_who_is_no_candidate(steps: tuple[Step, ...], outputs: str) -> None:
    left, refused = inlined(*steps, outputs=outputs)
    assert left == [step.name for step in steps]
    assert not refused


def test_what_is_compared_is_computed_once() -> None:
    steps = kernel("x", "a"), kernel("a", "b"), kernel("a", "z")
    assert inlined(*steps, outputs="bz", once="a") == (
        ["a", "b", "z"],
        {("a", "b"): ONCE, ("a", "z"): ONCE},
    )


def test_several_readers() -> None:
    cheap = kernel("x", "a", 0), kernel("a", "b"), kernel("a", "z")
    assert inlined(*cheap, outputs="bz") == (["b", "z"], {})
    dear = kernel("x", "a", 5), kernel("a", "b"), kernel("a", "z")
    left, refused = inlined(*dear, outputs="bz")
    assert left == ["a", "b", "z"]
    assert set(refused) == {("a", "b"), ("a", "z")}
    assert set(refused.values()) == {"2 consumers would each compute it, at a cost of 50"}


def apart(*pairs: str) -> Overrides:
    return Overrides(apart=frozenset(pair(*each) for each in pairs))


def together(*pairs: str) -> Overrides:
    return Overrides(together=frozenset(pair(*each) for each in pairs))


def test_what_somebody_asked_for() -> None:
    cheap = kernel("x", "a", 0), kernel("a", "b"), kernel("a", "z")
    for forbidden in (apart("ab"), apart("az"), apart("ab", "az")):
        left, refused = inlined(*cheap, outputs="bz", overrides=forbidden)
        assert left == ["a", "b", "z"]  # one that has to read it has it written for both
        assert set(refused.values()) == {FORBIDDEN}
    assert inlined(*cheap, outputs="bz", overrides=apart("bz")) == (["b", "z"], {})
    dear = kernel("x", "a", 5), kernel("a", "b"), kernel("a", "z")
    assert inlined(*dear, outputs="bz", overrides=together("ab", "az")) == (["b", "z"], {})
    assert inlined(*dear, outputs="bz", overrides=together("ab"))[0] == ["a", "b", "z"]
    # what was taken in comes along
    chain = kernel("x", "a", 0), kernel("a", "b", 0), kernel("b", "z")
    assert inlined(*chain, overrides=apart("az"))[0] == ["b", "z"]


def widening(**changes: object) -> Compute:
    (i,) = axes(N)
    value: Node = ops.load("h", at(i), HALF)
    if "moved" in changes:
        value = ops.load("h", (Expr.of(i) + 1,), HALF)
    value = ops.cast(value, F32)
    if "twice" in changes:
        value = ops.cast(value, torch.float64)
    if "more" in changes:
        value = ops.unary("neg", value)
    stores = [Store("w", at(i), value, str(changes.get("mode", "set")))]
    if "two" in changes:
        stores.append(Store("v", at(i), value))
    return Compute("w", Body((i,), (), tuple(stores)))


@pytest.mark.parametrize(
    ("changes", "narrow", "wide", "device", "found"),
    [
        ({}, HALF, F32, "cuda", True),
        ({"twice": 1}, HALF, torch.float64, "cuda", True),
        ({}, HALF, F32, "cpu", False),
        ({}, HALF, HALF, "cuda", False),
        ({"mode": "add"}, HALF, F32, "cuda", False),
        ({"more": 1}, HALF, F32, "cuda", False),
        ({"moved": 1}, HALF, F32, "cuda", False),
        ({"two": 1}, HALF, F32, "cuda", False),
    ],
)
def test_what_only_widens(
    changes: dict[str, object], narrow: torch.dtype, wide: torch.dtype, device: str, found: bool
) -> None:
    buffers = {
        "h": buffer("h", (N,), narrow, device=device),
        "w": buffer("w", (N,), wide, device=device),
        "v": buffer("v", (N,), wide, device=device),
    }
    assert _only_widens(widening(**changes), buffers) is found


def test_chains_of_readers() -> None:
    def names(first: Compute, *others: Step, kept: str = "") -> list[str]:
        readers: dict[str, list[str]] = {}
        for step in others:
            for name in step.reads():
                readers.setdefault(name, []).append(step.name)
        steps = {step.name: step for step in (first, *others)}
        return [step.name for step in _chain(first, steps, readers, frozenset(kept))]

    a, b, c = kernel("x", "a"), kernel("a", "b"), kernel("b", "c")
    assert names(a, b, c) == ["a", "b", "c"]
    assert names(a, b, c, kept="b") == ["a", "b"]
    assert names(a, b, kernel("a", "c")) == ["a"]
    assert names(a, total("a", "b"), c) == ["a", "b"]
    assert names(a, call("a", "b")) == ["a"]
    assert names(a) == ["a"]
    long = kernel("x", "a", choices.MAX_NODES)
    assert names(long, b, c) == ["a"]
    half = kernel("x", "a", choices.MAX_NODES // 2), kernel("a", "b", choices.MAX_NODES // 2)
    assert names(*half, c) == ["a", "b"]


def picked(rows: int, columns: int) -> tuple[Compute, Body, Compute, Program]:
    """Return what makes a large tensor with a reduction, what picks of it, and the sum of that."""
    i, j = axes(rows, columns)
    (r,) = axes(columns, prefix="r")
    row = reduce("sum", ops.load("in", at(i, r), F32), (r,), F32)
    whole = ops.binary("sub", ops.load("in", at(i, j), F32), row)
    maker = Compute("large", Body((i, j), (r,), (Store("large", at(i, j), whole),)))
    (k,) = axes(rows)
    pick = Body((k,), (), (Store("p", at(k), ops.load("large", (Expr.of(k), Expr.of(0)), F32)),))
    (s,) = axes(rows, prefix="s")
    summed = reduce("sum", ops.load("p", at(s), F32), (s,), F32)
    reader = Compute("sum", Body((), (s,), (Store("sum", (), summed),)))
    buffers = {"in": buffer("in", (rows, columns)), "large": buffer("large", (rows, columns))}
    buffers |= {"p": buffer("p", (rows,)), "sum": buffer("sum", ())}
    return maker, pick, reader, Program(("in",), {}, buffers, (), ())


@pytest.mark.parametrize(("columns", "belongs"), [(3, False), (4, True), (5, True)])
def test_what_picks_of_a_large_result_belongs_to_it(columns: int, belongs: bool) -> None:
    maker, pick, reader, program = picked(8, columns)
    steps: dict[str, Step] = {"large": maker, "sum": reader}
    assert _belongs_to_its_producer(pick, [reader], program, steps) is belongs
    assert not _belongs_to_its_producer(pick, [kernel("p", "z")], program, steps)
    assert not _belongs_to_its_producer(pick, [reader], program, {"sum": reader})
    assert not _belongs_to_its_producer(
        pick, [reader], program, {"large": call("x", "large"), "sum": reader}
    )


def test_how_often_an_element_would_be_computed() -> None:
    (i,) = axes(N)
    body = Body((i,), (), (Store("a", at(i), ops.load("x", at(i), F32)),))

    def often(*consumers: Callable[[], Body]) -> float:
        program = Program((), {}, BUFFERS, (), ())
        return _expansion(body, [Compute("c", each()) for each in consumers], program)

    def over(*index: int) -> Body:
        outer = axes(3, N)
        reads = [ops.load("a", (Expr.of(outer[n]),), F32) for n in index]
        value = reads[0]
        for each in reads[1:]:
            value = ops.binary("add", value, each)
        return Body(outer, (), (Store("z", at(*outer), value),))

    assert often(lambda: over(1)) == 3
    assert often(lambda: over(0)) == 1  # outside of the inner loop
    assert often(lambda: over(0), lambda: over(1)) == 3

    def at_shifts(*shifts: int) -> Body:
        (k,) = axes(N)
        value: Node = ops.load("a", at(k), F32)
        for n in shifts:
            value = ops.binary("add", value, ops.load("a", (Expr.of(k) + n,), F32))
        return Body((k,), (), (Store("z", at(k), value),))

    assert often(at_shifts) == 1
    assert often(lambda: at_shifts(1)) == 1
    assert often(lambda: at_shifts(1, 2)) == 3
    assert often(lambda: at_shifts(1, 2, 3)) == 4

    def indirect() -> Body:
        outer = axes(N, 5)
        place = ops.load("i", at(*outer), torch.int64)
        value = ops.load("a", (ops.indirect(place, N),), F32)
        return Body(outer, (), (Store("z", at(*outer), value),))

    assert often(indirect) == 5


@pytest.mark.parametrize(
    ("small", "count"), [(1, 1), (N // 8, 1), (N // 8 + 1, 2), (N, 2), (2 * N, 2)]
)
def test_what_counts_as_a_large_input(small: int, count: int) -> None:
    (i,) = axes(N)
    value = ops.binary("add", ops.load("x", at(i), F32), ops.load("s", (Expr.of(0),), F32))
    body = Body((i,), (), (Store("a", at(i), value),))
    buffers = {**BUFFERS, "s": buffer("s", (small,))}
    assert choices.large_inputs(body, buffers) == count


def test_loops_too_short_for_vectors() -> None:
    found = [_too_short(axes(n)[0]) for n in (1, 7, 8, 9)]
    assert found == [choices.SHORT_LOOP, choices.SHORT_LOOP, 0.0, 0.0]
    assert _too_short(Symbol("i", "axis")) == 0.0
    assert _too_short(Symbol("i", "axis", Expr.of(Symbol("n", "size", low=2)))) == 0.0
