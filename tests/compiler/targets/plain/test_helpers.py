"""The functions that plain kernels bring along, beside torch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec

INTEGERS = torch.tensor([0, 1, -1, 2, -3, 7, -7, 8, 100, -100, 127, -128])
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan")])
REALS = torch.cat([SPECIAL, torch.linspace(-20, 20, 4001), torch.logspace(-30, 30, 601)])


def same(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, **how: float) -> None:
    torch._dynamo.reset()
    compiled = fusec.compile(function, target="plain", dynamic=False)
    torch.testing.assert_close(compiled(*inputs), function(*inputs), equal_nan=True, **how)
    (kernel,) = compiled.kernels.values()
    assert kernel.target == "plain"


def test_every_half_becomes_a_float_and_back() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
        halves = bits.view(dtype)
        same(lambda x: x.float(), halves, rtol=0, atol=0)
        same(lambda x: x * 1, halves, rtol=0, atol=0)


def test_floats_are_rounded_to_the_nearest_half() -> None:
    near = torch.randn(20000) * torch.logspace(-9, 6, 20000)
    ties = torch.arange(1 << 12).float() / 2048 + 1  # between two of float16
    edges = torch.tensor([65504.0, 65519.9, 65520.0, 2**-14, 2**-24, 2**-25, 3 * 2**-25, 6.1e-5])
    for dtype in (torch.float16, torch.bfloat16):
        for x in (near, ties, -ties, edges, SPECIAL):
            same(lambda x, dtype=dtype: x.to(dtype), x, rtol=0, atol=0)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", ["digamma", "erfinv", "lgamma", "sigmoid", "sign", "rsqrt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions(name: str, dtype: torch.dtype) -> None:
    x = REALS.to(dtype)
    if name == "erfinv":
        x = torch.cat(
            [torch.linspace(-1, 1, 4001, dtype=dtype), torch.tensor([1 - 1e-7], dtype=dtype)]
        )
    elif name == "digamma":  # near a pole the last bit of the argument decides
        x = x[(x > 0) | (x != x) | (x < -1e9)]
    tight = 2e-6 if dtype == torch.float32 else 1e-13
    same(getattr(torch, name), x, rtol=tight, atol=tight)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.float32]
)
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_quotients_and_what_is_left(dtype: torch.dtype, mode: str) -> None:
    x = INTEGERS.to(dtype)[:, None]
    y = torch.tensor([1, -1, 2, -2, 3, -3, 7, -128]).to(dtype)
    same(lambda x, y: torch.div(x, y, rounding_mode=mode), x, y)
    same(torch.remainder if mode == "floor" else torch.fmod, x, y)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_integers_wrap(dtype: torch.dtype) -> None:
    limits = torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max, 3, 1], dtype=dtype)
    same(lambda x: (x + 1) * x - 7 - x, limits)
    same(lambda x: x.abs() + (-x), limits)
    same(lambda x: x << 1, limits)
    same(lambda x: x >> 1, limits)
    same(lambda x: x**3, limits)


@pytest.mark.sample(5)
@pytest.mark.parametrize("to", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("source", [torch.float32, torch.float64])
def test_numbers_become_integers(source: torch.dtype, to: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.9, 1.5, -1.5, 100.9, -100.9, 126.5], dtype=source)
    same(lambda x: x.to(to), x.abs() if to == torch.uint8 else x)
    if to in (torch.int32, torch.int64):
        same(lambda x: x.to(to), torch.tensor([1e30, -1e30, 3e9, -3e9], dtype=source))


def test_extremes_mind_nan() -> None:
    y = REALS.flip(0)
    for name in ("maximum", "minimum", "fmax", "fmin"):
        same(getattr(torch, name), REALS, y, rtol=0, atol=0)
