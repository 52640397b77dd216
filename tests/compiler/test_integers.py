"""Integers of every type at the ends of their ranges: constants, scalars, tensors; as in eager."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fusec
from fusec.ir import ops
from fusec.ir.bounds import bounds
from fusec.ir.node import Const, const, recording
from support.compare import difference

DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]
WIDE = [torch.uint16, torch.uint32, torch.uint64]
# Python numbers that are none of the narrow types; Triton's interpreter is slow, so it has fewer.
SCALARS = [-129, -128, -2, -1, 0, 1, 2, 7, 8, 31, 63, 64, 127, 128, 255, 256, 2**31 - 1, -(2**31)]


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def corners(dtype: torch.dtype) -> list[int]:
    if dtype == torch.bool:
        return [0, 1]
    info = torch.iinfo(dtype)
    values = [info.min, info.min + 1, -7, -2, -1, 0, 1, 2, 7, 8, info.bits - 1, info.bits]
    values += [info.max // 2 + 1, info.max - 1, info.max]
    return sorted({value for value in values if info.min <= value <= info.max})


def rounded_quotient(mode: str) -> Callable[..., torch.Tensor]:
    return lambda x, y: torch.div(x, y, rounding_mode=mode)


UNARY: dict[str, Callable[[torch.Tensor], Any]] = {
    name: getattr(torch, name)
    for name in (
        "neg abs sign sgn square relu signbit logical_not bitwise_not sqrt exp reciprocal isnan "
        "ceil round sum prod amax amin any all argmax argmin count_nonzero nan_to_num".split()
    )
} | {
    "less than its negative": lambda x: x < torch.neg(x),
    "less than its complement": lambda x: x < ~x,
    "cumsum": lambda x: torch.cumsum(x, -1),
    "cumprod": lambda x: torch.cumprod(x, -1),
    "narrow sum": lambda x: torch.sum(x, dtype=torch.uint8),
    "narrow signed sum": lambda x: torch.sum(x, dtype=torch.int8),
    "narrow prod": lambda x: torch.prod(x, dtype=torch.uint8),
    "clamp": lambda x: x.clamp(-1, 5),
    "lower bound": lambda x: x.clamp_min(-3),
    "cube": lambda x: x**3,
    "wide": lambda x: (x * 3 + 7).to(torch.int64),
    "float": lambda x: x.float(),
    "half": lambda x: x.half(),
    "conversions": lambda x: [x.to(dtype) for dtype in (*DTYPES, *WIDE)],
}
_SAME = (
    "add sub mul div floor_divide remainder fmod lt le gt ge eq ne maximum minimum fmax "
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift logical_and "
    "logical_or logical_xor pow gcd rsub atan2 copysign xlogy"
)
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(torch, name) for name in _SAME.split()
} | {
    "floor": rounded_quotient("floor"),
    "trunc": rounded_quotient("trunc"),
    "<<": operator.lshift,
    ">>": operator.rshift,
    "less than the difference": lambda x, y: x < y - x,
    "alpha": lambda x, y: torch.add(x, y, alpha=3),
    "clamped": lambda x, y: torch.clamp(x, min=y),
    "chosen": lambda x, y: torch.where(x > y, x, y),
}


def check_together(functions: dict[str, Callable[..., Any]], *args: Any, target: str) -> None:
    """Compile what eager does not refuse as one function; compare each result."""
    expected = {}
    for name, function in functions.items():
        try:
            expected[name] = function(*args)
        except (RuntimeError, ZeroDivisionError, NotImplementedError, TypeError):
            continue

    def together(*given: Any) -> list[Any]:
        return [functions[name](*given) for name in expected]

    found = fusec.compile(together, dynamic=False, target=target)(*args)
    for (name, wanted), mine in zip(expected.items(), found, strict=True):
        assert not difference(mine, wanted), (name, difference(mine, wanted))


def pairs(left: torch.dtype, right: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every corner beside every other one that one may divide by.

    Eager's own division of the least integer by -1 ends the process where it is done one by one:
    types that differ, and what is left over of int32 and int64 beside its vectors.
    """
    both = [(x, y) for x in corners(left) for y in corners(right) if y]
    if left != right or left.itemsize >= 4:
        both = [(x, y) for x, y in both if y != -1 or x != min(corners(left))]
    return (
        torch.tensor([x for x, _ in both], dtype=left),
        torch.tensor([y for _, y in both], dtype=right),
    )


