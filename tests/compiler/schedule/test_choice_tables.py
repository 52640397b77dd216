"""Decisions of the scheduler at both sides of each bound: nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, IntLike, Symbol
from fusec.ir.node import Node, dot, index_value, indirect, recording
from fusec.ir.program import Compute, Extern, ExternKind, Program, TensorRef
from fusec.schedule import choices
from fusec.schedule.align import (
    Refusal,
    _check_levels,
    _lone_symbol,
    _match_accesses,
    _split_pointwise,
    _turned_symbol,
)
from fusec.schedule.fuse import fuse
from fusec.schedule.loops import _order_by_stride, arrange_loops
from fusec.schedule.overrides import Overrides, pair
from fusec.schedule.rules import known_names, overrides_of, steps_named
from support.triton_bodies import F32, at, axes, buffer


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


# -- what is computed at each use -------------------------------------------------------------


def costing(cost: int, inputs: int) -> Body:
    """A store of a value that takes so many operations of a cost of one."""
    (i,) = axes(512)
    value: Node = ops.load("x0", at(i), F32) if inputs else index_value(Expr.of(i), F32)
    for n in range(cost):
        other = ops.load(f"x{n + 1}", at(i), F32) if n + 1 < inputs else ops.const(n + 2.5, F32)
        value = ops.binary("maximum" if n % 2 else "minimum", value, other)
    body = Body((i,), (), (Store("made", at(i), value),))
    assert choices.node_cost(body.nodes()) == cost
    return body


# cost, inputs, uses, expansion, large, cheap, taps; what the reason begins with
AGAIN: list[tuple[int, int, int, float, int, bool, bool, str]] = [
    (50, 2, 1, 1, 5, False, False, ""),  # one consumer, each element once: whatever it costs
    (50, 2, 1, 2, 5, False, False, ""),
    (32, 0, 9, 9, 0, False, False, ""),  # of nothing: reading it could only be slower
    (33, 0, 9, 9, 0, False, False, "each element would be computed 9 times, at a cost of 33"),
    (2, 1, 1, 8, 1, False, False, ""),
    (2, 1, 1, 8, 2, False, False, "each of 2 tensors would be read 8 times"),
    (2, 1, 1, 7.5, 2, False, False, ""),
    (10, 1, 1, 2, 1, False, False, ""),
    (10, 1, 1, 2.5, 1, False, False, "each element would be computed 2 times, at a cost of 10"),
    (9, 1, 1, 2.5, 1, False, False, ""),
    (9, 1, 2, 1, 2, False, False, ""),
    (10, 1, 2, 1, 1, False, False, "2 consumers would each compute it, at a cost of 10"),
    (9, 1, 2, 1, 3, False, False, "2 consumers would each compute it, at a cost of 9"),
    (10, 1, 2, 1, 3, True, False, ""),
    (1, 1, 4, 1, 1, False, False, ""),
    (1, 1, 5, 1, 1, False, False, "5 consumers read it"),
    (1, 1, 5, 1, 1, True, False, "5 consumers read it"),
    (1, 1, 1, 4, 1, False, True, ""),
    (2, 1, 1, 4, 1, False, True, "a window would compute each element 4 times"),
    (2, 0, 1, 4, 0, False, True, "a window would compute each element 4 times"),
    (2, 1, 1, 3, 1, False, True, ""),
    (2, 1, 1, 4, 1, False, False, ""),
]


@pytest.mark.parametrize("row", AGAIN, ids=lambda row: " ".join(map(str, row[:7])))
def test_what_is_computed_at_each_use(
    row: tuple[int, int, int, float, int, bool, bool, str],
) -> None:
    cost, inputs, uses, expansion, large, cheap, taps, reason = row
    body = costing(cost, inputs)
    found = choices.may_recompute(body, uses, expansion, large, lambda: cheap, taps)
    assert found is None if not reason else (found or "").startswith(reason)


# -- sizes as numbers -------------------------------------------------------------------------


def test_sizes_as_numbers() -> None:
    n = Symbol("n", "size", low=2)
    assert choices.estimate(Expr.of(n) * 3 + 1) == 3 * 1024 + 1
    assert choices.points(axes(6, Expr.of(n), 5)) == 30 * 1024
    assert choices.points((Symbol("any"), *axes(7))) == 7
    assert choices.points(()) == 1
    assert choices.buffer_bytes(buffer("x", (6, Expr.of(n)), torch.float16)) == 12 * 1024


# -- what shares the kernel of a product ------------------------------------------------------


def product(*also: str, rows: IntLike = 40, columns: IntLike = 30) -> Body:
    """A product of matrices, and what is named: sums along its rows or elsewhere, a scan."""
    (i, j), (k,), (other,) = axes(rows, columns), axes(20, prefix="k"), axes(9, prefix="o")
    whole = ops.load("x", at(i, k), F32), ops.load("w", at(k, j), F32)
    value = dot(*whole, (k,), F32)
    reduced = [k]
    for name in also:
        if name == "row":
            value = ops.binary("sub", value, ops.reduce("max", value, (j,), F32))
        elif name == "other":
            more = ops.reduce("sum", ops.load("v", at(i, other), F32), (other,), F32)
            value = ops.binary("add", value, more)
            reduced.append(other)
        elif name == "scan":
            value = ops.scan("sum", value, j, F32)
        elif name == "overwrites":
            value = ops.binary("add", value, ops.load("out", at(i, j), F32))
    inner = {"row", "scan"} & {*also}
    loops = ((i,), (j, *reduced)) if inner else ((i, j), tuple(reduced))
    return Body(*loops, (Store("out", at(i, j), value),))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (product, None),
        (lambda: product("row"), None),
        (lambda: product("row", columns=256), None),
        (lambda: product("row", columns=257), "a row of 257 is longer than a tile"),
        (lambda: product("row", columns=2), None),
        (lambda: product("row", columns=1), "rows of one element have nothing to reduce"),
        (lambda: product("row", columns=Expr.of(Symbol("n", "size"))), "a row whose length may"),
        (lambda: product("other"), None),
        (lambda: product("row", "other"), "a tile of a matrix product does not see all"),
        (lambda: product("scan"), "a tile of a matrix product does not see all"),
        (lambda: product("overwrites"), "a matrix product that overwrites what other tiles"),
    ],
)
def test_what_a_product_takes_in(body: Callable[[], Body], reason: str | None) -> None:
    made = body()
    found = choices.unfit_for_product(made)
    assert found is None if reason is None else (found or "").startswith(reason)
    assert choices.too_large(made) == found


# -- loops that several bodies share ----------------------------------------------------------


def test_a_place_that_is_computed_is_no_loop() -> None:
    """What the other body reads there may be anywhere."""
    (i,), (j,) = axes(8), axes(8)
    place = indirect(ops.load("places", at(i), torch.int64), Expr.of(8))
    pick = ops.load("x", (place,), F32)
    first = Body((i,), (), (Store("a", at(i), pick),))
    second = Body((j,), (), (Store("b", at(j), ops.load("x", at(j), F32)),))
    assert _match_accesses(first, second, first, second) == {}
    both = ops.binary("add", pick, ops.load("y", at(i), F32))
    first = Body((i,), (), (Store("a", at(i), both),))
    both = ops.binary("add", ops.load("x", at(j), F32), ops.load("y", at(j), F32))
    second = Body((j,), (), (Store("b", at(j), both),))
    assert _match_accesses(first, second, first, second) == {j: Expr.of(i)}


def test_rows_and_elements_of_a_reduction() -> None:
    """The loops of a pointwise body are rows where the reduction's are, the others elements."""
    (i,), (r,) = axes(4), axes(6, prefix="r")
    total = ops.reduce("sum", ops.load("x", at(i, r), F32), (r,), F32)
    moving = Body((i,), (r,), (Store("t", at(i), total),))

    def split(*loops: Symbol, **solved: Expr) -> object:
        target = Body(loops, (), (Store("y", at(*loops), ops.load("z", at(*loops), F32)),))
        return _split_pointwise(target, moving, {{"i": i, "r": r}[k]: v for k, v in solved.items()})

    a, b, c = axes(4, 2, 3)
    flat = Expr.of(b) * 3 + Expr.of(c)
    for solved in ({}, {"i": Expr.of(a)}, {"r": flat}, {"i": Expr.of(a), "r": flat}):
        assert split(a, b, c, **solved) == ((a,), (b, c))
    assert split(b, c, a, i=Expr.of(a)) == ((a,), (b, c))
    assert split(b, c, a, r=flat) == ((a,), (b, c))
    assert isinstance(split(b, c, a), Refusal), "the last ones would be the elements"
    assert isinstance(split(a, b, c, i=Expr.of(a), r=Expr.of(a)), Refusal), "mixed"
    assert isinstance(split(a, *axes(5)), Refusal)
    assert isinstance(split(a, b), Refusal)
    (unit,) = axes(1)
    assert split(a, i=Expr.of(a)) == ((a,), (r,)), "rows alone: the elements stay the sum's"
    assert split(a, unit, i=Expr.of(a)) == ((a, unit), (r,))


