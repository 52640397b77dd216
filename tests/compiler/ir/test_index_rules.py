"""What simplifies in an index expression and what does not, and which ranges follow: by rule."""

from __future__ import annotations

import pytest

from fusec.ir.index import (
    Expr,
    FloorDiv,
    Mod,
    Symbol,
    floor_div,
    is_nonnegative,
    lower_bound,
    provably_less,
    remainder,
    upper_bound,
)


def axis(name: str, size: int | Expr | None, kind: str = "axis") -> Expr:
    return Expr.of(Symbol(name, kind, None if size is None else Expr.of(size)))


def number(name: str, low: int = 0, below: int | None = None) -> Expr:
    return Expr.of(Symbol(name, "size", None if below is None else Expr.of(below), low))


N, M = number("n", 2), number("m", 2)  # sizes of two and more
I, J, R = axis("i", 100), axis("j", 5), axis("r", 2)
AT = axis("a", N)  # below n
FEW = number("few", 3, 9)  # 3 to 8
ANY, ODD = number("any", -1), axis("odd", None)


def one(expr: Expr) -> Symbol:
    (symbol,) = expr.symbols()
    return symbol


def test_products_are_in_the_order_in_which_symbols_were_made() -> None:
    assert repr(J * I) == repr(I * J) == "i * j"
    assert J * I == I * J
    assert repr(J * 3 + I * 3 - N * M + 1) == "-n * m + i * 3 + j * 3 + 1"


@pytest.mark.parametrize(
    ("expr", "of", "wanted"),
    [
        (I * 3 + J, I, Expr.of(3)),
        (I * J * 2 + I + J, I, J * 2 + 1),
        (I * I + J, I, Expr.of(0)),
        (J + 1, I, Expr.of(0)),
    ],
)
def test_what_a_symbol_is_multiplied_with(expr: Expr, of: Expr, wanted: Expr) -> None:
    assert expr.coefficient(one(of)) == wanted


