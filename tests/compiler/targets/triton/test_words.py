"""What a generated Triton kernel says, and what is said of it: names, tunables, traffic."""

from __future__ import annotations

import re

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import recording, source_line
from fusec.targets.triton.kernels.split_reductions import BACKWARDS, FORWARDS
from fusec.tunables import read_tunables, set_tunables
from support.triton_bodies import (
    F32,
    Case,
    at,
    axes,
    buffer,
    gelu_layer_norm,
    line,
    read,
    softmax,
    to_memory,
)
from support.triton_cases import HALF, emit, run, symbolic


def test_the_text_speaks_the_users_language() -> None:
    source = emit(gelu_layer_norm(64, 200))
    text = source.text
    assert "# line 2: h = gelu(x * w + b)" in text
    assert re.search(r"^ +h = ", text, re.MULTILINE)
    assert re.search(r"^ +y = ", text, re.MULTILINE)
    assert re.search(r"tl\.load\(gamma_ptr", text)
    lines = text.splitlines()
    named = [n for n, origins in source.origins.items() if any(o.line == 2 for o in origins)]
    assert named
    assert any(lines[n - 1].lstrip().startswith("h = ") for n in named)


def test_tunables_are_in_the_text_and_work() -> None:
    case = softmax(10, 200)
    source = emit(case)
    knobs = {k.name: k for k in read_tunables(source.text)}
    assert set(knobs) == {"XBLOCK", "NUM_WARPS"}
    assert all(k.value in k.choices and k.meaning for k in knobs.values())
    for block in (1, 4, 16):
        run(case, text=set_tunables(source.text, {"XBLOCK": block}))
    case = softmax(2, 70000)
    text = set_tunables(emit(case).text, {"SPLITS": 8, "RBLOCK": 8192})
    run(case, text=text)


def test_names_do_not_collide() -> None:
    buffers = {n: buffer(n, (8,)) for n in ("tl", "libdevice", "XBLOCK", "maximum", "i", "launch")}
    with recording():
        (i,) = axes(8)
        with source_line(line(1, "inside = torch.maximum(tl, libdevice)")):
            a, b = (ops.load(n, at(i), F32) for n in ("tl", "libdevice"))
            value = ops.unary("exp", ops.binary("maximum", a, b))
        with source_line(line(2, "float = inside + XBLOCK * maximum + i")):
            more = ops.binary(
                "mul", ops.load("XBLOCK", at(i), F32), ops.load("maximum", at(i), F32)
            )
            value = ops.binary("add", value, ops.binary("add", more, ops.load("i", at(i), F32)))
        body = Body((i,), (), (Store("launch", at(i), value),))
    run(Case("maximum", body, buffers))


def test_traffic_and_operations() -> None:
    source = emit(softmax(64, 1000, HALF))
    assert source.read_bytes == source.written_bytes == 64 * 1000 * 2
    assert source.operations == 64 * 1000 * (1 + 1 + 10 + 1 + 4)
    assert source.summary == "persistent reduction of 64 rows over 1000"
    assert emit(symbolic(softmax, 3, 4)).read_bytes == -1


def test_rows_that_surely_are_there_need_no_least_width() -> None:
    for low, guarded in ((0, True), (2, False)):
        rows, size = Symbol("n", "size", low=2), Symbol("m", "size", low=low)
        case = softmax(Expr.of(rows), Expr.of(size) % 300 + low, HALF)
        text = emit(case).text
        assert "RBLOCK = triton.next_power_of_2(" in text
        assert ("RBLOCK = triton.next_power_of_2(max(" in text) is guarded


def test_sums_that_follow_others_go_forward() -> None:
    """Only a pass that writes begins where the one before it has ended."""
    case = softmax(4, 50_000, HALF)
    with recording():
        (i,), (r,) = axes(4), axes(50_000, prefix="r")
        x = read("x", at(i, r), HALF)
        mean = ops.reduce("sum", x, (r,), F32)
        spread = ops.reduce("sum", ops.unary("exp", ops.binary("sub", x, mean)), (r,), F32)
        body = Body((i,), (r,), (Store("out", at(i, r), to_memory(spread, HALF)),))
    text = emit(Case("spread", body, case.buffers), "split").text
    assert text.count(FORWARDS) == 2
    assert text.count(BACKWARDS) <= 1


def test_operations_of_what_a_sum_repeats() -> None:
    buffers = {"x": buffer("x", (30,)), "out": buffer("out", (30,))}
    with recording():
        (i,), (r,) = axes(30), axes(7, prefix="r")
        total = ops.reduce("sum", ops.unary("neg", read("x", at(i), F32)), (r,), F32)
        body = Body((i,), (r,), (Store("out", at(i), total),))
    assert emit(Case("again", body, buffers)).operations == 30 + 30 * 7


def test_exact_division_unless_half_precision_hides_it() -> None:
    assert "tl.div_rn" in emit(softmax(24, 200, F32)).text
    assert "tl.div_rn" not in emit(softmax(24, 200, HALF)).text
    buffers = {n: buffer(n, (8,), HALF) for n in ("a", "b", "out")}
    with recording():
        (i,) = axes(8)
        ratio = ops.binary("truediv", read("a", at(i), HALF), read("b", at(i), HALF))
        jump = ops.unary("floor", ratio)
        body = Body((i,), (), (Store("out", at(i), to_memory(jump, HALF)),))
    assert "tl.div_rn" in emit(Case("jump", body, buffers)).text
