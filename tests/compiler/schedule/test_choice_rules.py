"""Heuristics of the scheduler, condition for condition: nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.checks import CheckKind, check_name
from fusec.ir.index import Expr
from fusec.ir.node import Node, dot, indirect, op, recording
from fusec.ir.program import Compute, Program, TensorRef
from fusec.schedule import choices
from fusec.schedule.choices_products import FEW_ROWS
from fusec.schedule.inline import _leaves_unchecked, inline_pointwise
from fusec.schedule.quantized_operands import _share
from fusec.schedule.row_and_column import _is_across
from support.triton_bodies import F32, at, axes, buffer

BUFFERS = {
    "w": buffer("w", (64, 3, 3)),
    "turned": buffer("turned", (3, 3, 64)),
    "same": buffer("same", (64, 3, 3)),
}


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


# -- small tensors that are turned over -------------------------------------------------------


def copied(into: str, cost: int = 0, mask: bool = False, twice: bool = False) -> Body:
    sizes = [size.constant or 0 for size in BUFFERS[into].shape]
    i, j, k = axes(*sizes)
    place = at(k, i, j) if into == "turned" else at(i, j, k)
    inside = ops.load("ok", (), torch.bool) if mask else None
    value: Node = ops.load("w", place, F32, inside)
    for _ in range(cost):
        value = ops.unary("neg", value)
    if twice:
        value = ops.where(ops.load("ok", (), torch.bool), value, ops.const(0.0, F32))
    return Body((i, j, k), (), (Store(into, at(i, j, k), value),))


def large(times: int) -> Body:
    i, j = axes(576, times)
    return Body((i, j), (), (Store("out", at(i, j), ops.load("turned", at(i, j), F32)),))


@pytest.mark.parametrize(
    ("producer", "readers", "turned"),
    [
        (lambda: copied("turned"), (64,), True),
        (lambda: copied("turned"), (63,), False),
        (lambda: copied("turned"), (64, 63), False),
        (lambda: copied("turned"), (64, 640), True),
        (lambda: copied("same"), (64,), False),
        (lambda: copied("turned", cost=1), (64,), False),
        (lambda: copied("turned", mask=True), (64,), False),
        (lambda: copied("turned", twice=True), (64,), False),
    ],
)
def test_what_is_turned_over_once(
    producer: Callable[[], Body], readers: tuple[int, ...], turned: bool
) -> None:
    found = choices.is_turned_over(producer(), [large(times) for times in readers], BUFFERS)
    assert found is turned


# -- windows with weights ---------------------------------------------------------------------


def taps(*places: Callable[[Expr, Expr, int], tuple[Expr, ...]], count: int = 4) -> Body:
    """The sum of products of elements of as many tensors as there are places."""
    i, j = axes(30, 8)
    total: Node | None = None
    for n in range(count):
        term: Node | None = None
        for number, place in enumerate(places):
            load = ops.load(f"x{number}", place(Expr.of(i), Expr.of(j), n), F32)
            term = load if term is None else ops.binary("mul", term, load)
        assert term is not None
        total = term if total is None else ops.binary("add", total, term)
    assert total is not None
    return Body((i, j), (), (Store("y", at(i, j), total),))


def image(i: Expr, j: Expr, n: int) -> tuple[Expr, ...]:
    return i + n, j


def table(i: Expr, j: Expr, n: int) -> tuple[Expr, ...]:
    return Expr.of(n), j


def once(i: Expr, j: Expr, n: int) -> tuple[Expr, ...]:
    return i, j


def test_what_takes_windows_with_weights() -> None:
    assert choices.is_convolution(taps(image, table))
    assert choices.is_convolution(taps(table, image))
    assert not choices.is_convolution(taps(image, table, count=3))
    assert not choices.is_convolution(taps(image))
    assert not choices.is_convolution(taps(image, image)), "no table of weights"
    assert not choices.is_convolution(taps(table, table)), "no image"
    # an element that is read once, or four times the same one
    assert not choices.is_convolution(taps(table, table, once))
    assert choices.is_convolution(taps(image, table, table))


@pytest.mark.parametrize("cost", [0, 1])
@pytest.mark.parametrize("windows", [0, 1, 2])
def test_pixels_that_cost_something_are_computed_once(windows: int, cost: int) -> None:
    """Beside what reads each once, too."""
    i, j = axes(40, 8)
    value = ops.load("x", at(i, j), F32)
    for _ in range(cost):
        value = ops.unary("tanh", value)
    producer = Compute("made", Body((i, j), (), (Store("x0", at(i, j), value),)), "tanh")
    steps = [producer]
    for number in range(2):
        body = taps(image, table) if number < windows else taps(once, count=1)
        store = Store(f"y{number}", body.stores[0].index, body.stores[0].value)
        steps.append(Compute(f"read{number}", Body(body.axes, (), (store,)), "reads"))
    shapes = {"x": (40, 8), "x0": (40, 8), "x1": (4, 8), "y0": (30, 8), "y1": (30, 8)}
    buffers = {name: buffer(name, shape) for name, shape in shapes.items()}
    refs = (
        TensorRef(n, buffers[n].shape, buffers[n].strides, Expr.of(0), F32) for n in ("y0", "y1")
    )
    _, decisions = inline_pointwise(Program(("x", "x1"), {}, buffers, tuple(steps), tuple(refs)))
    reasons = {d.reason for d in decisions if not d.fused}
    said = any(reason.startswith("a window would compute each element") for reason in reasons)
    assert said is bool(windows and cost)


# -- checks -----------------------------------------------------------------------------------


def checked(rows: int = 20) -> Body:
    """Elements of a table at places that are checked."""
    i, j = axes(rows, 8)
    place = ops.load("places", at(i), torch.int64)
    valid = op("lt", (place, ops.const(9, torch.int64)), torch.bool)
    sound = op(check_name(CheckKind.INDEX, "it"), (valid, place), torch.int64)
    value = ops.load("table", (indirect(sound, Expr.of(9)), Expr.of(j)), F32)
    return Body((i, j), (), (Store("picked", at(i, j), value),))


def reading(*places: Callable[[Expr, Expr], Expr], rows: int = 20) -> Compute:
    i, j = axes(rows, 8)
    total: Node = ops.const(0.0, F32)
    for place in places:
        row = place(Expr.of(i), Expr.of(j))
        total = ops.binary("add", total, ops.load("picked", (row, Expr.of(j)), F32))
    return Compute("read", Body((i, j), (), (Store("out", at(i, j), total),)), "reads")


def somewhere(i: Expr, j: Expr) -> Expr:
    return indirect(ops.load("others", (i,), torch.int64), Expr.of(20))


@pytest.mark.parametrize(
    ("readers", "unchecked"),
    [
        (lambda: [reading(lambda i, j: i)], False),
        (lambda: [reading(lambda i, j: 19 - i)], False),
        (lambda: [reading(lambda i, j: i + 3, rows=5)], True),
        (lambda: [reading(lambda i, j: Expr.of(3))], True),
        (lambda: [reading(lambda i, j: i + 3, rows=5), reading(lambda i, j: i)], False),
        (lambda: [reading(lambda i, j: i, lambda i, j: Expr.of(3))], False),
        (lambda: [reading(somewhere)], True),
        (lambda: [reading(lambda i, j: somewhere(i, j) + i)], True),
    ],
)
def test_who_leaves_elements_unchecked(
    readers: Callable[[], list[Compute]], unchecked: bool
) -> None:
    assert _leaves_unchecked(checked(), readers()) is unchecked


def test_what_checks_nothing_leaves_nothing_unchecked() -> None:
    (i, j) = axes(20, 8)
    body = Body((i, j), (), (Store("picked", at(i, j), ops.load("x", at(i, j), F32)),))
    assert not _leaves_unchecked(body, [reading(lambda i, j: Expr.of(3))])


# -- sums of columns beside rows --------------------------------------------------------------


def test_where_the_columns_of_a_sum_run() -> None:
    (i, k), (j,) = axes(6, 5), axes(7, prefix="r")
    value = ops.load("x", at(i, j), F32)
    terms = {"t": value}

    def across(*index: Expr, outer: bool = True, rows: int = 1, name: str = "t") -> bool:
        store = Store(name, index, value)
        body = Body((i, k) if outer else (j,), (j,) if outer else (i, k), (store,))
        return _is_across(body, terms, rows)

    row, other, column = at(i, k, j)
    assert across(row, column)
    assert across(row, other, column, rows=2)
    assert across(Expr.of(0), column)
    assert not across(row, other, column), "its columns are outside"
    assert not across(column, row)
    assert not across(row, column, outer=False)
    assert across(column, row, name="another"), "no term"
    assert not _is_across(Body((i, j), (), (Store("t", (row, column), value),)), terms, 1)


# -- operands that are unpacked from bytes ---------------------------------------------------


def share(rows: int, columns: int, dtype: torch.dtype = torch.uint8, of: str = "w") -> float | None:
    """Ask for ``x @ w`` whose second operand is made of bytes and of a scale each row."""
    inner = 64
    held = {"x": buffer("x", (rows, inner)), "w": buffer("w", (inner, columns))}
    held |= {"q": buffer("q", (inner, columns), dtype), "s": buffer("s", (inner,))}
    (i, j), (r,) = axes(rows, columns), axes(inner, prefix="r")
    left, right = ops.load("x", at(i, r), F32), ops.load(of, at(r, j), F32)
    product = Body((i, j), (r,), (Store("out", at(i, j), dot(left, right, (r,), F32)),))
    k, m = axes(inner, columns)
    number = ops.cast(ops.load("q", at(k, m), dtype), F32)
    value = ops.binary("mul", number, ops.load("s", at(k), F32))
    return _share(product, {"w": Body((k, m), (), (Store("w", at(k, m), value),))}, held)


@pytest.mark.parametrize(("rows", "columns", "counts"), [
    (FEW_ROWS, 1024, True), (FEW_ROWS + 1, 1024, False), (1, 2 * FEW_ROWS, True),
    (1, 2 * FEW_ROWS - 1, False)
])  # fmt: skip
def test_products_of_few_rows_with_bytes(rows: int, columns: int, counts: bool) -> None:
    found = share(rows, columns)
    assert found == ((64 * columns + 64 * 4) / (64 * columns * 4) if counts else None)


def test_what_is_read_for_an_operand() -> None:
    assert share(8, 1024, torch.float16) is None, "no whole numbers"
    assert share(8, 1024, torch.int64) is None, "more bytes than the operand's own"
    assert share(8, 1024, of="q") is None, "what nothing makes"
    (r,) = axes(64, prefix="r")
    number = dot(ops.load("a", at(r), F32), ops.load("b", at(r), F32), (r,), F32)
    held = {"a": buffer("a", (64,)), "b": buffer("b", (64,))}
    assert _share(Body((), (r,), (Store("out", (), number),)), {}, held) is None
