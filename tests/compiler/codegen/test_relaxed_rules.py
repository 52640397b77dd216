"""Values that may be computed less exactly, condition for condition: nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fusec.codegen.common.relaxed_maths import (
    coarse_nodes,
    follows_maximum,
    is_softmax_weight,
    never_positive,
    relaxed_nodes,
)
from fusec.codegen.common.row_quantization import find_quantized
from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Symbol
from fusec.ir.node import Node, op, recording
from support.triton_bodies import F32, at, axes, f32

F16, BF16, I8, I32 = torch.float16, torch.bfloat16, torch.int8, torch.int32


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


def body(*values: Node, loops: tuple[Symbol, ...], mode: str = "set") -> Body:
    stores = tuple(Store(f"y{n}", at(*loops), value, mode) for n, value in enumerate(values))
    return Body(loops, (), stores)


def compared(name: str, x: Node, y: Node) -> Node:
    return op(name, (x, y), torch.bool)


def test_what_reaches_memory_as_halves_alone() -> None:
    loops = axes(64)
    x = ops.load("x", at(*loops), F32)
    y = ops.unary("exp", x)
    half = ops.cast(y, F16)
    assert relaxed_nodes(body(half, loops=loops)) == {x, y}
    assert relaxed_nodes(body(y, loops=loops)) == frozenset()
    assert relaxed_nodes(body(half, y, loops=loops)) == frozenset()
    assert y not in relaxed_nodes(body(ops.cast(y, I32), loops=loops))
    assert relaxed_nodes(body(half, loops=loops, mode="add")) == {x, y}
    # a comparison of what was rounded asks nothing of what it was rounded from
    choice = ops.where(compared("lt", half, ops.const(1.0, F16)), half, ops.const(2.0, F16))
    assert y in relaxed_nodes(body(choice, loops=loops))


def test_a_clamp_has_the_same_value_on_either_side() -> None:
    loops = axes(64)
    y = ops.unary("exp", ops.load("x", at(*loops), F32))
    limit = f32(0.5)

    def relaxed(yes: Node, no: Node, *more: Node) -> bool:
        chosen = ops.where(compared("lt", y, limit), yes, no)
        return y in relaxed_nodes(body(ops.cast(chosen, F16), *more, loops=loops))

    assert relaxed(limit, y)
    assert not relaxed(f32(0.25), y), "a jump"
    other = ops.where(compared("lt", y, limit), f32(3.0), y)
    assert not relaxed(limit, y, ops.cast(other, F16)), "the comparison decides a jump as well"


def test_multiples_that_are_rounded_to_a_few_bits() -> None:
    loops = axes(64)
    x, scale = ops.load("x", at(*loops), F32), ops.load("s", (), F32)
    scaled = ops.binary("mul", x, scale)
    assert coarse_nodes(body(ops.cast(scaled, BF16), loops=loops)) == {x, scale, scaled}
    shifted = ops.binary("add", scaled, scale)
    found = coarse_nodes(body(ops.cast(shifted, BF16), loops=loops))
    assert found == {shifted}
    assert coarse_nodes(body(ops.cast(scaled, I32), loops=loops)) == frozenset()
    assert scaled not in coarse_nodes(body(ops.cast(scaled, BF16), scaled, loops=loops))


def test_what_is_never_above_zero() -> None:
    x, y = (ops.load(name, at(*axes(64)), F32) for name in "xy")
    square, positive = ops.binary("mul", x, x), ops.unary("abs", x)
    for node in (square, positive):
        for factor in (-0.5, 0.0):
            assert never_positive(op("mul", (f32(factor), node), F32))
            assert never_positive(op("mul", (node, f32(factor)), F32))
        assert never_positive(ops.unary("neg", node))
        assert not never_positive(node)
        assert not never_positive(op("mul", (f32(0.5), node), F32))
    assert not never_positive(ops.unary("neg", x))
    assert not never_positive(ops.unary("neg", ops.binary("mul", x, y)))
    assert not never_positive(op("mul", (f32(-0.5), x), F32))
    assert not never_positive(op("add", (f32(-0.5), square), F32))
    whole = ops.load("n", at(*axes(64)), I32)
    assert not never_positive(ops.unary("neg", ops.unary("abs", whole)))


def test_the_weights_of_a_softmax() -> None:
    (i,), (r,) = axes(4), axes(6, prefix="r")
    x, other = (ops.load(name, at(i, r), F32) for name in ("x", "other"))
    largest = ops.reduce("max", x, (r,), F32)
    zero, minus = f32(0.0), f32(float("-inf"))
    guarded = ops.where(compared("eq", largest, minus), zero, largest)
    turned = ops.where(compared("ne", largest, minus), largest, zero)
    for shift in (largest, guarded, turned):
        assert follows_maximum(shift, x)
        assert not follows_maximum(shift, other)
        assert is_softmax_weight(ops.unary("exp", ops.binary("sub", x, shift)))
        assert not is_softmax_weight(ops.unary("exp", ops.binary("sub", other, shift)))
        assert not is_softmax_weight(ops.unary("tanh", ops.binary("sub", x, shift)))
        assert not is_softmax_weight(ops.unary("exp", ops.binary("add", x, shift)))
        assert not is_softmax_weight(ops.binary("sub", x, shift))
    assert not follows_maximum(ops.reduce("min", x, (r,), F32), x)
    assert not follows_maximum(x, x)
    assert not follows_maximum(ops.where(compared("eq", largest, minus), other, largest), x)
    assert not is_softmax_weight(ops.unary("exp", x))


def test_rows_quantized_by_their_own_extremes() -> None:
    (i,), (r,) = axes(4), axes(6, prefix="r")
    x = ops.load("x", at(i, r), F32)

    def found(kind: str, dtype: torch.dtype, rounded: bool = True) -> tuple[int, int]:
        extreme = ops.reduce(kind, ops.unary("abs", x), (r,), F32)
        scale = ops.binary("truediv", extreme, f32(127.0))
        value = ops.binary("truediv", x, scale)
        if rounded:
            value = ops.unary("round", value)
        stored = Store("q", at(i, r), ops.cast(value, dtype))
        made = Body((i,), (r,), (stored, Store("s", at(i), scale)))
        quantized = find_quantized(made)
        assert not quantized.scales or scale in quantized.scales
        return len(quantized.scales), len(quantized.rounded)

    scales, path = found("max", I8)
    assert scales
    assert path >= 3
    assert found("min", I8) == (scales, path)
    assert found("sum", I8) == (0, 0)
    assert found("max", I8, rounded=False) == (0, 0)
    assert found("max", torch.float8_e4m3fn, rounded=False) == (scales, 0)
    assert found("max", F16) == (0, 0)
    # nothing is reduced
    plain = ops.cast(ops.unary("round", ops.binary("truediv", x, f32(3.0))), I8)
    quantized = find_quantized(Body((i, r), (), (Store("q", at(i, r), plain),)))
    assert not quantized.scales
    assert not quantized.rounded