def test_an_index_that_is_one_loop() -> None:
    (i,), (n,) = axes(6), (Symbol("n", "size", low=2),)
    assert _lone_symbol(Expr.of(i)) is i
    for expr in (
        Expr.of(i) * 2,
        Expr.of(i) + 1,
        Expr.of(i) * Expr.of(i),
        Expr.of(i) // 2,
        Expr.of(3),
    ):
        assert _lone_symbol(expr) is None
    assert _turned_symbol(5 - Expr.of(i)) is i
    for expr in (Expr.of(i), 6 - Expr.of(i), 5 - Expr.of(i) * 2, Expr.of(n) - 1, Expr.of(3)):
        assert _turned_symbol(expr) is None


@pytest.mark.parametrize(
    ("size", "part"), [(1, False), (2, True), (3, True)], ids=["one", "two", "three"]
)
def test_all_that_is_reduced_is_in_each_sum(size: int, part: bool) -> None:
    (i,), (r, s) = axes(4), axes(5, size, prefix="r")
    x = ops.load("x", at(i, r, s), F32)
    for value in (ops.reduce("sum", x, (r,), F32), ops.scan("sum", x, r, F32)):
        assert (_check_levels(Body((i,), (r, s), (Store("y", at(i), value),))) is not None) is part
    whole = ops.reduce("sum", x, (r, s), F32)
    assert _check_levels(Body((i,), (r, s), (Store("y", at(i), whole),))) is None


