"""What each rule of ``ir.bounds`` says, exactly: nothing here is compiled."""

from __future__ import annotations

import math

import pytest
import torch

from fusec.ir import ops
from fusec.ir.bounds import bounds, decide
from fusec.ir.checks import CheckKind, check_name
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import (
    Node,
    cast,
    const,
    current_recorder,
    index_value,
    load,
    op,
    recording,
    reduce,
)

I64, I32, I8, U8 = torch.int64, torch.int32, torch.int8, torch.uint8
F64, F32, F16, BOOL = torch.float64, torch.float32, torch.float16, torch.bool


@pytest.fixture(autouse=True)
def _recorder():
    with recording():
        yield


def position(size: int | Expr, first: int = 0, dtype: torch.dtype = I64) -> Node:
    """A loop's position, counted from another number than 0."""
    return index_value(Expr.of(Symbol("i", "axis", Expr.of(size))) + first, dtype)


def unknown(dtype: torch.dtype) -> Node:
    return load("x", (Expr.of(0),), dtype)


def widened(low: float, high: float, slack: float) -> tuple[float, float]:
    """An interval, and what rounding may add at both ends."""
    more = max(abs(low), abs(high)) * slack + 1e-30
    return low - more if low else low, high + more if high else high


def test_how_deep_it_looks() -> None:
    node = position(5)
    for _ in range(38):
        node = op("neg", (node,), I64)
    assert bounds(node) == (0, 4)
    for _ in range(60):
        node = op("neg", (node,), I64)
    with recording():  # nothing is known of what is within
        assert bounds(node) is None


def test_constants_and_positions() -> None:
    assert bounds(const(7, I64)) == (7, 7)
    assert bounds(const(-2.5, F64)) == (-2.5, -2.5)
    assert bounds(const(0.1, F32)) == (0.10000000149011612,) * 2  # in its own precision
    assert bounds(const(0.5, F16)) is None  # never computed in
    assert bounds(const(True, BOOL)) == (1, 1)
    for special in (math.nan, math.inf, -math.inf):
        assert bounds(const(special, F64)) is None
    assert bounds(position(5, -3)) == (-3, 1)
    assert bounds(index_value(Expr.of(Symbol("s", "size")), I64)) is None  # no upper bound
    assert bounds(index_value(-Expr.of(Symbol("s", "size")), I64)) is None  # no lower one
    assert bounds(position(5, -3, F32)) == widened(-3, 1, 2**-21)
    assert bounds(position(5, 0, F64)) == widened(0, 4, 2**-50)
    assert bounds(position(5, -4, F64)) == widened(-4, 0, 2**-50)
    assert bounds(position(5, 0, F16)) is None


@pytest.mark.parametrize(
    ("dtype", "found"),
    [(BOOL, (0, 1)), (U8, (0, 255)), (I8, (-128, 127)), (I32, (-(1 << 31), (1 << 31) - 1))],
    ids=str,
)
def test_what_is_loaded_is_of_its_type(dtype: torch.dtype, found: tuple[int, int]) -> None:
    assert bounds(unknown(dtype)) == found


@pytest.mark.parametrize("dtype", [I64, F32, F64, F16, torch.complex64], ids=str)
def test_of_what_is_loaded_nothing_is_known(dtype: torch.dtype) -> None:
    assert bounds(unknown(dtype)) is None


def test_what_wraps_round_is_anything_of_its_type() -> None:
    assert bounds(position(128, 0, I8)) == (0, 127)
    assert bounds(position(129, -128, I8)) == (-128, 0)
    for wrapping in (position(129, 0, I8), position(129, -129, I8)):
        assert bounds(wrapping) == (-128, 127)
    assert bounds(ops.unary("neg", position(2, 0, U8))) == (0, 255)


def test_integers_are_known_as_far_as_they_are_exact() -> None:
    most = 1 << 53
    assert bounds(position(most + 1)) == (0, most)
    assert bounds(position(most + 1, -most)) == (-most, 0)
    assert bounds(position(most + 1, 1)) is None
    assert bounds(position(most + 1, -most - 1)) is None
    # floats are known beyond, as far as nothing overflows
    large = op("mul", (position(10**5 + 1, 0, F64),) * 2, F64)
    squared = op("mul", (large, large), F64)
    assert bounds(squared) is not None
    assert bounds(op("mul", (squared, squared), F64)) is None
    limit = const(1e30, F64)
    assert bounds(op("maximum", (limit, position(3, 0, F64)), F64)) is not None
    limit = const(math.nextafter(1e30, 2e30), F64)
    assert bounds(op("maximum", (limit, position(3, 0, F64)), F64)) is None
    assert bounds(op("neg", (limit,), F64)) is None


@pytest.mark.parametrize("steps", [39, 40])
def test_forty_operations_are_looked_through(steps: int) -> None:
    node = position(4)
    for _ in range(steps):
        node = op("neg", (node,), I64)
    assert bounds(node) == ((-3, 0) if steps == 39 else None)


