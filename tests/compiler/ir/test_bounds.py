"""What values can be: intervals, and the comparisons that they decide."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.ir import ops
from fusec.ir.bounds import bounds, decide
from fusec.ir.checks import is_check
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Const, Node, const, index_value, load, recording
from support.compare import difference

I64, F32 = torch.int64, torch.float32


@pytest.fixture(autouse=True)
def _recorder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    with recording():
        yield


def position(size: int, dtype: torch.dtype = I64) -> Node:
    return index_value(Expr.of(Symbol("i", "axis", Expr.of(size))), dtype)


def values_of(make: Callable[[torch.Tensor], torch.Tensor], size: int) -> tuple[float, float]:
    found = make(torch.arange(size)).double()
    return found.min().item(), found.max().item()


def source(node: Node) -> Node:
    """The place that an interpolated pixel comes from, before it is clamped."""
    x = ops.cast(node, F32)
    x = ops.binary("mul", ops.binary("add", x, const(0.5, F32)), const(0.5, F32))
    return ops.binary("sub", x, const(0.5, F32))


CASES: dict[str, tuple[Callable[[Node], Node], Callable[[torch.Tensor], torch.Tensor]]] = {
    "itself": (lambda n: n, lambda t: t),
    "difference": (
        lambda n: ops.binary("sub", const(7, I64), ops.binary("mul", n, const(3, I64))),
        lambda t: 7 - 3 * t,
    ),
    "negative": (lambda n: ops.unary("neg", n), lambda t: -t),
    "absolute": (
        lambda n: ops.unary("abs", ops.binary("sub", n, const(9, I64))),
        lambda t: (t - 9).abs(),
    ),
    "floor division": (
        lambda n: ops.binary("floordiv", ops.binary("sub", n, const(9, I64)), const(4, I64)),
        lambda t: (t - 9) // 4,
    ),
    "cut division": (
        lambda n: ops.binary("truncdiv", ops.binary("sub", n, const(9, I64)), const(4, I64)),
        lambda t: torch.div(t - 9, 4, rounding_mode="trunc"),
    ),
    "remainder": (
        lambda n: ops.binary("remainder", ops.binary("sub", n, const(9, I64)), const(4, I64)),
        lambda t: torch.remainder(t - 9, 4),
    ),
    "clamped": (
        lambda n: ops.binary("minimum", ops.binary("maximum", n, const(3, I64)), const(5, I64)),
        lambda t: t.clamp(3, 5),
    ),
    "interpolated": (source, lambda t: (t.float() + 0.5) * 0.5 - 0.5),
    "cut off": (
        lambda n: ops.cast(source(n), I64),
        lambda t: ((t.float() + 0.5) * 0.5 - 0.5).long(),
    ),
    "rounded": (lambda n: ops.unary("round", source(n)), lambda t: ((t + 0.5) * 0.5 - 0.5).round()),
    "third": (
        lambda n: ops.binary("truediv", ops.cast(n, F32), const(3.0, F32)),
        lambda t: t.float() / 3,
    ),
}


@pytest.mark.parametrize("size", [1, 2, 17, 100000])
@pytest.mark.parametrize("name", CASES)
def test_all_values_are_inside(name: str, size: int) -> None:
    make, reference = CASES[name]
    found = bounds(make(position(size)))
    assert found is not None
    low, high = values_of(reference, size)
    assert found[0] <= low
    assert high <= found[1]
    # and not far outside: a quotient or a remainder may reach its divisor
    assert found[1] - found[0] <= (high - low) + 4 + 1e-5 * size


def test_a_choice_knows_its_condition() -> None:
    x = source(position(256))
    zero = const(0.0, F32)
    kept = ops.where(ops.binary("lt", x, zero), zero, x)
    found = bounds(kept)
    assert found is not None
    assert found[0] == 0
    assert bounds(ops.cast(kept, I64)) == (0, 127)
    wrapped = ops.binary("lt", ops.cast(kept, I64), const(0, I64))
    assert isinstance(wrapped, Const)
    assert not wrapped.value


def test_what_is_loaded_is_unknown_but_for_its_type() -> None:
    i = Expr.of(Symbol("i", "axis", Expr.of(8)))
    assert bounds(load("x", (i,), F32)) is None
    assert bounds(load("x", (i,), I64)) is None
    assert bounds(load("x", (i,), torch.uint8)) == (0, 255)
    byte = load("x", (i,), torch.uint8)
    # it wraps round
    assert bounds(ops.binary("add", byte, const(1, torch.uint8))) == (0, 255)
    assert bounds(ops.cast(byte, F32)) is not None
    assert bounds(ops.binary("truediv", const(1.0, F32), ops.cast(byte, F32))) is None
    assert bounds(ops.unary("exp", ops.cast(byte, F32))) is None
    assert bounds(const(math.nan, F32)) is None
    assert bounds(const(math.inf, F32)) is None
    assert bounds(ops.cast(load("y", (i,), F32), I64)) is None


def test_large_values_are_given_up() -> None:
    x = ops.cast(position(1 << 40), F32)
    for _ in range(3):
        x = ops.binary("mul", x, x)
    assert bounds(x) is None
    n = position(1 << 40)
    assert bounds(ops.binary("mul", n, n)) is None  # it may wrap round


def test_deep_graphs_end() -> None:
    x = ops.cast(position(10), F32)
    for _ in range(5000):
        x = op_add(x)
    assert bounds(x) is None


def op_add(x: Node) -> Node:
    return ops.op("add", (x, const(1.0, F32)), F32)


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_only_what_always_holds_is_decided(name: str) -> None:
    compare = getattr(torch, name)
    for size, limit in itertools.product([1, 4], range(-2, 7)):
        left = ops.op("add", (position(size), const(1, I64)), I64)
        outcomes = {bool(o) for o in compare(torch.arange(size) + 1, limit)}
        decided = decide(name, left, const(limit, I64))
        assert decided == (outcomes.pop() if len(outcomes) == 1 else None)


def checks(compiled: fusec.CompiledFunction) -> int:
    """Return how many run-time checks the kernels have."""
    return sum(
        is_check(node) for kernel in compiled.kernels.values() for node in kernel.body.nodes()
    )


@pytest.mark.parametrize("size", [(8, 8), (5, 9), (1, 1)])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_interpolation_checks_nothing(mode: str, size: tuple[int, int]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2, mode=mode)

    x = torch.randn(2, 3, *size)
    compiled = fusec.compile(function)
    assert not difference(compiled(x), function(x))
    assert checks(compiled) == 0


def test_a_clamped_index_is_not_checked_and_another_is() -> None:
    table, index = torch.randn(10, 4), torch.randint(0, 10, (33,))

    def clamped(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return table[index.to(torch.uint8).to(torch.int64).clamp(0, 9)]

    compiled = fusec.compile(clamped)
    assert not difference(compiled(table, index), clamped(table, index))
    assert checks(compiled) == 0
    plain = fusec.compile(lambda table, index: table[index])
    assert not difference(plain(table, index), table[index])
    assert checks(plain) == 1
    with pytest.raises(IndexError):
        plain(table, index + 10)


def test_a_float_that_may_be_nan_keeps_its_comparison() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.clamp(0, 1) < 2, x, -x)

    x = torch.tensor([0.5, math.nan, -3.0, math.inf])
    assert not difference(fusec.compile(function)(x), function(x))


@pytest.mark.parametrize("name", ["floordiv", "truncdiv", "remainder"])
@pytest.mark.parametrize("divisor", [-4, 0, "varying", "between"])
def test_a_divisor_that_is_no_positive_number_says_nothing(name: str, divisor: object) -> None:
    """Quotients turn round or have no end there."""
    dividend = ops.binary("sub", position(17), const(9, I64))
    if isinstance(divisor, int):
        by: Node = const(divisor, I64)
    else:
        by = position(5) if divisor == "varying" else ops.binary("add", position(5), const(2, I64))
    assert bounds(ops.binary(name, dividend, by)) is None


@pytest.mark.parametrize("dtype", [I64, F32], ids=str)
@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_a_choice_is_bound_by_what_its_condition_lets_through(
    name: str, dtype: torch.dtype
) -> None:
    for limit in range(-2, 10):
        for other in (-1, 3, 9):
            for turned in (False, True):
                values = torch.arange(8).to(dtype)
                condition = getattr(torch, name)(values, limit)
                fixed = torch.full_like(values, other)
                expected = torch.where(condition, *((fixed, values) if turned else (values, fixed)))
                n = position(8, dtype)
                test = ops.binary(name, n, const(limit, dtype))
                pair = (const(other, dtype), n) if turned else (n, const(other, dtype))
                found = bounds(ops.where(test, *pair))
                assert found is not None
                low, high = expected.min().item(), expected.max().item()
                case = (limit, other, turned, found, (low, high))
                assert found[0] <= low, case
                assert high <= found[1], case
                taken = bool(condition.any()) and not bool(condition.all())
                if dtype == I64 and name in ("lt", "le", "gt", "ge") and taken:
                    assert found == (low, high), case


def test_very_small_numbers_keep_their_place() -> None:
    x = ops.binary("mul", ops.cast(position(3), F32), const(1e-31, F32))
    found = bounds(x)
    assert found is not None
    assert found[0] <= 0
    assert 2e-31 <= found[1] <= 1e-29


def test_an_index_up_to_a_limit_that_float32_rounds_up_is_checked() -> None:
    table = torch.ones(3)

    def function(table: torch.Tensor) -> torch.Tensor:
        x = torch.arange(4, dtype=F32)
        return table[torch.where(x <= 2.9999999999, x, torch.zeros(())).long()]

    for each in (function, fusec.compile(function)):
        with pytest.raises(IndexError):
            each(table)


def unknown(dtype: torch.dtype = F32) -> Node:
    return load("x", (Expr.of(Symbol("i", "axis", Expr.of(9))),), dtype)


def between(value: Node, low: float, high: float) -> Node:
    """Whether a value is at least ``low`` and less than ``high``, with something else beside it."""
    found = ops.logical_and(
        ops.binary("ge", value, const(low, value.dtype)),
        ops.binary("lt", value, const(high, value.dtype)),
        ops.binary("gt", unknown(), const(0.0, F32)),
    )
    assert found is not None
    return found


def test_a_number_of_which_nothing_is_known_lies_where_a_condition_holds() -> None:
    value = unknown()
    assert bounds(value) is None
    chosen = ops.where(between(value, 0.0, 64.0), value, const(0.0, F32))
    found = bounds(chosen)
    assert found is not None
    assert found[0] == 0
    assert 63 < found[1] < 64
    assert bounds(ops.cast(chosen, I64)) == (0, 63)
    # the other way round: what is converted is taken where the number itself is in range
    place = ops.cast(value, I64)
    assert bounds(ops.where(between(value, -2.0, 64.0), place, const(0, I64))) == (-2, 63)


def test_conditions_that_say_too_little() -> None:
    value, place = unknown(), ops.cast(unknown(), I64)
    below = ops.binary("lt", value, const(64.0, F32))
    assert bounds(ops.where(below, value, const(0.0, F32))) is None  # may be minus infinity
    assert bounds(ops.where(below, ops.cast(value, I64), const(0, I64))) is None
    # NaN is not less than 64 and not at least 0
    inside = between(value, 0.0, 64.0)
    assert bounds(ops.where(inside, const(0.0, F32), value)) is None
    # about another number
    other = load("y", (Expr.of(Symbol("i", "axis", Expr.of(9))),), F32)
    assert bounds(ops.where(inside, other, const(0.0, F32))) is None
    assert bounds(ops.where(inside, ops.cast(other, I64), const(0, I64))) is None
    # either of two
    either = ops.binary("logical_or", below, ops.binary("ge", value, const(0.0, F32)))
    assert bounds(ops.where(either, value, const(0.0, F32))) is None
    # what eight bits do not hold may wrap round
    short = ops.cast(value, torch.int8)
    wide = between(value, 0.0, 300.0)
    found = bounds(ops.where(wide, short, const(0, torch.int8)))
    assert found == (-128, 127)
    assert bounds(place) is None
