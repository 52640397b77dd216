"""When a GPU computes a value once more rather than write and read it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, recording
from fusec.ir.program import Compute, Extern, Program, TensorRef
from fusec.schedule.choices import ReadingKernel, cheaper_again
from fusec.schedule.inline import ONCE, inline_pointwise
from fusec.schedule.order import Order, expected_kernels, order_of
from support.triton_bodies import F32, at, axes, buffer, read

ROWS, COLUMNS = 512, 4096
HALF = torch.float16


def buffers(device: str) -> dict[str, Buffer]:
    """Return a float32 value made from two tensors of halves, and what is made of it."""
    shape = (ROWS, COLUMNS)
    found = {name: buffer(name, shape, HALF) for name in ("x", "gradient", "out")}
    found |= {"made": buffer("made", shape, F32)}
    found |= {name: buffer(name, (ROWS,), F32) for name in ("sum", "other")}
    found["columns"] = buffer("columns", (COLUMNS,), F32)
    return {n: replace(b, device=torch.device(device)) for n, b in found.items()}


def producer(functions: int) -> Body:
    """Return a value that takes that many elementary functions."""
    i, j = axes(ROWS, COLUMNS)
    value = read("x", at(i, j), HALF)
    for _ in range(functions):
        value = ops.unary("tanh", value)
    value = ops.binary("mul", value, read("gradient", at(i, j), HALF))
    return Body((i, j), (), (Store("made", at(i, j), value),))


def row_sums(name: str, times: bool) -> Compute:
    """Return the sums of the value's rows, or of the products with x."""
    (i,), (r,) = axes(ROWS), axes(COLUMNS, prefix="r")
    value: Node = ops.load("made", at(i, r), F32)
    if times:
        value = ops.binary("mul", value, read("x", at(i, r), HALF))
    return Compute(
        name, Body((i,), (r,), (Store(name, at(i), ops.reduce("sum", value, (r,), F32)),))
    )


def column_sums() -> Compute:
    (j,), (r,) = axes(COLUMNS), axes(ROWS, prefix="r")
    total = ops.reduce("sum", ops.load("made", at(r, j), F32), (r,), F32)
    return Compute("columns", Body((j,), (r,), (Store("columns", at(j), total),)))


def kernels(*consumers: Compute | tuple[Compute, ...], waits: bool = True) -> list[ReadingKernel]:
    """Return what readers are about to be: by themselves, or inlined into the last of a tuple.

    Args:
        consumers: The readers, or each with those that it is about to be inlined into.
        waits: Whether the last one is computed from all the others.
    """
    chains = [each if isinstance(each, tuple) else (each,) for each in consumers]
    names = [chain[-1].name for chain in chains]
    bits = {name: 1 << n for n, name in enumerate(names)}
    nothing = dict.fromkeys(names, 0)
    before = nothing | ({names[-1]: sum(bits.values()) - bits[names[-1]]} if waits else {})
    return expected_kernels(chains, Order(bits, before, nothing))


def product() -> Compute:
    """Return the products with x by themselves, as they are before anything is inlined."""
    i, j = axes(ROWS, COLUMNS)
    value = ops.binary("mul", ops.load("made", at(i, j), F32), read("x", at(i, j), HALF))
    return Compute("product", Body((i, j), (), (Store("other", at(i, j), value),)))


def result() -> Compute:
    i, j = axes(ROWS, COLUMNS)
    value = ops.binary("add", ops.load("made", at(i, j), F32), read("x", at(i, j), HALF))
    return Compute("out", Body((i, j), (), (Store("out", at(i, j), ops.cast(value, HALF)),)))


@pytest.mark.parametrize(("functions", "expected"), [(0, True), (4, True), (5, False), (20, False)])
def test_it_pays_while_the_memory_is_what_is_waited_for(functions: int, expected: bool) -> None:
    with recording():
        consumers = [row_sums("sum", True), result()]
        assert cheaper_again(producer(functions), kernels(*consumers), buffers("cuda")) is expected


def test_consumers_that_loop_alike_are_one_kernel() -> None:
    with recording():
        alike = [row_sums("sum", True), row_sums("other", False), result()]
        apart = [row_sums("sum", True), column_sums(), result()]
        assert cheaper_again(producer(3), kernels(*alike), buffers("cuda"))
        assert not cheaper_again(producer(3), kernels(*apart), buffers("cuda"))


def test_what_is_about_to_be_inlined_counts_where_it_ends() -> None:
    with recording():
        first, last = (product(), row_sums("sum", False)), result()
        alike = kernels(first, row_sums("other", False), last)
        assert cheaper_again(producer(4), alike, buffers("cuda"))
        apart = kernels(first, column_sums(), last)
        assert not cheaper_again(producer(4), apart, buffers("cuda"))


def test_a_processor_computes_for_longer_than_it_reads() -> None:
    with recording():
        assert not cheaper_again(
            producer(0), kernels(row_sums("sum", True), result()), buffers("cpu")
        )


def test_a_kernel_that_loops_alike_and_waits_for_none_writes_what_it_computes() -> None:
    with recording():
        readers = [row_sums("sum", True), result()]
        assert cheaper_again(producer(4), kernels(*readers), buffers("cuda"))
        assert not cheaper_again(producer(4), kernels(*readers, waits=False), buffers("cuda"))


