"""Cheaper forms of maths in Triton kernels: quotients by a row's value, rounding to an integer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec

SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -3e-39, 1.17e-38, 3.4e38]


def run(function: Callable[..., Any], *given: torch.Tensor) -> tuple[Any, str]:
    """Return what Triton's interpreter computes, and the kernels' text."""
    torch._dynamo.reset()  # cases share their code
    compiled = fusec.compile(function, target="triton")
    result = compiled(*given)
    return result, "\n".join(kernel.source for kernel in compiled.kernels.values())


def by_extreme(x: torch.Tensor, divisors: torch.Tensor) -> torch.Tensor:
    return x / divisors.amax(-1, keepdim=True)


def floats(*shape: int, least: int, most: int) -> torch.Tensor:
    """Return float32 numbers of both signs with exponents from ``least`` to ``most``."""
    mantissas = 1 + torch.rand(shape) * torch.randint(0, 2, shape)
    signs = torch.randint(0, 2, shape) * 2.0 - 1
    exponents = torch.randint(least, most + 1, shape).double()
    return (signs * mantissas * exponents.exp2()).float()


@pytest.mark.triton
@pytest.mark.parametrize(("least", "most"), [(-10, 10), (-60, 60), (-149, -120), (100, 127)])
def test_a_quotient_by_a_rows_value_is_the_nearest_one(least: int, most: int) -> None:
    torch.manual_seed(0)
    divisors = floats(64, 1, least=least, most=most).expand(64, 96).contiguous()
    # so that quotients are normal numbers, and some denormal or too large
    x = (floats(64, 96, least=-20, most=20).double() * divisors.abs()).float()
    x = torch.where(x.abs() < 1e-30, x.sign() * divisors.abs(), x) if least > -100 else x
    quotients, text = run(by_extreme, x, divisors)
    assert "divided(" in text
    expected = x / divisors
    off = (quotients.double() / expected.double() - 1).abs().nan_to_num()
    near = x.abs() < 1e-31
    assert torch.equal(quotients[~near], expected[~near])
    assert (off[near] <= 2.0**-23).all()


def test_special_values_divide_as_eager_has_them() -> None:
    divisors = torch.tensor([*SPECIAL, 1.0, -2.5]).view(-1, 1)
    x = torch.tensor([*SPECIAL, 1.0, -7.0, 2.5e38]).repeat(len(divisors), 1)
    quotients, _ = run(by_extreme, x, divisors)
    expected = x / divisors
    torch.testing.assert_close(quotients, expected, equal_nan=True, rtol=2.0**-23, atol=2e-45)
    zero = expected == 0
    assert torch.equal(quotients[zero].signbit(), expected[zero].signbit())


def quantize(x: torch.Tensor, low: float, high: float, dtype: torch.dtype) -> torch.Tensor:
    return x.round().clamp(low, high).to(dtype)


@pytest.mark.triton
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (-127, 127, torch.int8),
        (0, 255, torch.uint8),
        (-8, 7, torch.int32),
        (-100, 100, torch.int64),
    ],
)
def test_rounding_between_bounds_is_an_addition(
    source: torch.dtype, low: float, high: float, dtype: torch.dtype
) -> None:
    halves = torch.arange(-300, 300) / 2
    x = torch.cat([halves, halves + 1e-3, torch.randn(500) * 100, torch.tensor([1e9, -1e30])])
    x = torch.cat([x, torch.tensor([float("inf"), float("-inf"), -0.0])]).to(source)
    result, text = run(lambda t: quantize(t, low, high, dtype), x)
    assert "nearest_int(" in text
    assert "nearbyint" not in text
    assert torch.equal(result, quantize(x, low, high, dtype))


def test_nan_becomes_zero() -> None:
    result, _ = run(lambda t: quantize(t, -127, 127, torch.int8), torch.tensor([float("nan"), 3.4]))
    assert result.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("low", "high", "dtype", "source"),
    [
        (-127.5, 127, torch.int8, torch.float32),  # not an integer
        (-(2**23), 2**23, torch.int32, torch.float32),  # beyond what the addition rounds
        (-300, 300, torch.int32, torch.bfloat16),  # the type between rounds
    ],
)
def test_other_roundings_stay(
    low: float, high: float, dtype: torch.dtype, source: torch.dtype
) -> None:
    x = torch.tensor([-127.5, -126.5, 0.5, 1.5, 8388607.0, 4194305.5, 299.0]).to(source)
    result, text = run(lambda t: quantize(t, low, high, dtype), x)
    assert "nearest_int(" not in text
    assert torch.equal(result, quantize(x, low, high, dtype))


def test_without_a_bound_it_stays() -> None:
    x = torch.randn(100) * 1e6
    result, text = run(lambda t: t.round().clamp(min=-5).to(torch.int32), x)
    assert "nearest_int(" not in text
    assert torch.equal(result, x.round().clamp(min=-5).to(torch.int32))
