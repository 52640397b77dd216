"""Sines, tangents and remainders in C++ kernels, whose blocks have a quick form where moderate."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import fusec
from fusec.targets.cpp.plan import choices

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def agree(function: Function, x: torch.Tensor, *, quick: bool = True) -> None:
    """Compile, compare with float64 and eager, and see whether there are two forms."""
    compiled = fusec.compile(function)
    got = compiled(x)
    (graph,) = compiled.graphs
    assert any("fx_moderate_" in kernel.source for kernel in graph.kernels) is quick
    eager, exact = function(x), function(x.double())
    assert got.dtype == eager.dtype
    assert torch.equal(got.isnan(), eager.isnan())
    # a rounding before the sine moves a large angle by more than one after it
    allowed = (eager.double() - exact).abs() + torch.finfo(got.dtype).eps * 4
    worse = (got.double() - exact).abs() > allowed
    assert not (worse & ~exact.isnan()).any()


def waves(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * torch.cos(2 * x)


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(100_003,), (40, 300), (3, 4096), (2, 5, 1024)])
def test_near_and_far_blocks(shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape) * 100
    agree(waves, x)
    # one far element takes its block with it, the rest is as before
    flat = x.reshape(-1)
    flat[:: max(1, len(flat) // 3)] = torch.tensor(1e9)
    agree(waves, x)
    flat[5], flat[6], flat[7] = float("inf"), float("nan"), -0.0
    agree(waves, x)
    agree(waves, torch.full(shape, -3e38))


def test_the_limit_and_just_below_it() -> None:
    limit = torch.tensor(2.0**15)
    below = torch.nextafter(limit, torch.tensor(0.0))
    agree(waves, torch.stack([below, limit, -below, -limit]).repeat(5000))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    agree(lambda x: torch.cos(x.float()), (torch.randn(500, 300) * 50).to(dtype))


def test_not_contiguous() -> None:
    agree(torch.sin, (torch.randn(512, 600) * 9)[:, ::2])
    agree(torch.cos, (torch.randn(512, 600) * 9).t())


def test_where_it_does_not_pay_there_is_one_form() -> None:
    agree(torch.sin, torch.randn(300), quick=False)  # over before a block would pay
    agree(lambda x: torch.sin(torch.exp(torch.tanh(x))), torch.randn(30_000), quick=False)


def test_angles_in_double() -> None:
    """As near as the C library: a unit of the last place of eager's, at multiples of pi as well."""
    if not choices.has_fma():
        pytest.skip("a product is rounded here")
    generator = torch.Generator().manual_seed(3)
    count = 40_000
    turns = torch.randint(-600_000, 600_000, (count,), generator=generator).double()
    normal = torch.randn(count, dtype=torch.float64, generator=generator)
    small = 2.0 ** -torch.randint(0, 1070, (count,), generator=generator).double()
    special = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e300, 2.0**20]).double()
    for x in (normal, normal * 1e5, turns * (math.pi / 2), small, special.repeat(7000)):
        for function in (torch.sin, torch.cos, torch.tan):
            torch._dynamo.reset()
            compiled = fusec.compile(function)
            got, want = compiled(x), function(x)
            (kernel,) = compiled.kernels.values()
            assert "fx_moderate_" in kernel.source
            unit = torch.nextafter(want.abs(), torch.full_like(want, float("inf"))) - want.abs()
            wrong = (got - want).abs() > unit
            assert not (wrong & ~want.isnan()).any()
            assert torch.equal(got.isnan(), want.isnan())
            assert torch.equal(got.signbit() & ~got.isnan(), want.signbit() & ~want.isnan())


# -- remainders ------------------------------------------------------------------------------------


def exact_rest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return C's remainder; ATen's own is NaN where the quotient is huge."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.fmod(x.numpy(), y.numpy()))


def exact_modulo(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return Python's remainder, on the side of zero that y is on."""
    rest = exact_rest(x, y)
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def quotients(dtype: torch.dtype, far: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dividends and divisors: near multiples, special ones, and of any exponent if far."""
    generator = torch.Generator().manual_seed(5)
    count = 1 << 16
    y = torch.randn(count, dtype=dtype, generator=generator)
    whole = torch.randint(-(1 << 20), 1 << 20, (count,), generator=generator).to(dtype)
    x = whole * y
    x[::2] = torch.nextafter(x[::2], torch.zeros(()).to(dtype))
    x[1::4] = torch.nextafter(x[1::4], torch.full((), float("inf"), dtype=dtype))
    if not far:
        return x, y
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    limits = torch.iinfo(bits)
    for each in (x, y):
        any_number = torch.randint(limits.min, limits.max, (count // 4,), generator=generator)
        each[: count // 4] = any_number.to(bits).view(dtype)
        special = torch.tensor([0.0, -0.0, 1.0, -3.5, 1e-45, 2**22, float("inf"), float("nan")])
        pairs = torch.cartesian_prod(special, special).to(dtype).unbind(1)
        each[-64:] = pairs[0 if each is x else 1]
    return x, y


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [False, True])
def test_remainders_are_exact(dtype: torch.dtype, far: bool) -> None:
    x, y = quotients(dtype, far)
    for function, exact in ((torch.fmod, exact_rest), (torch.remainder, exact_modulo)):
        for short in (False, True):  # rows too short for blocks have one form, for all
            torch._dynamo.reset()
            compiled = fusec.compile(function)
            a, b = (t.view(-1, 64)[:, 1:] if short else t for t in (x, y))
            got, want = compiled(a, b), exact(a, b)
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(got.signbit() & ~got.isnan(), want.signbit() & ~want.isnan())
            ((_, kernel),) = compiled.kernels.items()
            if dtype == torch.float32:
                assert ("fx_is_far_quotient" in kernel.source) is not short


def test_whole_quotients_and_halves() -> None:
    x, y = torch.randn(100, 300) * 50, torch.randn(300)
    y[7], y[8] = 0.0, float("inf")
    for function in (torch.floor_divide, torch.remainder, torch.fmod):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            if dtype.itemsize == 2 and function is torch.floor_divide:
                continue  # eager rounds every step of it to a half
            torch._dynamo.reset()
            a, b = x.to(dtype), y.to(dtype)
            got, want = fusec.compile(function)(a, b), function(a, b)
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