@pytest.mark.parametrize("name", ["where", "check", "cast", "max"])
def test_every_kind_of_node_counts_as_one(name: str) -> None:
    condition = ops.logical_not(unknown(BOOL))
    node = op("neg", (position(4),), I64)
    for step in range(39):
        if name == "where":
            node = op("where", (condition, node, const(1, I64)), I64)
        elif name == "check":
            node = op(check_name(CheckKind.INDEX, "it"), (condition, node), I64)
        elif name == "cast":
            node = cast(node, I64 if step % 2 else F64)
        else:
            node = reduce("max", node, (Symbol(f"r{step}", "axis", Expr.of(2)),), I64)
        if step == 37:
            with recording():  # which knows of no bounds yet
                assert bounds(node) is not None
    assert bounds(node) is None


def test_what_is_known_is_not_asked_again() -> None:
    """Or else a value that is used twice at every step would be looked at 2 to the 40th times."""
    node = position(4)
    current_recorder().bounds[node] = (1, 2)
    assert bounds(node) == (1, 2)
    assert bounds(ops.unary("neg", node)) == (-2, -1)
    assert current_recorder().bounds[ops.unary("neg", node)] == (-2, -1)


def test_conversions() -> None:
    x = op("truediv", (position(16, -7, F64), const(2.0, F64)), F64)
    assert bounds(x) == (pytest.approx(-3.5), pytest.approx(4))
    assert bounds(cast(x, I64)) == (-3, 4)
    assert bounds(cast(x, U8)) == (0, 255)
    assert bounds(cast(unknown(F64), U8)) == (0, 255)
    assert bounds(cast(unknown(F64), I64)) is None
    assert bounds(cast(op("neg", (position(8),), I64), F32)) == widened(-7, 0, 2**-21)
    assert bounds(cast(x, F16)) is None
    assert bounds(cast(cast(x, F16), F64)) is None
    # other bits are another value
    assert bounds(cast(op("neg", (position(8, 0, I32),), I32), F32, bitcast=True)) is None
    # true is all that is not zero
    half = op("truediv", (position(1, 1, F64), const(2.0, F64)), F64)
    assert bounds(half) == (pytest.approx(0.5), pytest.approx(0.5))
    assert bounds(cast(half, BOOL)) == (0, 1)
    assert bounds(cast(op("neg", (position(8),), I64), BOOL)) == (0, 1)


def test_a_largest_of_some_is_one_of_them() -> None:
    def over(kind: str, size: int | Expr) -> tuple[float, float] | None:
        axes = Symbol("one", "axis", Expr.of(3)), Symbol("other", "axis", Expr.of(size))
        return bounds(reduce(kind, position(9), axes, I64))

    assert over("max", 4) == over("min", 1) == (0, 8)
    assert over("max", 0) is None  # of none it is the type's own least
    assert over("min", Expr.of(Symbol("s", "size", low=1))) == (0, 8)
    assert over("min", Expr.of(Symbol("s", "size", low=0))) is None
    assert over("sum", 4) is None
    assert over("argmax", 4) is None


def test_operations() -> None:
    n = position(9)
    assert bounds(op("sub", (n, const(4, I64)), I64)) == (-4, 4)
    assert bounds(op("bitwise_xor", (n, n), I64)) is None  # without a rule
    assert bounds(op("nobody_knows", (n, n), I64)) is None
    assert bounds(op("add", (n, unknown(I64)), I64)) is None
    assert bounds(op("add", (unknown(I64), n), I64)) is None
    assert bounds(op("interleave", (n, position(3, -2)), I64)) == (-2, 8)
    valid = ops.logical_not(unknown(BOOL))
    assert bounds(op(check_name(CheckKind.INDEX, "it"), (valid, n), I64)) == (0, 8)
    x = position(9, 0, F64)
    assert bounds(op("neg", (x,), F64)) == widened(-8 - 8 * 2**-50 - 1e-30, 0, 2**-50)
    assert bounds(op("exp", (x,), F64)) is None
    assert bounds(op("floordiv", (n, const(0, I64)), I64)) is None
    assert bounds(op("mul", (position(3, 0, F16), position(3, 0, F16)), F16)) is None


@pytest.mark.parametrize("name", ["add", "mul", "maximum", "minimum", "bitwise_and", "lt"])
def test_of_bools(name: str) -> None:
    """The sum of two is whether one is: never 2."""
    for x in (False, True):
        for y in (False, True):
            outcome = int(getattr(torch, name)(torch.tensor(x), torch.tensor(y)))
            found = bounds(op(name, (const(x, BOOL), const(y, BOOL)), BOOL))
            assert found is not None
            assert 0 <= found[0] <= outcome <= found[1] <= 1


def test_a_choice_is_one_of_both() -> None:
    condition = ops.logical_not(unknown(BOOL))
    low, high = position(3, -5), position(4, 6)
    for pair in ((low, high), (high, low)):
        assert bounds(op("where", (condition, *pair), I64)) == (-5, 9)
    for pair in ((low, unknown(I64)), (unknown(I64), low)):
        assert bounds(op("where", (condition, *pair), I64)) is None


