"""Index expressions: simplification never changes a value, and knows the usual reshapes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from fusec.ir.index import (
    Expr,
    FloorDiv,
    Mod,
    Symbol,
    is_nonnegative,
    lower_bound,
    provably_less,
    upper_bound,
)
from fusec.ir.index_text import expr_text
from fusec.ir.shapes import contiguous_strides, flatten, unflatten

Values = dict[Symbol, int]


def axis(name: str, size: int | Expr) -> tuple[Symbol, Expr]:
    symbol = Symbol(name, size=Expr.of(size))
    return symbol, Expr.of(symbol)


def test_division_by_an_inner_extent_disappears() -> None:
    (_, i), (_, j) = axis("i", 6), axis("j", 4)
    assert (i * 4 + j) // 4 == i
    assert (i * 4 + j) % 4 == j
    assert (i * 8 + j * 2) // 8 == i


def test_reshape_and_back_is_the_identity() -> None:
    _, k = axis("k", 24)
    assert flatten(unflatten(k, (2, 3, 4)), (2, 3, 4)) == k
    (_, i), (_, j) = axis("i", 6), axis("j", 4)
    assert flatten(unflatten(i * 4 + j, (3, 8)), (3, 8)) == i * 4 + j


def test_inner_parts_of_a_position_join() -> None:
    """Where the outer part lies elsewhere, such as images around their channels."""
    _, k = axis("k", 3 * 8 * 5)
    outer, row, column = unflatten(k, (3, 8, 5))
    assert row * 5 + column == k % 40
    assert outer * 1000 + row * 5 + column == k // 40 * 1000 + k % 40
    assert row * 10 + column * 2 + 7 == k % 40 * 2 + 7
    for divisor, limit, step in ((5, 40, 1), (5, 8, 3), (4, 12, 2), (4, 6, 1), (3, 3, 7)):
        for part in (k % limit // divisor, k // divisor % limit):
            total = part * divisor * step + k % divisor * step
            for value in range(120):
                (symbol,) = k.symbols()
                parts = (part.evaluate({symbol: value}.__getitem__), value % divisor)
                wanted = parts[0] * divisor * step + parts[1] * step
                assert total.evaluate({symbol: value}.__getitem__) == wanted
    # another step, or another position, is left alone
    _, other = axis("l", 120)
    assert row * 6 + column != k % 40
    assert (other % 40) // 5 * 5 + column != k % 40


def test_symbolic_sizes_simplify() -> None:
    size = Expr.of(Symbol("s0", "size", low=2))
    (_, a), (_, b) = axis("a", size), axis("b", 5)
    assert (b * size + a) // size == b
    assert (b * size + a) % size == a
    assert unflatten(b * size + a, (5, size)) == (b, a)
    assert contiguous_strides((5, size)) == (size, 1)


def test_bounds() -> None:
    (_, i), (_, j) = axis("i", 6), axis("j", 4)
    assert lower_bound(i - j) == -3
    assert upper_bound(i * 4 + j) == 23
    assert is_nonnegative(i + j)
    assert not is_nonnegative(i - j)
    assert provably_less(i * 4 + j, Expr.of(24))
    assert not provably_less(i * 4 + j, Expr.of(23))


def _random_expression(
    depth: int, symbols: list[Symbol], rng: random.Random
) -> tuple[Expr, Callable[[Values], int]]:
    if depth == 0:
        if rng.random() < 0.75:
            symbol = rng.choice(symbols)
            return Expr.of(symbol), lambda values: values[symbol]
        constant = rng.randint(0, 30)
        return Expr.of(constant), lambda values: constant
    left, left_value = _random_expression(depth - 1, symbols, rng)
    operator = rng.choice("+-*/%")
    if operator in "+-":
        right, right_value = _random_expression(depth - 1, symbols, rng)
        sign = 1 if operator == "+" else -1
        return left + right * sign, lambda v: left_value(v) + sign * right_value(v)
    number = rng.randint(1, 12)
    if operator == "*":
        return left * number, lambda v: left_value(v) * number
    if operator == "/":
        return left // number, lambda v: left_value(v) // number
    return left % number, lambda v: left_value(v) % number


@pytest.mark.parametrize("seed", range(4))
def test_simplified_expressions_keep_their_value(seed: int) -> None:
    rng = random.Random(seed)
    symbols = [Symbol(n, size=Expr.of(s)) for n, s in (("i", 6), ("j", 4), ("k", 24))]
    for _ in range(400):
        expression, value = _random_expression(rng.randint(1, 4), symbols, rng)
        low, high = lower_bound(expression), upper_bound(expression)
        for _ in range(4):
            point = {s: rng.randrange(s.size.constant or 1) for s in symbols if s.size}
            expected = value(point)
            assert expression.evaluate(point.__getitem__) == expected, expression
            assert low is None or low <= expected
            assert high is None or expected <= high
            swapped = expression.substitute({symbols[0]: Expr.of(symbols[1])})
            moved = {**point, symbols[0]: point[symbols[1]]}
            assert swapped.evaluate(point.__getitem__) == value(moved)


def test_quotients_and_remainders_are_equal_by_what_they_divide() -> None:
    i, j = (Expr.of(Symbol(name, "axis", Expr.of(100))) for name in "ij")
    for make in (lambda a, b: a // b, lambda a, b: a % b):
        one = make(3 * i + j, 7)
        assert one == make(j + 3 * i, 7)
        assert hash(one) == hash(make(j + 3 * i, 7))
        assert one != make(3 * i + j, 9)
        assert one != make(3 * j + i, 7)
        assert len({one, make(3 * i + j, 7), make(3 * i + j, 9)}) == 2
    assert (3 * i + j) // 7 != (3 * i + j) % 7
    # also where they were made apart
    for kind in (FloorDiv, Mod):
        assert kind(3 * i + j, Expr.of(7)) == kind(j + 3 * i, Expr.of(7))
        assert kind(3 * i + j, Expr.of(7)) != kind(j + 3 * i, Expr.of(9))
        assert kind(3 * i + j, Expr.of(7)) != kind(i + 3 * j, Expr.of(7))
    assert FloorDiv(i, Expr.of(7)) != Mod(i, Expr.of(7))
    # so that what is added up finds its like
    assert (3 * i + j) % 7 - (3 * i + j) % 7 == 0


def test_what_is_affine_in_an_axis() -> None:
    (one, i), (_, j) = axis("i", 100), axis("j", 40)
    for expr in (i, 3 * i + 7, i * j, j, i + j // 3, Expr.of(5)):
        assert expr.is_affine_in(one), expr
    for expr in (i // 3, i % 3, i * i, i * j * i, j * (i // 7) + i, i + (2 * i + j) % 9):
        assert not expr.is_affine_in(one), expr


def test_divisions_of_what_may_be_negative_are_functions() -> None:
    (_, i), (_, j) = axis("i", 100), axis("j", 40)

    def text(expr: Expr) -> str:
        return expr_text(expr, lambda symbol: symbol.name, "/", ("floor_div", "floor_mod"))

    assert text((i - j) // 7) == "floor_div(i - j, 7)"
    assert text((i - j) % 7) == "floor_mod(i - j, 7)"
    assert text((i + j) // 7 + (i + j) % 7) == "((i + j) / 7) + ((i + j) % 7)"


def test_what_is_added_to_a_dividend_is_less_than_the_divisor() -> None:
    (_, i) = axis("i", 100)
    for more in range(-9, 10):
        assert (i + more) // 3 == (i + more % 3) // 3 + more // 3
        assert (i + more) % 3 == (i + more % 3) % 3
    assert str((5 * i) // 3) == "((i * 5) // 3)"


def test_a_place_in_a_shape_that_is_empty_somewhere() -> None:
    _, k = axis("k", 6)
    assert unflatten(k, (2, 0, 3)) == (Expr.of(0), Expr.of(0), Expr.of(0))
    assert unflatten(k, (0, 3)) == (Expr.of(0), Expr.of(0))
    assert unflatten(k, (2, 3)) == (k // 3, k % 3)


def test_remainders_join_until_nothing_is_left_to_join() -> None:
    """What two terms come to may join with a third one."""
    _, k = axis("k", 96)
    parts = [k % 4, k // 4 % 3 * 4, k // 12 % 2 * 12, k // 24 * 24]
    for order in itertools.permutations(parts):
        assert sum(order, Expr.of(0)) == k


def test_nothing_added_is_the_same_object() -> None:
    _, i = axis("i", 6)
    assert Expr.of(0) + i is i
    assert i + 0 is i


@pytest.mark.parametrize("divisor", [1, 2, 8, 1000])
def test_remainders_of_what_may_be_any_number(divisor: int) -> None:
    n = Expr.of(Symbol("n", "size", low=0))
    rest = n % divisor
    assert (lower_bound(rest), upper_bound(rest)) == (0, divisor - 1)
    assert upper_bound(rest * 3 + 1) == 3 * divisor - 2
    assert provably_less(rest, Expr.of(divisor))
    assert divisor == 1 or not provably_less(rest, Expr.of(divisor - 1))


def test_a_divisor_of_several_terms_stays() -> None:
    _, i = axis("i", 100)
    (symbol,) = i.symbols()
    size = Symbol("n", "size", low=2)
    for divisor in (Expr.of(size) + 1, Expr.of(size) * 2 + 3):
        whole = i // divisor * divisor + i % divisor * 1 + i % divisor * 2
        for value in range(0, 100, 7):
            at = {symbol: value, size: 5}
            by = divisor.evaluate(at.__getitem__)
            assert whole.evaluate(at.__getitem__) == value + 2 * (value % by)