@pytest.mark.parametrize(
    ("devices", "inner"),
    [(("cpu", "cpu"), 8), (("cuda", "cuda"), 3), (("cpu", "cuda"), 3)],
)
def test_a_number_in_host_memory_makes_no_loops_of_a_processor(
    devices: tuple[str, str], inner: int
) -> None:
    """Loops of three elements are no vectors of a processor; a GPU has none."""
    i, j = axes(8, 3)
    value = ops.binary("mul", ops.load("x", at(j, i), F32), ops.load("scale", (), F32))
    buffers = {
        "scale": buffer("scale", (), device=devices[0]),
        "x": buffer("x", (3, 8), device=devices[1]),
        "y": buffer("y", (8, 3), device=devices[1]),
    }
    body = Body((i, j), (), (Store("y", at(i, j), value),))
    assert _order_by_stride(body, buffers).axes[-1].size == inner


# -- pairs that become one kernel -------------------------------------------------------------


def step(
    name: str, reads: str, *sizes: int, many: int = 0, mode: str = "set", sums: int = 0
) -> Compute:
    """A computation of one letter each, of as many values as are asked for; a sum at last."""
    loops = axes(*(sizes or (64,)))
    split = len(loops) - sums
    value: Node = ops.load(reads[0], at(*loops), F32)
    for each in reads[1:]:
        value = ops.binary("add", value, ops.load(each, at(*loops), F32))
    for n in range(many):
        value = ops.binary("maximum" if n % 2 else "minimum", value, ops.const(n + 2.5, F32))
    if sums:
        value = ops.reduce("sum", value, loops[split:], F32)
    store = Store(name, at(*loops[:split]), value, mode)
    return Compute(name, Body(loops[:split], loops[split:], (store,)), name)


def call(reads: str, into: str, mutates: str = "") -> Extern:
    args = tuple(TensorRef(n, (Expr.of(64),), (Expr.of(1),), Expr.of(0), F32) for n in reads)
    target = torch.ops.aten.mm.default
    return Extern(into, target, args, {}, (into,), "a reason", mutates=tuple(mutates))


def outcome(
    *steps: Compute | Extern, overrides: Overrides | None = None, gpu: str = ""
) -> tuple[int, str]:
    """Return how many kernels are left, and the last reason why."""
    names = {n for s in steps for n in (*s.reads(), *s.writes())}
    buffers: dict[str, Buffer] = {
        n: buffer(n, (64,), device="cuda" if n in gpu else "cpu") for n in names
    }
    written = {n for s in steps for n in s.writes()}
    refs = tuple(
        TensorRef(n, buffers[n].shape, buffers[n].strides, Expr.of(0), F32) for n in sorted(written)
    )
    program = Program(tuple(sorted(names - written)), {}, buffers, steps, refs)
    fused = fuse(program, steps, overrides=overrides)
    reasons = [d.reason for d in fused.decisions if not d.fused]
    return len(fused.steps), reasons[-1] if reasons else ""


AB = frozenset((pair("a", "b"),))


