"""Reading images at computed places, and padding by reflection, as eager does both."""

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


PADDINGS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 9), (2, 3)),
    ((2, 3, 9), (0, 8)),
    ((2, 3, 6, 9), (1, 2, 5, 0)),
    ((3, 6, 9), (0, 0, 2, 0)),
    ((2, 3, 6, 9), (-1, 2, 1, -2)),  # crops
    ((2, 3, 4, 5, 6), (1, 2, 3, 0, 0, 2)),
    ((2, 3, 6, 9), (0, 0, 0, 0)),
    ((1, 1, 6, 1), (0, 0, 1, 1)),
)


@pytest.mark.sample(4)
@pytest.mark.parametrize(("shape", "padding"), PADDINGS, ids=str)
def test_reflection(shape: tuple[int, ...], padding: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    kinds = [x, x.to(torch.bfloat16).transpose(-1, -2).contiguous().transpose(-1, -2)]
    if x.ndim == 4:
        kinds.append(x.to(memory_format=torch.channels_last))
    for given in kinds:
        torch._dynamo.reset()
        compiled = fusec.compile(lambda x: F.pad(x, padding, mode="reflect"))
        got, eager = compiled(given), F.pad(given, padding, mode="reflect")
        assert torch.equal(got, eager)
        assert got.stride() == eager.stride()


def test_too_much_reflection_is_refused_as_in_eager() -> None:
    compiled = fusec.compile(lambda x: F.pad(x, (5, 5), mode="reflect"))
    with pytest.raises(RuntimeError, match="Padding size should be less"):
        compiled(torch.randn(2, 3, 4))


def test_reflection_reads_no_computed_places() -> None:
    compiled = fusec.compile(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect") * 2)
    x = torch.randn(4, 8, 32, 32, requires_grad=True)
    (got,) = torch.autograd.grad(compiled(x).sum(), x)
    (eager,) = torch.autograd.grad((F.pad(x, (1, 1, 1, 1), mode="reflect") * 2).sum(), x)
    torch.testing.assert_close(got, eager)
    assert "fx_abs" not in "\n".join(k.source for k in compiled.kernels.values())
