"""What the scheduler does just at its limits, and where conditions meet: nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr
from fusec.ir.node import Node, recording
from fusec.ir.program import Compute
from fusec.report import FusionDecision
from fusec.schedule import choices, inline
from fusec.schedule.align import Refusal, _is_bijection, merge
from fusec.schedule.fuse import _product_refusal
from fusec.schedule.loops import arrange_loops
from fusec.schedule.order import _may_share
from support.triton_bodies import F32, at, axes, buffer

F16 = torch.float16


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


def negated(into: str, index: tuple[Expr, ...], loops: Any, source: str = "x") -> Body:
    value = ops.unary("neg", ops.load(source, index, F32))
    return Body(loops, (), (Store(into, index, value),))


@pytest.mark.parametrize(("more", "cheaper"), [(0, True), (1, False)])
def test_what_costs_as_much_again_is_computed_again(
    more: int, cheaper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (i,) = axes(64)
    buffers = {name: buffer(name, (64,), device="cuda") for name in "xa"}
    # two kernels, none of which writes it: three passes over 256 bytes, and x is read besides
    kernels = [choices.ReadingKernel(((), ()), frozenset("x"), False)] * 2
    cost = choices.OPERATIONS_A_BYTE * 4 * 256 // 64
    monkeypatch.setattr(choices, "node_cost", lambda nodes: cost + more)
    assert choices.cheaper_again(negated("a", at(i), (i,)), kernels, buffers) is cheaper


def windows(taps: int, *, reduces: bool = False) -> Body:
    """Return a body that reads an image and a table of weights so often."""
    i, j = axes(64, 64)
    (r,) = axes(3, prefix="r")
    total: Node = ops.const(0.0, F32)
    for tap in range(taps):
        weight = ops.load("w", (Expr.of(tap),), F32)
        pixel = ops.load("x", (Expr.of(i) + tap, Expr.of(j)), F32)
        total = ops.binary("add", total, ops.binary("mul", weight, pixel))
    if reduces:
        more = ops.reduce("sum", ops.load("z", at(r), F32), (r,), F32)
        total = ops.binary("add", total, more)
    return Body((i, j), (r,) if reduces else (), (Store("a", at(i, j), total),))


def test_what_is_a_convolution() -> None:
    taps = choices.FEW_TAPS
    assert choices.is_convolution(windows(taps))
    assert not choices.is_convolution(windows(taps - 1))
    assert not choices.is_convolution(windows(taps, reduces=True))


@pytest.mark.parametrize(
    ("types", "unfit"), [((F16, F16), True), ((F16, F32), False), ((F32, F16), False)]
)
def test_what_is_as_wide_as_any_result_of_windows_is_not_widened(
    types: tuple[torch.dtype, torch.dtype], unfit: bool
) -> None:
    i, j = axes(64, 64)
    buffers = {n: buffer(n, (64, 64), t) for n, t in zip("ab", types, strict=True)}
    buffers["c"] = buffer("c", (64, 64), F32)
    first = windows(choices.MANY_TAPS)
    first = Body(
        first.axes, (), (*first.stores, Store("b", at(*first.axes), first.stores[0].value))
    )
    second = negated("c", at(i, j), (i, j), "a")
    assert (choices.unfit_for_windows(first, second, buffers) is not None) is unfit
    # One of two results is enough.
    buffers["d"] = buffer("d", (64, 64), F16)
    both = Body(
        second.axes,
        (),
        (*second.stores, Store("d", at(i, j), ops.cast(second.stores[0].value, F16))),
    )
    assert (choices.unfit_for_windows(first, both, buffers) is not None) is unfit


def test_a_copy_with_gaps_in_memory_is_not_turned_over() -> None:
    """No loop goes along neighbors of what it writes."""
    i, j = axes(8, 8)
    buffers = {"x": buffer("x", (8, 8)), "a": buffer("a", (8, 8), strides=(16, 2))}
    body = Body((i, j), (), (Store("a", at(i, j), ops.load("x", at(j, i), F32)),))
    large = negated("b", at(*axes(640, 640)), axes(640, 640), "a")
    assert choices.is_turned_over(body, [large], buffers | {"a": buffer("a", (8, 8))})
    assert not choices.is_turned_over(body, [large], buffers)


def of_product(**given: Any) -> Any:
    usual = {"products": (), "attends": False, "scans": tuple}
    names = {"writes": lambda: ("a",), "reads": lambda: ("a",)}
    return SimpleNamespace(**{**usual, **names, **given})


P, RUNS = {"products": (1,)}, {"scans": lambda: (1,)}


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({}, {}, None),
        (P, {}, None),
        (P, RUNS, "a running value of a matrix product"),
        ({}, RUNS, None),
        (P, P, "one matrix product"),
        ({}, P, "only where that is cheap"),
        (P, {"attends": True}, "attention"),
        (P | {"attends": True}, {}, "attention"),
        (P, {"reads": lambda: ("b",)}, "only what reads"),
        (P, {"reads": lambda: ("b", "a")}, None),
    ],
)
def test_who_shares_the_kernel_of_a_product(first: Any, second: Any, reason: str | None) -> None:
    found = _product_refusal(of_product(**first), of_product(**second))
    assert (found is None) if reason is None else (found is not None and reason in found.reason)


def test_a_running_value_runs_along_one_loop() -> None:
    """Of two that are one for it, whichever they would be."""
    (i,), (r,) = axes(2), axes(24, prefix="r")
    running = ops.scan("sum", ops.load("x", (Expr.of(i), Expr.of(r)), F32), r, F32)
    moving = Body((i,), (r,), (Store("a", at(i, r), running),))
    (k,), (p, q) = axes(2), axes(4, 6, prefix="r")
    place = (Expr.of(k), Expr.of(p) * 6 + Expr.of(q))
    total = ops.reduce("sum", ops.load("x", place, F32), (p, q), F32)
    sums = Body((k,), (p, q), (Store("b", at(k), total),))
    refused = merge(sums, moving, onto_first=True)
    assert isinstance(refused, Refusal)
    assert "as one loop" in refused.reason
    assert not isinstance(merge(sums, moving), Refusal), "the sums go along its loop"
    assert not isinstance(merge(moving, sums, onto_first=True), Refusal)


def test_what_goes_one_to_one() -> None:
    i, j, one = axes(4, 6, 1)
    p, q, s = axes(4, 6, 4)
    i_p, j_q = {i: Expr.of(p)}, {j: Expr.of(q)}
    turned = {j: 5 - Expr.of(q)}
    assert _is_bijection(i_p | j_q, (i, j), (p, q), False)
    assert _is_bijection(i_p | j_q, (i, j, one), (p, q), False)
    assert _is_bijection(i_p | j_q, (j, i), (p, q, one), False)
    assert not _is_bijection(i_p, (i, j), (p, q), False)
    assert not _is_bijection(i_p | {j: Expr.of(p)}, (i, j), (p, q), False)
    assert not _is_bijection({i: Expr.of(q), j: Expr.of(p)}, (i, j), (p, q), False)
    assert not _is_bijection(i_p | {j: Expr.of(s)}, (i, j), (p, q), False)
    assert not _is_bijection(i_p | j_q, (i, j), (p, q, s), False)
    assert not _is_bijection(i_p | {j: Expr.of(q) * 2}, (i, j), (p, q), True)
    assert not _is_bijection(i_p | turned, (i, j), (p, q), False)
    assert _is_bijection(i_p | turned, (i, j), (p, q), True)


@pytest.mark.parametrize(("kind", "turns"), [("sum", True), ("argmax", False)])
def test_the_first_of_equal_places_stays_the_first(kind: str, turns: bool) -> None:
    """Which that is hangs on the order of the loops."""
    (i,), (r, s) = axes(4), axes(6, 8, prefix="r")
    buffers = {"x": buffer("x", (4, 8, 6)), "a": buffer("a", (4,))}
    dtype = torch.int64 if kind == "argmax" else F32
    value = ops.reduce(kind, ops.load("x", at(i, s, r), F32), (r, s), dtype)
    body = Body((i,), (r, s), (Store("a", at(i), ops.unary("neg", value)),))
    arranged = arrange_loops(body, buffers).reduce_axes
    assert (len(arranged) == 1) if turns else (arranged == (r, s))  # turned, they are one loop


def test_readers_that_an_operator_stands_between_are_kernels_apart() -> None:
    (i,) = axes(8)
    step, *group = (Compute(name, negated("a", at(i), (i,))) for name in "abc")
    for apart, share in ((set(), True), ({"b"}, False), ({"c"}, False), ({"b", "c"}, False)):
        order: Any = SimpleNamespace(separated=lambda one, other, apart=apart: other in apart)
        assert _may_share(step, [[each] for each in group], order) is share
    other = Compute("b", negated("a", at(*axes(9)), axes(9)))
    order = SimpleNamespace(separated=lambda one, other: False)
    assert not _may_share(step, [[other]], order)


@pytest.mark.parametrize("readers", [1, 2])
def test_a_value_that_one_alone_reads_may_lend_it_its_loops(
    readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def noted(consumer: Body, producer: Body, *, alone: bool) -> Body:
        seen.append(alone)
        return consumer

    monkeypatch.setattr(inline, "inline_producer", noted)
    (i,) = axes(8)
    bodies = [negated(name, at(i), (i,), "a") for name in "bc"[:readers]]
    steps = [Compute(f"to_{n}", body) for n, body in enumerate(bodies)]
    inline._inlined(negated("a", at(i), (i,)), steps)
    assert seen == [readers == 1] * readers


def test_who_was_computed_within_whom() -> None:
    decisions = [
        FusionDecision(producer, consumer, fused, "", 0)
        for producer, consumer, fused in (("a", "b", True), ("b", "c", True), ("d", "c", False))
    ]
    assert inline.inlined_members(decisions) == {
        "b": frozenset("ab"),
        "c": frozenset("abc"),
    }