def test_numbers_stand_on_either_side() -> None:
    assert (3 + I, 3 - I, 3 * I) == (I + 3, -I + 3, I + I + I)
    assert (I - J, J - I) == (I + J * -1, -(I - J))
    assert (I * 1, I * 0, I * Expr.of(2), Expr.of(2) * I) == (I, 0, I + I, I + I)
    assert (I + J) * (I - J) == I * I - J * J
    assert all(each is I for each in (I * 1, 1 * I, I + 0, 0 + I, I - 0))
    assert Expr.of(3) * (I // 7 * 7 + J) + I % 7 * 3 == I * 3 + J * 3
    assert all(each.is_affine_in(one(I)) for each in (I, I * J, J, I * 3 + J // 2))
    assert not any(each.is_affine_in(one(I)) for each in (I * I, J + I // 3, I % 3, I * I * J))
    assert repr(7 // (I + 1)) == "(7 // (i + 1))"
    assert 7 // (J + 8) == 0
    assert (I // 100, I % 100) == (0, I)


def test_text_has_the_parentheses_that_it_needs() -> None:
    assert [repr(I // 7), repr((I + J) // 7), repr(I * 2 // 7)] == [
        "(i // 7)",
        "((i + j) // 7)",
        "((i * 2) // 7)",
    ]
    assert [repr(I // N), repr(I % (N + 1)), repr(FloorDiv(I, N // 2))] == [
        "(i // n)",
        "(i % (n + 1))",
        "(i // (n // 2))",
    ]
    assert [repr(FloorDiv(Expr.of(v), N)) for v in (-1, 0, 1)] == [
        "((-1) // n)",
        "(0 // n)",
        "(1 // n)",
    ]


def test_what_is_put_in_place_is_simplified_again() -> None:
    expr = I // 7 * 2 + (I + J) % (N + 3)
    i, n = one(I), one(N)
    assert expr.substitute({one(M): 3}) is expr
    assert expr.substitute({i: Expr.of(15), n: 5}) == 4 + (15 + J) % 8
    assert (I * J + J // 2).substitute({i: J, one(J): 5}) == J * 5 + 2
    values = {i: 30, one(J): 4, n: 6}
    assert expr.evaluate(values.__getitem__) == 30 // 7 * 2 + 34 % 9


@pytest.mark.parametrize(
    ("expr", "low", "high"),
    [
        (Expr.of(7), 7, 7),
        (I, 0, 99),
        (I * 3 - J * 2 + 1, -7, 298),
        (I * J, 0, 396),
        (-I * J, -396, 0),
        (I * J - I, None, None),  # the sign of what i is multiplied with is not known
        (N, 2, None),
        (-N, None, -2),
        (N * M, 4, None),
        (AT, 0, None),
        (N - AT, 1, None),
        (AT - N, None, -1),
        (N * M - AT * M, 2, None),
        (AT * (N - M), None, None),
        (FEW, 3, 8),
        (FEW * FEW - FEW, 1, 61),
        (FEW * N, 6, None),
        (number("nothing", 0, 1), 0, 0),
        (I * I, 0, 99 * 99),
        (I * (I // 7), 0, 99 * 14),
        (ANY, None, None),
        (ANY * 0 + 4, 4, 4),
        (ODD, 0, None),
        (axis("none", 0) + N, 2, None),
        (axis("place", N, "indirect"), 0, None),
        (N - axis("place", N, "indirect"), 1, None),
        (I % 7, 0, 6),
        (I % N, 0, None),
        ((I - J) % 7, 0, 6),
        (I // 7, 0, 14),
        ((I + 20) // 7, 2, 17),
        (I // N, 0, 99),
        ((I - J) // 7, None, None),
        (ANY // 7, None, None),
        ((N + 20) // 7, 3, None),
        (I % 7 * 3 - I // 7, -14, 18),
    ],
)
def test_bounds(expr: Expr, low: int | None, high: int | None) -> None:
    assert (lower_bound(expr), upper_bound(expr)) == (low, high)
    assert is_nonnegative(expr) == (low is not None and low >= 0)
    assert low is None or not is_nonnegative(expr - low - 1)
    assert low is None or is_nonnegative(expr - low)
    assert provably_less(expr, Expr.of(60)) == (high is not None and high < 60)


@pytest.mark.parametrize("count", [1, 8, 12])
def test_however_many_axes_there_are(count: int) -> None:
    total = sum((axis("a", N) for _ in range(count)), Expr.of(0))
    assert lower_bound(N * count - total) == count


@pytest.mark.parametrize("divisor", [0, -1])
def test_divisors_are_positive(divisor: int) -> None:
    for divide in (floor_div, remainder):
        with pytest.raises(ZeroDivisionError, match="must be positive"):
            divide(I, Expr.of(divisor))
        assert divide(Expr.of(3), Expr.of(1)) == (3 if divide is floor_div else 0)


@pytest.mark.parametrize(
    ("numerator", "divisor", "quotient", "rest"),
    [
        (I * 8 + J, 8, "i", "j"),
        (I * 8 + J + 4, 8, "i + ((j + 4) // 8)", "((j + 4) % 8)"),
        (I * 4 + J, 8, "((i * 4 + j) // 8)", "((i * 4 + j) % 8)"),
        (I * 4 + R, 8, "(i // 2)", "(i % 2) * 4 + r"),
        (I * 4 + J * 2 + R, 8, "((i * 2 + j) // 4)", "((i * 2 + j) % 4) * 2 + r"),
        (I * 6 + 3, 8, "((i * 3 + 1) // 4)", "((i * 3 + 1) % 4) * 2 + 1"),
        (I // 3, 4, "(i // 12)", "((i // 3) % 4)"),
        (I // N, 4, "((i // n) // 4)", "((i // n) % 4)"),
        (I % 12, 4, "((i % 12) // 4)", "(i % 4)"),
        (I % 12, 5, "((i % 12) // 5)", "((i % 12) % 5)"),
        (I % 12, 12, "0", "(i % 12)"),
        (I % N, 4, "((i % n) // 4)", "((i % n) % 4)"),
        (I * N + AT, N, "i", "a"),
        (I * N, N * 3, "((n * i) // (n * 3))", "((n * i) % (n * 3))"),
        (N + 1, N + 1, "1", "0"),
    ],
)
def test_division(numerator: Expr, divisor: int | Expr, quotient: str, rest: str) -> None:
    assert (repr(numerator // divisor), repr(numerator % divisor)) == (quotient, rest)


@pytest.mark.parametrize(
    ("total", "wanted"),
    [
        (I // 7 * 7 + I % 7, "i"),
        (I // 7 * 14 + I % 7 * 2, "i * 2"),
        (I // 7 * J * 7 + I % 7 * J, "i * j"),
        (I // 7 * 7 + I % 8, "(i // 7) * 7 + (i % 8)"),
        (I // 7 * 8 + I % 7, "(i // 7) * 8 + (i % 7)"),
        (I // N * N + I % N, "i"),
        (I // 4 % 3 * 4 + I % 4, "(i % 12)"),
        (I % 12 // 4 * 4 + I % 4, "(i % 12)"),
        (I % 12 // 4 * J * 4 + I % 4 * J, "j * (i % 12)"),
        (I % 12 // 4 * 5 + I % 4, "((i % 12) // 4) * 5 + (i % 4)"),
        (I % 12 // 3 * 3 + I % 4, "((i % 12) // 3) * 3 + (i % 4)"),
        (I % 13 // 4 * 4 + I % 4, "((i % 13) // 4) * 4 + (i % 4)"),
    ],
)
def test_parts_of_a_position_join(total: Expr, wanted: str) -> None:
    assert repr(total) == wanted


def test_divisions_that_did_not_simplify_differ_by_their_parts() -> None:
    seven, nine = Expr.of(7), Expr.of(9)
    for kind, other in ((FloorDiv, Mod), (Mod, FloorDiv)):
        made = kind(I, seven)
        assert made == kind(I, seven)
        assert all(made != each for each in (kind(I, nine), kind(J, seven), other(I, seven), I))
