"""Two computations as one: whether they merge, and that the merged one computes the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store, axis_sizes
from fusec.ir.index import Expr, Symbol
from fusec.ir.interpret import run_body
from fusec.ir.node import Node, recording
from fusec.ir.shapes import flatten, unflatten
from fusec.schedule import align
from fusec.schedule.align import Refusal, inline_producer, merge
from support.triton_bodies import F32, at, axes

Place = Callable[..., tuple[Expr | Symbol | int, ...]]
N, M = 4, 6
TENSORS = {"x": (N, M), "y": (N, M), "t": (M, N), "v": (N,), "w": (M,), "f": (N * M,)}
TENSORS |= {"a": (N, M), "b": (N, M), "r": (N,), "q": (N,), "one": (1, M), "three": (2, 2, M)}
TENSORS |= {"square": (N, N), "c": (N, M), "p": (2, 1), "s": (2, 1), "rows": (2, 1, M)}


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


def exprs(place: tuple[Expr | Symbol | int, ...]) -> tuple[Expr, ...]:
    return tuple(Expr.of(each) for each in place)


def each(into: str, sizes: tuple[int, ...], to: Place, **reads: Place | tuple[Place, ...]) -> Body:
    """A pointwise body: where it stores, and where it loads each tensor."""
    loops = axes(*sizes)
    value: Node | None = None
    for name, places in reads.items():
        for place in places if isinstance(places, tuple) else (places,):
            one = ops.load(name, exprs(place(*loops)), F32)
            value = one if value is None else ops.binary("add", ops.unary("neg", value), one)
    assert value is not None
    return Body(loops, (), (Store(into, exprs(to(*loops)), value),))


def total(
    into: str,
    rows: tuple[int, ...],
    columns: tuple[int, ...],
    to: Place,
    also: str = "",
    **reads: Place,
) -> Body:
    """A body of sums, and of what is beside them where a name is given."""
    outer, inner = axes(*rows), axes(*columns, prefix="r")
    value: Node | None = None
    for name, place in reads.items():
        one = ops.load(name, exprs(place(*outer, *inner)), F32)
        value = one if value is None else ops.binary("mul", value, one)
    assert value is not None
    summed = ops.reduce("sum", value, inner, F32)
    stores = [Store(into, exprs(to(*outer)), summed)]
    if also:
        stores.append(Store(also, at(*outer, *inner), ops.binary("sub", value, summed)))
    return Body(outer, inner, tuple(stores))


def running(into: str, source: str) -> Body:
    """Sums along the rows so far."""
    (i,), (j,) = axes(N), axes(M, prefix="r")
    value = ops.scan("sum", ops.load(source, at(i, j), F32), j, F32)
    return Body((i,), (j,), (Store(into, at(i, j), value),))


def results(*bodies: Body) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {n: torch.randn(s, generator=generator) for n, s in TENSORS.items()}
    for body in bodies:
        run_body(body, tensors, {})
    return tensors


def check(first: Body, second: Body, merged: Body) -> None:
    found, wanted = results(merged), results(first, second)
    for name in TENSORS:
        torch.testing.assert_close(found[name], wanted[name], msg=name)


IJ: Place = lambda i, j: (i, j)  # noqa: E731
JI: Place = lambda i, j: (j, i)  # noqa: E731
I: Place = lambda i, *_: (i,)  # noqa: E731
ROW: Place = lambda i, *_: (i, 0)  # noqa: E731
BACK: Place = lambda i, j: (i, M - 1 - Expr.of(j))  # noqa: E731
Pair = Callable[[], tuple[Body, Body]]


def a_row(**more: Place) -> Body:
    return total("r", (N,), (M,), I, x=IJ, **more)


def plain(into: str = "a", source: str = "x") -> Body:
    return each(into, (N, M), IJ, **{source: IJ})


def split(k: Symbol) -> tuple[Expr, ...]:
    return unflatten(Expr.of(k), (Expr.of(N), Expr.of(M)))


def flat(i: Symbol, j: Symbol) -> tuple[Expr, ...]:
    return (flatten(at(i, j), (Expr.of(N), Expr.of(M))),)


MERGED: dict[str, tuple[Pair, str]] = {
    "one after the other": (lambda: (plain(), plain("b", "a")), "4 x 6, 1"),
    "side by side": (lambda: (plain(), plain("b")), "4 x 6, 1"),
    "of different tensors": (lambda: (plain(), plain("b", "y")), "4 x 6, 1"),
    "turned": (lambda: (plain(), each("t", (M, N), IJ, a=JI)), "6 x 4, 1"),
    "turned, side by side": (lambda: (plain(), each("t", (M, N), IJ, x=JI)), "6 x 4, 1"),
    "laid flat": (lambda: (plain(), each("f", (N * M,), I, a=split)), "24, 1"),
    "of what lies flat": (lambda: (each("f", (N * M,), I, x=split), each("b", (N, M), IJ, f=flat)),
                          "4 x 6, 1"),
    "a row of one": (lambda: (each("one", (1, M), IJ, x=IJ), each("w", (M,), I, one=lambda k: (
        0, k))), "6, 1"),
    "in three dimensions": (lambda: (plain(), each("three", (2, 2, M), lambda i, j, k: (i, j, k),
                            a=lambda i, j, k: (2 * Expr.of(i) + j, k))), "2 x 2 x 6, 1"),
    "a sum and what reads it": (lambda: (a_row(), each("b", (N, M), IJ, x=IJ, r=I)), "4, 6"),
    "a sum and its rows": (lambda: (a_row(), each("q", (N,), I, r=I)), "4, 6"),
    "a sum and others of each row": (lambda: (a_row(), each("q", (N,), I, v=I)), "4, 6"),
    "others of each row and a sum": (lambda: (each("q", (N,), I, v=I), a_row()), "4, 6"),
    "what is summed": (lambda: (plain(), total("r", (N,), (M,), I, a=IJ)), "4, 6"),
    "columns that are summed": (lambda: (plain(), total("w", (M,), (N,), I, a=JI)), "6, 4"),
    "all that is summed": (lambda: (plain(), total("q", (1,), (N, M), I, a=lambda _, i, j: (
        i, j))), "1, 4 x 6"),
    "two sums": (lambda: (a_row(), total("q", (N,), (M,), I, y=IJ)), "4, 6"),
    "a sum of what a sum is in": (lambda: (total("r", (N,), (M,), I, "a", x=IJ),
                                  total("q", (N,), (M,), I, a=IJ)), "4, 6"),
    "a sum with another's value": (lambda: (a_row(), total("q", (N,), (M,), I, x=IJ, r=I)),
                                   "4, 6"),
    "one of a row": (lambda: (total("r", (N,), (M,), I, "a", x=IJ), each("q", (N,), I, a=ROW)),
                     "4, 6"),
    "sums so far": (lambda: (running("a", "x"), plain("b", "a")), "4, 6"),
    "before sums so far": (lambda: (plain(), running("b", "a")), "4, 6"),
    "sums so far from the other end": (lambda: (running("a", "x"), each("b", (N, M), BACK, a=IJ)),
                                       "4, 6"),
    "sums from the end": (lambda: (each("a", (N, M), IJ, x=BACK), running("b", "a")), "4, 6"),
    "another element": (lambda: (plain(), each("b", (N, M), IJ, a=BACK)), "4 x 6, 1"),
    "sums so far, as a flat line": (
        lambda: (running("a", "x"), each("f", (N * M,), I, a=split)), "4, 6"),
    "read from the end": (
        lambda: (running("a", "x"), each("b", (N, M), IJ, a=BACK)), "4, 6"),
    "written from the end": (
        lambda: (each("a", (N, M), BACK, x=IJ), running("b", "a")), "4, 6"),
    "beside a sum of another": (lambda: (plain("b", "y"), a_row()), "4, 6"),
    "a sum beside another": (lambda: (a_row(), plain("b", "y")), "4, 6"),
    "in three dimensions beside a sum": (lambda: (
        each("three", (2, 2, M), lambda *at: at, w=lambda i, j, k: (k,)), a_row()), "4, 6"),
    "in three dimensions beside a sum of as many": (lambda: (
        each("three", (N, 2, 3), lambda i, j, k: (
            Expr.of(i) // 2, Expr.of(i) % 2, 3 * Expr.of(j) + k), v=I), a_row()), "4, 6"),
    "with its columns": (lambda: (
        each("b", (N, M), IJ, w=lambda i, j: (j,)),
        total("r", (N,), (M,), I, w=lambda i, j: (j,))), "4, 6"),
    "sums of a slice and of the next": (lambda: (
        total("p", (2, 1), (M,), IJ, three=lambda i, j, k: (i, j, k)),
        total("s", (2, 1), (M,), IJ, three=lambda i, j, k: (i, 1 + Expr.of(j), k))), "2 x 1, 6"),
    "sums of a slice and of the one before": (lambda: (
        total("p", (2, 1), (M,), IJ, three=lambda i, j, k: (i, 1 + Expr.of(j), k)),
        total("s", (2, 1), (M,), IJ, three=lambda i, j, k: (i, j, k))), "2 x 1, 6"),
    "a slice and the sums of the next": (lambda: (
        each("rows", (2, 1, M), lambda *at: at, three=lambda i, j, k: (i, j, k)),
        total("s", (2, 1), (M,), IJ, three=lambda i, j, k: (i, 1 + Expr.of(j), k))), "2 x 1, 6"),
    "a slice and the next": (lambda: (
        each("p", (2, 1), IJ, three=lambda i, j: (i, j, 0)),
        each("s", (2, 1), IJ, three=lambda i, j: (i, 1 + Expr.of(j), 0))), "2 x 1, 1"),
    "what was read is overwritten": (lambda: (plain(), plain("x", "y")), "4 x 6, 1"),
}  # fmt: skip
REFUSED: dict[str, tuple[Pair, str]] = {
    "of other sizes": (lambda: (plain(), each("w", (M,), I, w=I)), "one runs over"),
    "sums over other columns": (lambda: (a_row(), total("q", (N,), (N,), I, square=IJ)),
                                "reduce over different dimensions"),
    "sums of other rows": (lambda: (a_row(), total("w", (M,), (M,), I, w=I)), "one runs over"),
    "sums of rows and of columns": (lambda: (a_row(), total("w", (M,), (N,), I, x=JI)), "one runs"),
    "an element of another sum": (lambda: (a_row(), each("q", (N,), I, r=lambda i: (0,))),
                                  "other elements"),
    "overwritten elsewhere": (lambda: (each("b", (N, M), IJ, x=BACK, y=IJ), plain("x", "y")), ""),
    "both write it": (lambda: (plain(), plain("a", "y")), "both write a"),
}  # fmt: skip


def text(loops: tuple[Symbol, ...]) -> str:
    return " x ".join(str(size) for size in axis_sizes(loops)) or "1"


@pytest.mark.parametrize("name", MERGED)
def test_merged(name: str) -> None:
    pair, loops = MERGED[name]
    first, second = pair()
    merged = merge(first, second)
    assert isinstance(merged, Body), merged
    check(first, second, merged)
    assert f"{text(merged.axes)}, {text(merged.reduce_axes)}" == loops
    assert [s.buffer for s in merged.stores] == [s.buffer for s in (*first.stores, *second.stores)]
    read = set(first.reads()) | (set(second.reads()) - set(first.writes()))
    assert set(merged.reads()) == read, "what was computed is not read"


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    pair, reason = REFUSED[name]
    first, second = pair()
    refused = merge(first, second)
    if isinstance(refused, Body):
        check(first, second, refused)
    assert isinstance(refused, Refusal)
    assert reason in refused.reason


def test_loops_that_have_to_be_the_firsts() -> None:
    first, second = plain(), each("t", (M, N), IJ, a=JI)
    merged = merge(first, second, onto_first=True)
    assert isinstance(merged, Body)
    assert merged.axes == first.axes
    assert len(merged.loads()) == 1, "the value itself is used"
    check(first, second, merged)
    refused = merge(plain(), total("r", (N,), (M,), I, a=IJ), onto_first=True)
    assert isinstance(refused, Body)
    assert text(refused.axes) == "4"


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("least", [0, 1, 2, 3, 64])
def test_inlined(alone: bool, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long producer's loops are kept, where it is read point by point."""
    monkeypatch.setattr(align, "_LONG", least)
    producer = plain()  # of a load alone
    for second in (plain("b", "a"), each("b", (N, M), IJ, a=BACK), each("t", (M, N), IJ, a=JI),
                   each("f", (N * M,), I, a=split), total("r", (N,), (M,), I, a=IJ),
                   each("c", (N, M), IJ, a=(IJ, ROW))):  # fmt: skip
        inlined = inline_producer(second, producer, alone=alone)
        assert isinstance(inlined, Body)
        assert "a" not in inlined.reads()
        found, wanted = results(inlined), results(producer, second)
        (name,) = second.writes()
        torch.testing.assert_close(found[name], wanted[name])
        pointwise = name == "b" and second.loads()[0].index == at(*second.axes)
        onto = alone and len(producer.nodes()) > least and pointwise
        assert inlined.axes == (producer.axes if onto else second.axes)
