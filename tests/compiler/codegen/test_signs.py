"""Which parentheses stand between operators: those that C++ and its readers need, no others."""

from __future__ import annotations

import pytest
import torch

from fusec.codegen.common import c_language
from fusec.codegen.common.c_language import GRAMMAR, literal
from fusec.codegen.common.expressions import Spelled, from_left, joined, meaning

A, B, C = (Spelled(name, c_language.ATOM) for name in "abc")
NEGATED = Spelled("-a", c_language.UNARY)


def test_how_strongly_operators_bind() -> None:
    """Weakest first, as the language has it."""
    order = ["||", "&&", "|", "^", "&", "==", "<", "+", "*"]
    found = [GRAMMAR[sign].strength for sign in order]
    assert found == sorted(set(found))
    assert found[0] > c_language.CHOICE
    assert found[-1] < c_language.UNARY < c_language.ATOM
    alike = {"!=": "==", "<=": "<", ">": "<", ">=": "<", "-": "+", "/": "*"}
    assert all(GRAMMAR[one] == GRAMMAR[other] for one, other in alike.items())


# outer and inner sign; the text with the inner one on the left, and on the right
NESTED = [
    ("+", "+", "a + b + c", "a + (b + c)"),
    ("-", "-", "a - b - c", "a - (b - c)"),
    ("+", "*", "a * b + c", "a + b * c"),
    ("*", "+", "(a + b) * c", "a * (b + c)"),
    ("*", "*", "a * b * c", "a * (b * c)"),
    ("/", "*", "a * b / c", "a / (b * c)"),
    ("<", "+", "a + b < c", "a < b + c"),
    ("<", "<", "(a < b) < c", "a < (b < c)"),
    ("==", "+", "a + b == c", "a == b + c"),
    ("==", "<", "(a < b) == c", "a == (b < c)"),
    ("==", "==", "(a == b) == c", "a == (b == c)"),
    ("&", "&", "a & b & c", "a & (b & c)"),
    ("&", "+", "(a + b) & c", "a & (b + c)"),
    ("&", "==", "(a == b) & c", "a & (b == c)"),
    ("^", "^", "(a ^ b) ^ c", "a ^ (b ^ c)"),
    ("^", "&", "(a & b) ^ c", "a ^ (b & c)"),
    ("|", "|", "a | b | c", "a | (b | c)"),
    ("|", "&", "(a & b) | c", "a | (b & c)"),
    ("&&", "==", "a == b && c", "a && b == c"),
    ("&&", "<", "a < b && c", "a && b < c"),
    ("&&", "|", "(a | b) && c", "a && (b | c)"),
    ("&&", "&&", "(a && b) && c", "a && (b && c)"),
    ("||", "==", "a == b || c", "a || b == c"),
    ("||", "&&", "(a && b) || c", "a || (b && c)"),
    ("||", "||", "(a || b) || c", "a || (b || c)"),
]


@pytest.mark.parametrize(("outer", "inner", "left", "right"), NESTED)
def test_parentheses(outer: str, inner: str, left: str, right: str) -> None:
    first = joined(GRAMMAR, outer, joined(GRAMMAR, inner, A, B), C)
    second = joined(GRAMMAR, outer, A, joined(GRAMMAR, inner, B, C))
    assert (first.text, second.text) == (left, right)
    assert first.strength == second.strength == GRAMMAR[outer].strength
    assert joined(GRAMMAR, outer, NEGATED, NEGATED).text == f"-a {outer} -a"


def test_what_is_taken_from_the_left() -> None:
    sign = from_left(5)
    assert (sign.strength, sign.left, sign.right, sign.chains) == (5, 5, 6, False)
    assert Spelled("x", 5).within(5) == "x"
    assert Spelled("x", 5).within(6) == "(x)"


def test_operations_on_bools_are_others() -> None:
    add = meaning("add", torch.float32)
    assert add is not None
    assert meaning("add", torch.bool) != add
    assert meaning("add", torch.int32) == add
    assert meaning("exp", torch.bool) == meaning("exp", torch.float32)
    assert meaning("no such", torch.bool) is None


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1, torch.bool, "true"),
        (0, torch.bool, "false"),
        (1.0, torch.float16, "0x3c00"),
        (1.0, torch.bfloat16, "0x3f80"),
        (2, torch.float32, "2.0f"),
        (0.1, torch.float32, "0.1f"),
        (0.1, torch.float64, "0.1"),
        (1e30, torch.float32, "1e+30f"),
        (1e300, torch.float32, "INFINITY"),
        (float("-inf"), torch.float64, "-INFINITY"),
        (float("nan"), torch.float64, "NAN"),
        (-7, torch.int8, "-7"),
        (-(2**63), torch.int64, "INT64_MIN"),
        (1 - 2**63, torch.int64, str(1 - 2**63)),
        (2**63 - 1, torch.uint64, str(2**63 - 1)),
        (2**63, torch.uint64, f"{2**63}u"),
        (7, torch.uint64, "7"),
    ],
)
def test_numbers(value: float, dtype: torch.dtype, text: str) -> None:
    assert literal(value, dtype) == text