CHOSEN = {  # of -4 to 4, and -4 where that is not chosen
    ("lt", 2): (-4, 1), ("le", 2): (-4, 2), ("gt", 2): (-4, 4), ("ge", 2): (-4, 4),
    ("eq", 2): (-4, 4), ("ne", 2): (-4, 4),
}  # fmt: skip
OTHERS = {  # and of those that are not chosen, 4 in place of the others
    ("lt", 2): (2, 4), ("le", 2): (3, 4), ("gt", 2): (-4, 4), ("ge", 2): (-4, 4),
    ("eq", 2): (-4, 4), ("ne", 2): (-4, 4),
}  # fmt: skip


@pytest.mark.parametrize(("name", "limit"), CHOSEN)
def test_a_choice_by_a_comparison_with_a_constant(name: str, limit: int) -> None:
    n = position(9, -4)
    condition = op(name, (n, const(limit, I64)), BOOL)
    chosen = op("where", (condition, n, const(-4, I64)), I64)
    assert bounds(chosen) == CHOSEN[name, limit]
    others = op("where", (condition, const(4, I64), n), I64)
    assert bounds(others) == OTHERS[name, limit]
    # the comparison says nothing of another value, nor where it is with one
    for told in (position(9, -4), op("neg", (n,), I64)):
        assert bounds(op("where", (condition, told, const(0, I64)), I64)) == (-4, 4)
    varying = op(name, (n, position(1, limit - 1)), BOOL)
    assert bounds(op("where", (varying, n, const(0, I64)), I64)) == (-4, 4)
    turned = op(name, (const(limit, I64), n), BOOL)
    assert bounds(op("where", (turned, n, const(0, I64)), I64)) == (-4, 4)


def test_floats_have_no_neighbors() -> None:
    x = op("sub", (position(9, 0, F64), const(4.0, F64)), F64)
    for name in ("lt", "le"):
        condition = op(name, (x, const(2.0, F64)), BOOL)
        found = bounds(op("where", (condition, x, const(-1.0, F64)), F64))
        assert found == (pytest.approx(-4), pytest.approx(2))
        found = bounds(op("where", (condition, const(3.0, F64), x), F64))
        assert found == (pytest.approx(2), pytest.approx(4))
    for name in ("lt", "gt"):  # NaN changes nothing
        condition = op(name, (x, const(math.nan, F64)), BOOL)
        for pair in ((x, const(0.0, F64)), (const(0.0, F64), x)):
            found = bounds(op("where", (condition, *pair), F64))
            assert found == (pytest.approx(-4), pytest.approx(4))


def test_a_half_that_is_never_taken_has_the_values_that_it_had() -> None:
    n = position(9)
    for name, limit in (("lt", 0), ("gt", 8)):
        condition = op(name, (n, const(limit, I64)), BOOL)
        assert bounds(op("where", (condition, n, n), I64)) == (0, 8)
    condition = op("lt", (n, const(1, I64)), BOOL)
    assert bounds(op("where", (condition, n, const(0, I64)), I64)) == (0, 0)


def test_a_limit_counts_in_its_own_precision() -> None:
    """As float32 it is 3: what is no larger may be 3, whose integer is not 2."""
    x = position(4, 0, F32)
    condition = op("le", (x, const(2.9999999999, F32)), BOOL)
    assert bounds(cast(op("where", (condition, x, const(0.0, F32)), F32), I64)) == (0, 3)


# Of 2 to 4, beside: what is true of all, false of all, and what touches from either side.
DECIDED = {
    "lt": {(5, 6): True, (4, 5): None, (1, 2): False, (1, 3): None, (0, 1): False},
    "le": {(4, 6): True, (3, 5): None, (0, 1): False, (1, 2): None},
    "gt": {(0, 1): True, (1, 2): None, (4, 5): False, (3, 5): None, (5, 6): False},
    "ge": {(1, 2): True, (1, 3): None, (5, 6): False, (4, 5): None},
    "eq": {(5, 6): False, (0, 1): False, (4, 5): None, (1, 2): None, (3, 3): None, (2, 4): None},
    "ne": {(5, 6): True, (0, 1): True, (4, 5): None, (1, 2): None, (3, 3): None, (2, 4): None},
}


@pytest.mark.parametrize("name", DECIDED)
def test_what_is_decided(name: str) -> None:
    left = position(3, 2)
    for (low, high), outcome in DECIDED[name].items():
        assert decide(name, left, position(high - low + 1, low)) is outcome, (low, high)
    assert decide(name, left, unknown(I64)) is None
    assert decide(name, unknown(I64), left) is None
    three = op("neg", (const(-3, I64),), I64)
    assert decide(name, three, const(3, I64)) is (name in ("le", "ge", "eq"))
    assert decide("add", left, left) is None


@pytest.mark.parametrize("name", ["eq", "ne"])
@pytest.mark.parametrize(
    "pair",
    [((3, 3), (3, 4)), ((3, 3), (2, 3)), ((3, 4), (3, 3)), ((3, 4), (4, 4)), ((2, 3), (3, 3))],
    ids=str,
)
def test_equal_ends_alone_decide_nothing(
    name: str, pair: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    (a, b), (c, d) = pair
    assert decide(name, position(b - a + 1, a), position(d - c + 1, c)) is None
