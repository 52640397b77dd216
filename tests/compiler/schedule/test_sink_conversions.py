"""Conversions of inputs are put off until some of them are needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

import fusec
from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr
from fusec.ir.node import recording
from fusec.ir.program import Compute, Extern, Step, TensorRef
from fusec.schedule import sink_conversions as late
from fusec.schedule.sink_conversions import sink_conversions
from support.triton_bodies import F32, at, axes, buffer

HALF = torch.float16
SIDE = 256  # 128 KB in half precision


def ref(made: Buffer) -> TensorRef:
    return TensorRef(made.name, made.shape, made.strides, Expr.of(0), made.dtype)


def network(layers: int, mutated: str = "") -> tuple[list[Step], list[str], dict[str, Buffer]]:
    """Return the steps of as many products, all weights converted before the first."""
    found = {"x0": buffer("x0", (SIDE, SIDE), HALF)}
    conversions: list[Step] = []
    products: list[Step] = []
    with recording():
        for n in range(layers):
            found[f"w{n}"] = buffer(f"w{n}", (SIDE, SIDE), F32)
            found[f"h{n}"] = buffer(f"h{n}", (SIDE, SIDE), HALF)
            found[f"x{n + 1}"] = buffer(f"x{n + 1}", (SIDE, SIDE), HALF)
            i, j = axes(SIDE, SIDE)
            value = ops.cast(ops.load(f"w{n}", at(i, j), F32), HALF)
            store = Store(f"h{n}", at(i, j), value)
            conversions.append(Compute(f"convert{n}", Body((i, j), (), (store,))))
            given = (ref(found[f"x{n}"]), ref(found[f"h{n}"]))
            mutates = (mutated,) if n == 0 and mutated else ()
            made = (f"x{n + 1}",)
            products.append(Extern(f"product{n}", torch.mm, given, {}, made, "a test's", mutates))
    inputs = ["x0", *(f"w{n}" for n in range(layers))]
    return [*conversions, *products], inputs, found


def names(steps: Sequence[Step]) -> list[str]:
    return [step.name for step in steps]


def test_as_many_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "EARLY_BYTES", 2 * SIDE * SIDE * 2)
    steps, inputs, buffers = network(5)
    assert names(sink_conversions(steps, inputs, buffers)) == [
        *("convert0", "convert1", "product0", "product1"),
        *("convert2", "convert3", "product2", "product3"),
        *("convert4", "product4"),
    ]


def test_all_where_there_is_room() -> None:
    steps, inputs, buffers = network(5)
    assert sink_conversions(steps, inputs, buffers) == tuple(steps)


def test_small_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "EARLY_BYTES", 0)
    monkeypatch.setattr(late, "LEAST_SUNK_BYTES", 1 << 20)
    steps, inputs, buffers = network(3)
    assert sink_conversions(steps, inputs, buffers) == tuple(steps)


def test_an_input_that_changes_is_read_before_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "EARLY_BYTES", 0)
    steps, inputs, buffers = network(3, mutated="w1")
    order = names(sink_conversions(steps, inputs, buffers))
    assert order.index("convert1") < order.index("product0") < order.index("convert2")


def test_what_is_added_to_is_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "EARLY_BYTES", 0)
    monkeypatch.setattr(late, "LEAST_SUNK_BYTES", 0)
    steps, inputs, buffers = network(2)
    buffers["at"] = buffer("at", (SIDE,), torch.int64)
    with recording():
        i, j = axes(SIDE, SIDE)
        row = ops.checked_index(ops.load("at", at(i), torch.int64), Expr.of(SIDE))
        one = ops.cast(ops.load("w0", at(i, j), F32), HALF)
        store = Store("h1", (row, Expr.of(j)), one, "add")
        addition = Compute("add", Body((i, j), (), (store,)))
    steps.insert(2, addition)
    order = names(sink_conversions(steps, [*inputs, "at"], buffers))
    assert sorted(order) == sorted(names(steps))
    assert order.index("convert1") < order.index("add") < order.index("product1")


def test_a_network_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "EARLY_BYTES", 1 << 17)
    monkeypatch.setattr(late, "LEAST_SUNK_BYTES", 0)
    torch._dynamo.reset()
    module = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)))
    compiled = fusec.compile(module)
    x = torch.randn(8, 64)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            loss = compiled(x).float().square().mean()
            plain = module(x).float().square().mean()
            torch.testing.assert_close(loss, plain, rtol=2e-2, atol=2e-3)
        loss.backward()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), module(x), rtol=3e-2, atol=3e-2)
