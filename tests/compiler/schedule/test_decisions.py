"""What the heuristics of the schedule decide, over many bodies and sizes; see `test_decisions`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, const, recording
from fusec.ir.program import Compute, Program
from fusec.schedule import choices, choices_sums
from fusec.schedule.choices_products import is_small_product, is_vector_product, may_feed_product
from fusec.schedule.inline import _belongs_to_its_producer
from fusec.schedule.products import loops_of
from support import triton_bodies as bodies
from support.decisions import compare, runs
from support.triton_bodies import F32, Case, at, axes, buffer, read
from support.triton_windows import weighted, windows

CPU, GPU = torch.device("cpu"), torch.device("cuda")
HALF, I8 = torch.float16, torch.int8


def chain(inputs: int, cost: int, functions: int = 0, size: int = 512) -> Body:
    """Return a store of what so many inputs yield by so many additions and functions."""
    (i,) = axes(size)
    with recording():
        value: Node = const(1.0, F32)
        for n in range(inputs):
            loaded = ops.load(f"x{n}", at(i), F32)
            value = loaded if n == 0 else ops.binary("add", value, loaded)
        for n in range(max(cost - max(inputs - 1, 0), 0)):
            value = ops.binary("add", value, ops.unary("neg", const(float(n), F32)))
            value = ops.binary("maximum", value, ops.load("x0", at(i), F32)) if inputs else value
        for _ in range(functions):
            value = ops.unary("exp", value)
    return Body((i,), (), (Store("made", at(i), value),))


PRODUCERS: dict[str, Body] = {
    f"{inputs} inputs, cost {cost}, {functions} functions": chain(inputs, cost, functions)
    for inputs in (0, 2)
    for cost, functions in ((1, 0), (0, 1), (2, 2), (0, 4))
}


def test_what_is_computed_again() -> None:
    def lines() -> Iterable[str]:
        for name, body in PRODUCERS.items():
            yield f"{name}: cost {choices.node_cost(body.nodes())}"
            for expansion in (1, 2, 2.5, 3.9, 4, 7.9, 8):
                for large in (0, 1, 2, 3):
                    for cheap, taps in ((False, False), (True, False), (False, True)):
                        found = runs(
                            lambda uses: (
                                choices.may_recompute(
                                    body,  # noqa: B023
                                    uses,
                                    expansion,  # noqa: B023
                                    large,  # noqa: B023
                                    lambda: cheap,  # noqa: B023
                                    taps,  # noqa: B023
                                )
                                is None
                            ),
                            range(1, 7),
                        )
                        if found != "1 to 6: True":
                            yield f"  {expansion} {large} {cheap} {taps}: {found}"

    compare("recompute", lines())


@pytest.mark.parametrize(
    ("uses", "expansion", "large", "taps", "reason"),
    [
        (2, 1, 3, False, "2 consumers would each compute it, at a cost of 2"),
        (5, 1, 2, False, "5 consumers read it"),
        (1, 8, 2, False, "each of 2 tensors would be read 8 times instead of one"),
        (1, 4, 1, True, "a window would compute each element 4 times, at a cost of 2"),
    ],
)
def test_the_reason_says_what_it_would_cost(
    uses: int, expansion: float, large: int, taps: bool, reason: str
) -> None:
    body = chain(3, 2)
    assert choices.may_recompute(body, uses, expansion, large, lambda: False, taps) == reason


def test_sums_of_columns_beside_rows() -> None:
    symbolic = Expr.of(Symbol("n", "size", low=2))

    def lines() -> Iterable[str]:
        for device in (CPU, GPU):
            counts = [1, 63, 64, 512, 513, 4096, 32_768, 40_000, 300_000]
            found = [choices_sums.piece_rows(count, device) for count in (None, *counts)]
            yield f"piece_rows {device}: {found}"
            for rows in (63, 64, 100, 4096, 100_000, symbolic):
                for itemsizes in ((4,), (4, 4)):
                    for share in (0, 1, 4, 64):

                        def chosen(columns: int | None) -> int | str:
                            width = (columns or 1) * sum(itemsizes)  # noqa: B023
                            saved = share * choices.estimate(Expr.of(rows)) * width // 16  # noqa: B023
                            found = choices_sums.rows_of_piece(
                                Expr.of(rows),  # noqa: B023
                                columns,
                                itemsizes,  # noqa: B023
                                saved,
                                device,  # noqa: B023
                            )
                            return found if isinstance(found, int) else found.split(" of ")[0]

                        found = runs(chosen, [None, 63, 64, 8192, 16_384, 16_385, 65_536, 65_537])
                        yield f"{device} {rows} {itemsizes} {share}: {found}"
        given = [(n, w) for n in (0, 8, 100) for w in (False, True)]
        for each, wanted in given:
            found = choices_sums.rows_of_piece(
                Expr.of(1000), 256, (4,), 40_000, CPU, given=each, wanted=wanted
            )
            yield f"given {each} {wanted}: {found}"

    compare("sums_of_columns", lines())


PRODUCTS: dict[str, Callable[[], Case]] = {
    "100 x 100 over 100": lambda: bodies.product(100, 100, 100),
    "1024 x 1024 over 1": lambda: bodies.product(1024, 1024, 1),
    "1024 x 1025 over 1": lambda: bodies.product(1024, 1025, 1),
    "8 x 8 over 128": lambda: bodies.product(8, 8, 128),
    "8 x 8 over 129": lambda: bodies.product(8, 8, 129),
    "0 x 8 over 8": lambda: bodies.product(0, 8, 8),
    "12 of 100 x 100 over 8": lambda: bodies.product(100, 100, 8, batch=12),
    "14 of 100 x 100 over 8": lambda: bodies.product(100, 100, 8, batch=14),
    "a row": lambda: bodies.product(1, 500, 300),
    "a row, turned": lambda: bodies.product(1, 500, 300, turned=True),
    "a column": lambda: bodies.product(500, 1, 300),
    "a column, turned": lambda: bodies.product(500, 1, 300, turned=True),
    "one of a row, turned": lambda: bodies.product(1, 500, 300, turned=True, batch=1),
    "two of a row, turned": lambda: bodies.product(1, 500, 300, turned=True, batch=2),
    "quantized": lambda: bodies.product(1, 500, 300, turned=True, quantized=True),
    "symbolic": lambda: bodies.product(Expr.of(Symbol("n", "size", low=2)), 8, 8),
}


def test_products() -> None:
    def lines() -> Iterable[str]:
        for name, made in PRODUCTS.items():
            case = made()
            small = is_small_product(case.body)
            vector = is_vector_product(case.body, case.buffers)
            yield f"{name}: small {small}, vector {vector}"
        for columns in (1, 2, 256, 257):
            body = bodies.softmax_of_product(40, columns, 30).body
            yield f"rows of {columns}: {choices.unfit_for_product(body)}"

    compare("products", lines())
    one, other = bodies.product(40, 30, 20).body, bodies.product(40, 30, 20).body
    (i, j), flat = one.axes, bodies.product(1, 30, 20).body
    assert loops_of(one) == (Expr.of(i), Expr.of(j))
    assert loops_of(flat) == (Expr.of(0), Expr.of(flat.axes[1]))
    both = Body(one.axes, one.reduce_axes, (*one.stores, *other.stores))
    assert choices.unfit_for_product(both) == "a kernel computes one matrix product"


def feeding(cost: int, dtype: torch.dtype, more: int = 0) -> tuple[Body, dict[str, Buffer]]:
    """Return a store of an operand that takes so many additions, from inputs of a type."""
    k, j = axes(64, 96)
    buffers = {f"x{n}": buffer(f"x{n}", (64, 96), dtype) for n in range(1 + more)}
    buffers["w"] = buffer("w", (64, 96), HALF)
    with recording():
        value = ops.cast(ops.load("x0", at(k, j), dtype), F32)
        for n in range(more):
            value = ops.binary("add", value, ops.cast(ops.load(f"x{n + 1}", at(k, j), dtype), F32))
        for n in range(cost - more):
            value = ops.binary("maximum" if n % 2 else "minimum", value, const(float(n), F32))
        stored = ops.cast(value, HALF, implicit=True)
    return Body((k, j), (), (Store("w", at(k, j), stored),)), buffers


def test_what_a_tile_of_a_product_computes() -> None:
    def lines() -> Iterable[str]:
        for rows in (16, 64, 65, 500):
            product = bodies.product(rows, 96, 64)
            consumer = Compute("mm", product.body)
            for cost in (1, 4, 5):
                for dtype in (I8, HALF, F32):
                    for more in (0, 1):
                        body, buffers = feeding(cost, dtype, more)
                        found = may_feed_product(body, [consumer], buffers, set())
                        yield f"{rows} {cost} {dtype} {more}: {found}"
        body, buffers = feeding(1, I8)
        other = replace(body.stores[0], buffer="b")
        yield f"two: {may_feed_product(body, [consumer, consumer], buffers, set())}"
        yield f"made: {may_feed_product(body, [consumer], buffers, {'x0'})}"
        apart = replace(body, stores=(replace(other, buffer="other"),))
        yield f"no operand: {may_feed_product(apart, [consumer] * 2, buffers, set())}"

    compare("operands", lines())


def test_limits_of_a_kernel() -> None:
    def tensors(count: int) -> Body:
        (i,) = axes(8)
        with recording():
            stores = [Store(f"y{n}", at(i), read(f"x{n}", at(i), F32)) for n in range(count)]
        return Body((i,), (), tuple(stores))

    def reductions(count: int) -> Body:
        (i,), (r,) = axes(8), axes(9, prefix="r")
        with recording():
            x = read("x", at(i, r), F32)
            total: Node | None = None
            for n in range(count):
                one = ops.reduce("sum", ops.binary("add", x, const(float(n), F32)), (r,), F32)
                total = one if total is None else ops.binary("add", total, one)
        assert total is not None
        return Body((i,), (r,), (Store("y", at(i), total),))

    def values(count: int) -> Body:
        (i,) = axes(8)
        with recording():
            x = read("x", at(i), F32)
            value = x
            for _ in range(count - 1):
                value = ops.binary("add", ops.unary("neg", value), x)
        return Body((i,), (), (Store("y", at(i), value),))

    assert choices.too_large(tensors(12)) is None
    assert choices.too_large(tensors(13)) == "the kernel would take 26 tensors, more than 24"
    assert choices.too_large(reductions(12)) is None
    found = "the kernel would hold 13 reductions or scans, more than 12"
    assert choices.too_large(reductions(13)) == found
    assert choices.too_large(values(200)) is None
    assert choices.too_large(values(201)) == "the kernel would compute 401 values, more than 400"


def test_windows() -> None:
    def sum_of(count: int, weights: int) -> Body:
        i, j = axes(30, 8)
        with recording():
            total: Node | None = None
            for n in range(count):
                value = ops.load("x", (Expr.of(i) + n, Expr.of(j)), F32)
                if n < weights:
                    weight = ops.load("w", (Expr.of(n), Expr.of(j)), F32)
                    value = ops.binary("mul", value, weight)
                total = value if total is None else ops.binary("add", total, value)
        assert total is not None
        return Body((i, j), (), (Store("y", at(i, j), total),))

    assert not choices.is_convolution(sum_of(3, 3))
    assert choices.is_convolution(sum_of(4, 4))
    assert not choices.is_convolution(sum_of(9, 3))
    assert not choices.is_convolution(bodies.sum_columns(8, 9).body)
    assert not choices.reads_windows(sum_of(15, 0))
    assert choices.reads_windows(sum_of(16, 0))
    assert choices.reads_windows(sum_of(16, 1)), "one of two is read often"
    image, pool = weighted(1, 6, 8), windows(1, 6, 6)
    after = Body(
        image.body.axes,
        (),
        (Store("wide", image.body.stores[0].index, image.body.stores[0].value),),
    )
    buffers = {**image.buffers, "wide": buffer("wide", (1, 6, 6, 8), F32)}
    assert choices.is_convolution(image.body)
    assert not choices.is_convolution(pool.body)
    assert choices.unfit_for_windows(after, image.body, buffers) is None
    before = replace(after, stores=(replace(after.stores[0], buffer="x"),))
    found = choices.unfit_for_windows(before, image.body, buffers)
    assert found == "each of its elements would be computed once for every pixel of a window"
    total = bodies.sum_columns(8, 9)
    found = "windows are computed in tiles of their own"
    assert choices.unfit_for_windows(image.body, total.body, buffers) == found
    assert choices.unfit_for_windows(total.body, image.body, buffers) == found
    assert choices.unfit_for_windows(total.body, pool.body, buffers) is None


@pytest.mark.parametrize("summed", [True, False], ids=["a sum", "no sum"])
@pytest.mark.parametrize("reducing", [True, False], ids=["of a reduction", "of none"])
@pytest.mark.parametrize("columns", [64, 2], ids=["few of many", "half of all"])
def test_what_picks_from_a_large_result(columns: int, reducing: bool, summed: bool) -> None:
    """It stays out of the sum that reads it where a reduction makes what it picks from."""
    rows = 100
    sizes = {"x": (rows, columns), "large": (rows, columns), "picked": (rows,), "out": (rows,)}
    with recording():
        i, j = axes(rows, columns)
        (r,) = axes(columns, prefix="r")
        value = read("x", at(i, j), F32)
        if reducing:
            value = ops.binary("sub", value, ops.reduce("max", read("x", at(i, r), F32), (r,), F32))
        made = Body((i, j), (r,) if reducing else (), (Store("large", at(i, j), value),))
        (k,) = axes(rows)
        picks = Body(
            (k,), (), (Store("picked", at(k), read("large", (Expr.of(k), Expr.of(0)), F32)),)
        )
        (n,), (m,) = axes(rows), axes(rows, prefix="m")
        loaded = read("picked", at(m if summed else n), F32)
        total = ops.reduce("sum", loaded, (m,), F32) if summed else ops.unary("neg", loaded)
        reads = Body((n,), (m,) if summed else (), (Store("out", at(n), total),))
    steps = {each.name: each for each in (Compute("made", made), Compute("read", reads))}
    buffers = {name: buffer(name, shape) for name, shape in sizes.items()}
    program = Program(("x",), {}, buffers, tuple(steps.values()), ())
    found = _belongs_to_its_producer(picks, [Compute("read", reads)], program, dict(steps))
    assert found == (columns == 64 and reducing and summed)
