"""Rows that are quantized by their own extremes: what of them is computed exactly, and what not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusec.codegen.common.row_quantization import Quantized, find_quantized
from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.node import Node, cast, op, recording, reduce
from support.triton_bodies import F32, at, axes, f32

I8, U8, F8, I64 = torch.int8, torch.uint8, torch.float8_e4m3fn, torch.int64


@pytest.fixture(autouse=True)
def _recorder():
    with recording():
        yield


def quantized(
    dtype: torch.dtype = I8,
    kind: str = "max",
    rounding: str = "round",
    by: str = "truediv",
    clamped: str = "before",
) -> tuple[Body, dict[str, Node]]:
    """A row over its largest, rounded; and its scale."""
    (i,), (j,) = axes(6), axes(64, prefix="r")
    x = ops.load("x", at(i, j), F32)
    most = reduce(kind, ops.unary("abs", x), (j,), F32)
    scale = ops.binary("mul", most, f32(1 / 127))
    over = op(by, (x, scale), F32)
    named = {"most": most, "scale": scale, "over": over}
    value = over
    if rounding:
        named["rounded"] = value = op(rounding, (value,), F32)
    if clamped:
        named["limit"] = op("gt", (value, f32(127.0)), torch.bool)
        named["clamped"] = value = ops.where(named["limit"], f32(127.0), value)
    named["stored"] = value = cast(value, dtype)
    stores = (Store("q", at(i, j), value), Store("scale", at(i), scale))
    return Body((i,), (j,), stores), named


@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize("rounding", ["round", "nearest_int"])
@pytest.mark.parametrize("by", ["truediv", "mul"])
@pytest.mark.parametrize("clamped", ["before", ""])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_integers(dtype: torch.dtype, rounding: str, by: str, clamped: str, kind: str) -> None:
    body, named = quantized(dtype, kind, rounding, by, clamped)
    path = {named[n] for n in named.keys() - {"most", "scale"}}
    assert find_quantized(body) == Quantized(frozenset({named["scale"]}), frozenset(path))


def test_floats_of_eight_bits_are_not_looked_at_before_they_are_rounded() -> None:
    body, named = quantized(F8, rounding="", clamped="")
    assert find_quantized(body) == Quantized(frozenset({named["scale"]}), frozenset())
    assert find_quantized(quantized(torch.bfloat16, rounding="", clamped="")[0]) == Quantized()


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": torch.int32},
        {"rounding": ""},  # cut off, not rounded
        {"rounding": "floor"},
        {"kind": "sum"},
        {"by": "add"},
    ],
    ids=str,
)
def test_other_rows(options: dict[str, str]) -> None:
    assert find_quantized(quantized(**options)[0]) == Quantized()  # type: ignore[arg-type]


def test_what_is_no_row_over_its_extreme() -> None:
    body, named = quantized()
    (i,), (j,) = body.axes, body.reduce_axes
    stored, scale = body.stores

    def over(value: Node, **changes: object) -> Quantized:
        rounded = cast(op("round", (value,), F32), I8)
        return find_quantized(replace(body, stores=(replace(stored, value=rounded), scale)))

    x = ops.load("x", at(i, j), F32)
    assert over(op("mul", (x, f32(3.0)), F32)) == Quantized()  # without a reduction
    total = reduce("sum", x, (j,), F32)
    mixed = ops.binary("add", named["most"], total)
    assert over(op("truediv", (x, mixed), F32)) == Quantized()  # of which one is a sum
    # an integer whose bits are taken is another number
    bits = cast(cast(named["rounded"], torch.int32, bitcast=True), I8)
    assert find_quantized(replace(body, stores=(replace(stored, value=bits),))) == Quantized()
    # a choice between two values that vary, or rounded after the quotient was passed
    other = ops.where(named["limit"], x, named["rounded"])
    assert (
        find_quantized(replace(body, stores=(replace(stored, value=cast(other, I8)),)))
        == Quantized()
    )


def test_the_scale_is_all_that_follows_from_the_extreme() -> None:
    body, named = quantized()
    (i,) = body.axes
    stored = body.stores[0]

    def found(value: Node, mode: str = "set") -> frozenset[Node]:
        store = Store("scale", at(i), value, mode)
        return find_quantized(replace(body, stores=(stored, store))).scales

    most = named["most"]
    assert found(most) == frozenset()  # nothing lies between
    kept = ops.binary("maximum", most, f32(1e-5))
    halved = cast(ops.binary("mul", kept, f32(2.0)), torch.float64)
    assert found(halved) == {kept, ops.binary("mul", kept, f32(2.0)), halved}
    assert found(halved, "put") == frozenset()
    assert found(ops.unary("exp", most)) == frozenset()
    assert (
        found(ops.binary("add", ops.binary("mul", most, f32(2.0)), ops.load("y", at(i), F32)))
        == set()
    )
    # what follows from constants alone is no scale
    assert found(op("neg", (f32(2.0),), F32)) == frozenset()
    assert found(op("mul", (kept, kept), F32)) == {kept, op("mul", (kept, kept), F32)}