def residuals(layers: int, device: str) -> Program:
    """Return a stream that each layer reads, by an operator after its norm, and adds to."""
    shape = (ROWS, COLUMNS)
    found = {"x0": replace(buffer("x0", shape, HALF), device=torch.device(device))}
    steps: list[Compute | Extern] = []

    def compute(name: str, value: Node, i: Symbol, j: Symbol, dtype: torch.dtype = HALF) -> None:
        found[name] = replace(buffer(name, shape, dtype), device=torch.device(device))
        body = Body((i, j), (), (Store(name, at(i, j), ops.cast(value, dtype)),))
        steps.append(Compute(f"{name}_step", body))

    for n in range(layers):
        i, j = axes(*shape)
        stream = ops.cast(ops.load(f"x{n}", at(i, j), HALF), F32)
        compute(f"wide{n}", stream, i, j, F32)
        i, j = axes(*shape)
        compute(f"norm{n}", ops.unary("tanh", ops.load(f"wide{n}", at(i, j), F32)), i, j)
        made = f"made{n}"
        found[made] = replace(buffer(made, shape, HALF), device=torch.device(device))
        whole = found[f"norm{n}"]
        given = TensorRef(whole.name, whole.shape, whole.strides, Expr.of(0), HALF)
        steps.append(Extern(f"product{n}", torch.relu, (given,), {}, (made,), "a test's"))
        i, j = axes(*shape)
        both = ops.binary(
            "add",
            ops.cast(ops.load(f"x{n}", at(i, j), HALF), F32),
            ops.cast(ops.load(made, at(i, j), HALF), F32),
        )
        compute(f"x{n + 1}", both, i, j)
    results = [f"wide{n}" for n in range(layers)] + [f"x{layers}"]
    outputs = [
        TensorRef(n, found[n].shape, found[n].strides, Expr.of(0), found[n].dtype) for n in results
    ]
    return Program(("x0",), {}, found, tuple(steps), tuple(outputs))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_stream_of_residuals_is_not_added_up_anew_in_every_layer(device: str) -> None:
    with recording():
        steps, _ = inline_pointwise(residuals(8, device))
    reads = [len(step.reads()) for step in steps if isinstance(step, Compute)]
    assert max(reads) <= 3


def test_operators_stand_between_what_they_are_computed_from_and_what_they_make() -> None:
    with recording():
        order = order_of(residuals(2, "cpu").steps)
    assert order.waits("x1_step", "norm0_step")
    assert order.separated("x1_step", "norm0_step")
    assert order.separated("norm0_step", "x1_step")
    assert not order.separated("norm0_step", "wide0_step")  # one kernel may compute both
    assert order.waits("norm0_step", "wide0_step")
    assert not order.waits("wide0_step", "norm0_step")
    assert not order.separated("product0", "norm0_step")  # it is the operator itself


@pytest.mark.parametrize(("device", "kept"), [("cuda", HALF), ("cpu", F32)])
def test_what_is_kept_is_the_narrow_one(device: str, kept: torch.dtype) -> None:
    shape = (ROWS, COLUMNS)
    found = {n: replace(b, dtype=HALF) if n == "made" else b for n, b in buffers(device).items()}
    found["wide"] = replace(buffer("wide", shape, F32), device=torch.device(device))
    with recording():
        i, j = axes(*shape)
        made = producer(20)
        (store,) = made.stores
        narrow = Compute(
            "narrow", replace(made, stores=(replace(store, value=ops.cast(store.value, HALF)),))
        )
        value = ops.cast(ops.load("made", at(i, j), HALF), F32)
        wide = Compute("widen", Body((i, j), (), (Store("wide", at(i, j), value),)))
        (k,), (r,) = axes(ROWS), axes(COLUMNS, prefix="r")
        total = ops.reduce("sum", ops.load("wide", at(k, r), F32), (r,), F32)
        sums = Compute("sums", Body((k,), (r,), (Store("sum", at(k), total),)))
        i, j = axes(*shape)
        out = ops.binary("add", ops.load("wide", at(i, j), F32), read("x", at(i, j), HALF))
        last = Compute("last", Body((i, j), (), (Store("out", at(i, j), ops.cast(out, HALF)),)))
    outputs = tuple(
        TensorRef(name, found[name].shape, found[name].strides, Expr.of(0), found[name].dtype)
        for name in ("sum", "out")
    )
    program = Program(("x", "gradient"), {}, found, (narrow, wide, sums, last), outputs)
    steps, _ = inline_pointwise(program)
    written = {name for step in steps for name in step.writes()}
    assert {found[name].dtype for name in written - {"sum", "out"}} == {kept}


def test_what_must_not_be_computed_again_stays_where_it_is() -> None:
    with recording():
        made = Compute("maker", producer(0))
        program = Program(
            ("x", "gradient"),
            {},
            buffers("cpu"),
            (made, result()),
            (TensorRef("out", *_place("out"), Expr.of(0), HALF),),
        )
        steps, (decision,) = inline_pointwise(program)
        assert [step.name for step in steps] == ["out"]
        assert decision.fused
        steps, (decision,) = inline_pointwise(replace(program, once=frozenset({"made"})))
        assert [step.name for step in steps] == ["maker", "out"]
        assert (decision.fused, decision.reason) == (False, ONCE)


def _place(name: str) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    found = buffers("cpu")[name]
    return found.shape, found.strides
