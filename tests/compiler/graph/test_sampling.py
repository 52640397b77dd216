"""Reading images at computed places, as eager does."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import fusec

NAN, INF = math.nan, math.inf
# Places outside of the image, far outside, and nowhere.
ODD_PLACES = (
    (NAN, 0.0),
    (0.0, NAN),
    (NAN, NAN),
    (INF, 0.0),
    (-INF, 0.0),
    (0.0, INF),
    (1e30, 0.0),
    (NAN, 5.0),
)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def places(dtype: torch.dtype) -> torch.Tensor:
    grid = torch.rand(2, 5, 9, 2, generator=torch.Generator().manual_seed(0)) * 3 - 1.5
    grid[0, 0, :8] = torch.tensor(ODD_PLACES)
    grid[1, 0, :, 0], grid[1, 0, :, 1] = torch.linspace(-1, 1, 9), 1.0
    grid[1, 1], grid[1, 2], grid[1, 3], grid[1, 4] = -1.0, 1.0, 5.3, -7.1
    return grid.to(dtype)


@pytest.mark.sample(3)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_places_that_are_nowhere_are_what_eager_has(mode: str, padding: str) -> None:
    """NaN where eager has NaN; nothing of an infinite corner where places are outside."""
    kinds = [(torch.float32, (33, 20), False), (torch.float64, (1, 7), True)]
    for dtype, size, align in kinds[: 1 if mode == "bicubic" else 2]:
        x, grid = torch.randn(2, 4, *size).to(dtype), places(dtype)
        x[0, 0, 0, 0], x[1, 1, -1, -1] = INF, NAN

        def sampled(x: torch.Tensor, grid: torch.Tensor, align: bool = align) -> torch.Tensor:
            return F.grid_sample(x, grid, mode, padding, align_corners=align)

        torch._dynamo.reset()
        got, eager = fusec.compile(sampled)(x, grid), sampled(x, grid)
        torch.testing.assert_close(got, eager, rtol=2e-5, atol=2e-5, equal_nan=True)
        assert got.stride() == eager.stride()


def test_channels_innermost_and_slices() -> None:
    def sampled(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, align_corners=False)

    grid = torch.rand(2, 5, 9, 2) * 2.2 - 1.1
    for x in (
        torch.randn(2, 4, 9, 8).to(memory_format=torch.channels_last),
        torch.randn(2, 8, 9, 16)[:, ::2, :, 3:11],
        torch.randn(2, 4, 18, 8)[:, :, ::2],
    ):
        torch._dynamo.reset()
        compiled = fusec.compile(sampled)
        for given in (x, x + 1):
            got, eager = compiled(given, grid), sampled(given, grid)
            torch.testing.assert_close(got, eager, rtol=2e-5, atol=2e-5)
            assert got.stride() == eager.stride()


def test_an_index_that_cannot_be_wrong_is_not_checked() -> None:
    compiled = fusec.compile(lambda x, g: F.grid_sample(x, g, align_corners=False))
    compiled(torch.randn(2, 8, 16, 16), torch.rand(2, 16, 16, 2))
    assert "failed" not in "\n".join(kernel.source for kernel in compiled.kernels.values())
