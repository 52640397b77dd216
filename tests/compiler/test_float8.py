"""Conversions from and to float8: kernels do them for a GPU, as torch does."""

from __future__ import annotations

import pytest
import torch

import fusec

FP8 = torch.float8_e4m3fn
SPECIAL = [0.0, -0.0, 1e-3, 2**-9, 2**-10, 3 * 2**-10, 447.0, 448.0, 463.9, 464.0, 464.1, 480.0]
SPECIAL += [1e9, -1e9, float("inf"), -float("inf"), float("nan"), -463.9, -464.0, -465.0, 17.0]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits, but for which NaN it is."""
    x, y = a.view(torch.uint8), b.view(torch.uint8)
    nan = a.float().isnan() & b.float().isnan()
    return bool((nan | (x == y)).all())


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_to_float8(dtype: torch.dtype) -> None:
    x = torch.cat([torch.tensor(SPECIAL), torch.randn(3000) * 100]).to(dtype)
    compiled = fusec.compile(lambda x: (x * 1).to(FP8), target="triton")
    assert same(compiled(x), x.to(FP8))
    assert len(compiled.kernels) == 1
    assert not compiled.graphs[0].externs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_from_float8(dtype: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(FP8)
    compiled = fusec.compile(lambda x: x.to(dtype) * 2, target="triton")
    torch.testing.assert_close(compiled(x), x.to(dtype) * 2, rtol=0, atol=0, equal_nan=True)
    assert not compiled.graphs[0].externs


def test_elsewhere_aten_converts() -> None:
    x = torch.randn(100)
    compiled = fusec.compile(lambda x: (x + 1).to(FP8))
    assert same(compiled(x), (x + 1).to(FP8))
    assert compiled.graphs[0].externs


def test_float64_is_rounded_once() -> None:
    # in float32 this is a tie; in float64 it lies above it
    x = torch.tensor([17.0 + 2.0**-40, 1.0625], dtype=torch.float64)
    compiled = fusec.compile(lambda x: (x * 1).to(FP8), target="triton")
    assert same(compiled(x), (x * 1).to(FP8))