# -- constants ----------------------------------------------------------------------------

_FOLDED: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in "add sub mul eq ne lt le gt ge".split()
}


@pytest.mark.parametrize("dtype", [d for d in DTYPES + WIDE if d != torch.bool], ids=str)
def test_constants_are_what_arithmetic_leaves_of_them(dtype: torch.dtype) -> None:
    """Against Python's integers, wrapped round by hand."""
    info = torch.iinfo(dtype)

    def wrapped(value: int) -> int:
        return (value - info.min) % (1 << info.bits) + info.min

    with recording():
        for x, y in itertools.product(corners(dtype), repeat=2):
            for name, function in _FOLDED.items():
                node = ops.binary(name, const(x, dtype), const(y, dtype))
                assert isinstance(node, Const), (name, x, y)
                value = function(x, y)
                wanted = value if isinstance(value, bool) else wrapped(value)
                assert node.value == wanted, (name, x, y)
        for x in corners(dtype):
            node = ops.unary("neg", const(x, dtype))
            assert isinstance(node, Const)
            assert node.value == wrapped(-x)
            assert const(x + (1 << info.bits), dtype) is const(x, dtype)


@pytest.mark.parametrize("target", ["auto", "triton"])
def test_a_negated_unsigned_constant(target: str) -> None:
    """Issue 31: it was compared as -5."""

    def function(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor(5, dtype=torch.uint8)
        return x < torch.neg(x), y + torch.neg(x)

    y = torch.tensor([1, 250], dtype=torch.uint8)
    assert not difference(fusec.compile(function, target=target)(y), function(y))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8], ids=str)
def test_bounds_of_constants_hold_what_they_are(dtype: torch.dtype) -> None:
    with recording():
        for value in (-1, 300, -(2**31) - 1):
            node = const(value, dtype)
            assert isinstance(node, Const)
            found = bounds(node)
            assert found is not None
            assert found[0] == found[1] == torch.tensor(value).to(dtype).item()


@pytest.mark.parametrize("target", ["auto", "triton"])
def test_positions_that_a_narrower_type_does_not_hold(target: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        far = torch.arange(2**31 - 4, 2**31 + 4)
        return far.to(torch.int32).to(torch.int64) + x, far.to(torch.int32) > x

    x = torch.ones(8, dtype=torch.int64)
    assert not difference(fusec.compile(function, target=target)(x), function(x))


def test_float_constants_are_compared_in_their_own_precision() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tenth, large = torch.tensor(0.1), torch.tensor(16777217.0)
        return (tenth == 0.1) & x, (large > 16777216.0) & x, (tenth.double() == 0.1) & x

    x = torch.ones(3, dtype=torch.bool)
    assert not difference(fusec.compile(function)(x), function(x))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("first", "second"), [(0, -1), (-1, 0), (-1, 1), (1, 2)])
def test_operators_on_constants_equal_eager(dtype: torch.dtype, first: int, second: int) -> None:
    """Both constants within the compiled function."""
    values = corners(dtype)
    x, y = values[first], values[second % len(values)]
    functions: dict[str, Callable[..., Any]] = {
        name: lambda _, f=f: f(torch.tensor(x, dtype=dtype)) for name, f in UNARY.items()
    }
    for name, function in BINARY.items():
        functions[name] = lambda _, f=function: f(
            torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)
        )
    check_together(functions, torch.ones(1), target="auto")


# -- what is computed ---------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("target", ["auto", "triton"])
def test_operators_on_corners_equal_eager(target: str, dtype: torch.dtype) -> None:
    x, y = pairs(dtype, dtype)
    check_together(BINARY, x, y, target=target)
    check_together(UNARY, torch.tensor(corners(dtype), dtype=dtype), target=target)