def test_pairs_that_become_one_kernel() -> None:
    assert outcome(step("a", "x"), step("b", "a")) == (1, "")
    assert outcome(step("a", "x"), step("b", "x")) == (1, "")
    assert outcome(step("a", "x"), step("b", "y")) == (2, "")
    apart, together = Overrides(apart=AB), Overrides(together=AB)
    assert outcome(step("a", "x"), step("b", "a"), overrides=apart)[0] == 2
    assert outcome(step("a", "x"), step("b", "y"), overrides=together) == (1, "")


def test_pairs_that_stay_apart() -> None:
    between = outcome(step("a", "x"), call("a", "c"), step("b", "ac"))
    assert between == (3, "another step must run between them")
    found = outcome(step("a", "x"), call("x", "c", mutates="x"), step("b", "xa"))
    assert found == (3, "an extern call changes one of their tensors in place")
    found = outcome(step("a", "x", mode="add"), step("b", "x"))
    assert found == (2, "updates of elements that the data choose have a kernel of their own")
    found = outcome(step("a", "x"), step("b", "xs"), gpu="xas")
    assert found == (2, "they run on different devices")


@pytest.mark.parametrize("sums", [0, 1])
@pytest.mark.parametrize("sizes", [(3, 4), (0, 4), (4, 0), (0, 0)])
def test_what_has_no_elements_stays_apart(sizes: tuple[int, ...], sums: int) -> None:
    """Whichever of its loops makes no turn, and of whichever of the two."""
    found = outcome(step("a", "x", *sizes), step("b", "x", *sizes, sums=sums))
    assert found == ((2, "one of them has no elements") if 0 in sizes else (1, ""))


def test_what_is_too_large_becomes_one_where_it_is_wanted() -> None:
    long = [step("a", "x", many=250), step("b", "a", many=250)]
    count, reason = outcome(*long)
    assert count == 2
    assert "values, more than 400" in reason
    assert outcome(*long, overrides=Overrides(together=AB)) == (1, "")


# -- names in rules ---------------------------------------------------------------------------


def test_steps_that_a_rule_may_name() -> None:
    """What the program needs, and nobody asked for, has no name."""
    made = replace(call("x", "c"), label="mm", body=step("c", "x").body)
    owned = replace(call("x", "o"), kind=ExternKind.OWNED_TENSOR)
    steps = (made, owned, step("a", "cx"), step("b", "ao"), replace(step("d", "b"), label="a"))
    names = {n for s in steps for n in (*s.reads(), *s.writes())}
    buffers = {n: buffer(n, (64,)) for n in names}
    refs = (TensorRef("d", buffers["d"].shape, buffers["d"].strides, Expr.of(0), F32),)
    program = Program(("x",), {}, buffers, steps, refs)
    known = known_names(program)
    assert known == {"aten.mm": ("c",), "mm": ("c",), "a": ("a", "d"), "b": ("b",)}
    assert steps_named(known, "a") == ("a", "d")
    assert steps_named(known, "a#2") == ("d",)
    assert steps_named(known, "a#3") == steps_named(known, "z") == ()
    rules = overrides_of(program, ["a:b"], ["b:mm", "a#1:a"])
    assert rules.apart == {pair("a", "b"), pair("d", "b")}
    assert rules.together == {pair("b", "c"), pair("a", "d")}


# -- loops that are one -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "reads", "loops"),
    [
        ((2, 3, 4, 5), None, "120"),
        ((2, 1, 4, 1), None, "8"),
        ((2, 3, 4, 5), (60, 20, 5, 0), "24 x 5"),
        ((2, 3, 4, 5), (0, 0, 5, 1), "6 x 20"),
        ((2, 3, 4, 5), (120, 40, 5, 1), "6 x 20"),
        ((2, 3, 4, 5), (60, 20, 0, 1), "6 x 4 x 5"),
    ],
)
def test_neighbors_that_every_access_steps_through_are_one_loop(
    sizes: tuple[int, ...], reads: tuple[int, ...] | None, loops: str
) -> None:
    index = axes(*sizes)
    value = ops.load("x", at(*index), F32)
    body = Body(index, (), (Store("y", at(*index), value),))
    buffers = {"x": buffer("x", sizes, strides=reads), "y": buffer("y", sizes)}
    arranged = arrange_loops(body, buffers)
    assert " x ".join(str(axis.size) for axis in arranged.axes) == loops
    total = ops.reduce("sum", value, index, F32)
    body = Body((), index, (Store("total", (), total),))
    buffers["total"] = buffer("total", ())
    found = " x ".join(str(axis.size) for axis in arrange_loops(body, buffers).reduce_axes)
    assert found == loops or reads is not None
