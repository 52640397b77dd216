"""What values are called that several operations make together: a mean, a variance, squares."""

from __future__ import annotations

import pytest
import torch

from fusec.codegen.common.value_names import reduction_word, told_word
from fusec.ir import ops
from fusec.ir.index import Expr, IntLike, Symbol
from fusec.ir.node import Node, const, index_value, op, recording, reduce
from support.triton_bodies import F32, at, axes, f32

I64 = torch.int64


@pytest.fixture(autouse=True)
def _recorder():
    with recording():
        yield


def x() -> Node:
    return ops.load("x", at(*axes(6)), F32)


def total(value: Node, *sizes: IntLike, kind: str = "sum") -> Node:
    return reduce(kind, value, axes(*(sizes or (8,)), prefix="r"), value.dtype)


def squared(value: Node) -> Node:
    return ops.binary("mul", ops.cast(value, torch.float64), ops.cast(value, torch.float64))


def off(value: Node) -> Node:
    return ops.binary("sub", value, f32(0.5))


def over(value: Node, count: float) -> Node:
    return op("truediv", (value, const(count, value.dtype)), value.dtype)


def times(value: Node, factor: float) -> Node:
    return op("mul", (value, const(factor, value.dtype)), value.dtype)


def called(node: Node) -> str:
    assert hasattr(node, "kind")
    return reduction_word(node)  # type: ignore[arg-type]


def test_reductions() -> None:
    assert called(total(x())) == "sum"
    assert called(total(x(), kind="max")) == "max"
    assert called(total(squared(x()))) == "squares"
    assert called(total(ops.binary("mul", x(), f32(3.0)))) == "sum"
    assert called(total(squared(x()), kind="max")) == "max"
    condition = ops.load("ok", at(*axes(6)), torch.bool)
    one, none = const(1, I64), const(0, I64)
    assert called(total(ops.cast(condition, I64))) == "count"
    assert called(total(ops.where(condition, one, none))) == "count"
    assert called(total(ops.where(condition, none, one))) == "sum"
    assert called(total(op("add", (one, none), I64))) == "sum"
    for values in ((one, one), (none, none), (const(2, I64), none), (one, const(1, I64))):
        assert called(total(ops.where(condition, *values))) == "sum"
    loaded = ops.load("n", at(*axes(6)), I64)
    length = index_value(Expr.of(Symbol("n", "size", low=2)), I64)
    for values in ((loaded, none), (one, loaded), (loaded, loaded), (length, none)):
        assert called(total(ops.where(condition, *values))) == "sum"
    assert called(total(ops.cast(ops.load("n", at(*axes(6)), torch.int32), I64))) == "sum"
    assert called(total(ops.cast(condition, F32))) == "sum"  # a float is no count


def test_means() -> None:
    assert told_word(over(total(x()), 8)) == "mean"
    assert told_word(over(total(x(), 2, 4), 8)) == "mean"
    assert told_word(times(total(x()), 1 / 8)) == "mean"
    assert told_word(over(ops.cast(total(x()), torch.float64), 8)) == "mean"
    assert told_word(over(total(x()), 7)) == ""
    assert told_word(over(total(x()), 8.001)) == ""
    assert told_word(over(total(x()), 0)) == ""
    assert told_word(times(total(x()), 8)) == ""
    assert told_word(over(total(x(), kind="max"), 8)) == ""
    assert told_word(op("add", (total(x()), f32(8)), F32)) == ""
    assert told_word(over(x(), 8)) == ""
    assert told_word(over(total(squared(x())), 8)) == "mean_square"
    assert told_word(over(total(squared(x())), 7)) == ""
    for count in (8, 7):
        assert told_word(over(total(squared(off(x()))), count)) == "variance"
    assert told_word(over(total(squared(off(x()))), 6)) == ""
    n = Expr.of(Symbol("n", "size", low=2))
    value = total(x(), n)
    for by, word in ((n, "mean"), (n - 1, ""), (n * 2, "")):
        assert told_word(op("truediv", (value, index_value(by, F32)), F32)) == word
    assert told_word(op("mul", (value, index_value(n, F32)), F32)) == ""
    assert told_word(over(value, 8)) == ""


def test_roots() -> None:
    variance, mean = over(total(squared(off(x()))), 8), over(total(x()), 8)
    for name, stem in (("sqrt", ""), ("rsqrt", "r")):
        assert told_word(ops.unary(name, ops.cast(variance, F32))) == f"{stem}std"
        assert told_word(ops.unary(name, over(total(squared(x())), 8))) == f"{stem}rms"
        with_epsilon = ops.binary("add", ops.cast(variance, F32), f32(1e-5))
        assert told_word(ops.unary(name, with_epsilon)) == f"{stem}std"
        assert told_word(ops.unary(name, ops.binary("add", x(), f32(1e-5)))) == ""
        assert told_word(ops.unary(name, mean)) == ""
        two = op("add", (ops.cast(variance, F32), x()), F32)
        assert told_word(ops.unary(name, two)) == ""
        less = op("sub", (ops.cast(variance, F32), f32(1e-5)), F32)
        assert told_word(ops.unary(name, less)) == ""
    assert told_word(ops.unary("exp", variance)) == ""


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq"])
def test_choices(name: str) -> None:
    value, bound = x(), f32(2.0)
    condition = op(name, (value, bound), torch.bool)
    clamped = ops.where(condition, bound, value)
    assert told_word(clamped) == ("clamped" if name != "eq" else "")
    assert told_word(ops.where(condition, value, bound)) == ""
    assert told_word(ops.where(condition, f32(3.0), value)) == ""
    assert told_word(ops.where(condition, bound, ops.unary("neg", value))) == ""
    wrapped = ops.where(condition, op("add", (value, f32(9.0)), F32), value)
    assert told_word(wrapped) == ("wrapped" if name == "lt" else "")
    assert told_word(ops.where(condition, op("add", (f32(9.0), value), F32), value)) == ""
    assert told_word(ops.where(condition, op("sub", (value, f32(9.0)), F32), value)) == ""
    other = ops.unary("neg", value)
    assert told_word(ops.where(condition, op("add", (value, f32(9.0)), F32), other)) == ""
    assert told_word(ops.where(ops.load("ok", (), torch.bool), bound, value)) == ""


def test_quotients() -> None:
    def quotient(above: Node, below: Node) -> str:
        return told_word(op("truediv", (above, below), F32))

    value, one = x(), f32(1.0)
    assert quotient(one, total(value)) == "inverse_sum"
    assert quotient(one, total(ops.cast(squared(value), F32))) == "inverse_squares"
    assert quotient(value, total(value)) == ""
    assert quotient(one, ops.unary("sqrt", value)) == "inverse_root"
    assert quotient(value, ops.unary("sqrt", value)) == ""
    assert quotient(one, ops.unary("exp", value)) == ""
    for name in ("exp", "exp_for_half"):
        negated = op(name, (ops.unary("neg", value),), F32)
        for pair in ((negated, one), (one, negated)):
            assert quotient(value, op("add", pair, F32)) == "silu"
        assert quotient(one, op("add", (one, negated), F32)) == ""  # a sigmoid
        assert quotient(value, op("sub", (one, negated), F32)) == ""
        assert quotient(value, op("add", (one, op(name, (value,), F32)), F32)) == ""
    of_another = ops.unary("exp", ops.unary("neg", ops.unary("abs", value)))
    assert quotient(value, op("add", (one, of_another), F32)) == ""
    assert quotient(value, op("add", (one, ops.unary("tanh", ops.unary("neg", value))), F32)) == ""
    assert told_word(value) == ""