@pytest.mark.slow
@pytest.mark.parametrize(("left", "right"), list(itertools.permutations(DTYPES, 2)), ids=str)
def test_operators_on_mixed_types_equal_eager(left: torch.dtype, right: torch.dtype) -> None:
    """Two tensors; and one beside another of no dimensions, which counts less."""
    x, y = pairs(left, right)
    skipped = {"<<", ">>"} if torch.bool in (left, right) else set()  # no fake tensors of them
    functions = {name: f for name, f in BINARY.items() if name not in skipped}
    check_together(functions, x, y, target="auto")
    for value in (corners(right)[0], corners(right)[-1]):
        if value and torch.tensor(value).to(left).item() == value:
            torch._dynamo.reset()
            check_together(functions, x, torch.tensor(value, dtype=right), target="auto")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("target", ["auto", "triton"])
def test_operators_on_scalars_equal_eager(target: str, dtype: torch.dtype) -> None:
    for scalar in (*SCALARS, True, 0.5, -1.5):
        # as in `pairs`: eager's own division
        skipped = scalar == -1 and dtype.itemsize >= 4
        x = torch.tensor(corners(dtype)[int(skipped) :], dtype=dtype)
        functions = {
            name: (lambda a, f=f, s=scalar: f(a, s))
            for name, f in BINARY.items()
            if dtype != torch.bool or name not in ("<<", ">>")  # no fake tensors of them
        }
        check_together(functions, x, target=target)
        torch._dynamo.reset()


def test_connectives_take_their_operands_in_the_type_they_share() -> None:
    """A 0-dimensional 256 is 0 beside a uint8 tensor, and so is false."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.logical_and(x, y), torch.logical_or(x, y), torch.logical_xor(x, y)

    x, y = torch.tensor([1, 0], dtype=torch.uint8), torch.tensor(256)
    assert not difference(fusec.compile(function)(x, y), function(x, y))
    x, y = torch.tensor([1.0, 0.0], dtype=torch.float16), torch.tensor(1e-10)
    assert not difference(fusec.compile(function)(x, y), function(x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16], ids=str)
def test_a_bound_that_is_no_number(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.clamp(min=float("nan")), x.clamp(-1, float("nan")), x.clamp_max(float("nan"))

    x = torch.arange(3).to(dtype)
    assert not difference(fusec.compile(function)(x), function(x))


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_wide_unsigned_types_are_returned_and_converted(dtype: torch.dtype) -> None:
    largest = torch.iinfo(dtype).max

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.tensor(largest, dtype=dtype), torch.full((3,), 7, dtype=dtype), x.to(dtype)

    x = torch.tensor([-1, 0, 2**31, 2**62, -(2**63)])
    assert not difference(fusec.compile(function)(x), function(x))


# -- what eager refuses -------------------------------------------------------------------

REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "full": lambda x: torch.full((3,), 300, dtype=torch.uint8) + x[:3],
    "full_like": lambda x: torch.full_like(x, 300) + x,
    "fill": lambda x: torch.fill(x, 300),
    "masked_fill": lambda x: x.masked_fill(x > 0, 300),
    "clamp": lambda x: x.clamp(0, 300),
    "where": lambda x: torch.where(x > 0, x, 300),
    "pow": lambda x: x**300,
    "pad": lambda x: F.pad(x, (1, 1), value=-1),
    "scatter": lambda x: x.scatter(0, torch.tensor([0]), 300),
    "index_fill": lambda x: x.index_fill(0, torch.tensor([0]), 300),
}


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_that_a_type_does_not_hold_are_refused(name: str) -> None:
    function, x = REFUSED[name], torch.arange(9).to(torch.uint8)
    with pytest.raises(RuntimeError, match="cannot be converted"):
        function(x)
    with pytest.raises(RuntimeError, match="cannot be converted"):
        fusec.compile(function)(x)
