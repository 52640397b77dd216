"""C++ kernels whose rows have values in common, computed once for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec

Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def sampled(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return F.grid_sample(x, grid, mode="nearest", align_corners=False)


def image(batch: int, channels: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, channels, 20, 20), torch.rand(batch, height, width, 2) * 2.2 - 1.1


def gathered(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    return x.flatten(2).gather(2, (place * 7 % 50 + 1).expand(*x.shape[:2], -1)) * 2


def tables(function: Function, *inputs: torch.Tensor) -> int:
    """Compare with eager, twice, and return how many tables there are."""
    compiled = fusec.compile(function)
    for given in (inputs, tuple(t.flip(0) for t in inputs)):
        torch.testing.assert_close(compiled(*given), function(*given), rtol=1e-5, atol=1e-6)
    text = "\n".join(kernel.source for kernel in compiled.kernels.values())
    return len(re.findall(r"alignas\(64\) \w+ \w+_table\d*\[", text))


@pytest.mark.parametrize(
    ("batch", "height", "width"), [(1, 64, 64), (2, 60, 60), (16, 7, 9)], ids=str
)
def test_places_for_all_channels(batch: int, height: int, width: int) -> None:
    """Rows of 4,096 in blocks of 256, of 3,600 in blocks of 240, and of 63 whole: place, mark."""
    assert tables(sampled, *image(batch, 5, height, width)) == 2


def test_rows_of_no_whole_blocks() -> None:
    assert tables(sampled, *image(16, 5, 1, 1031)) == 0


def test_two_channels_are_too_few() -> None:
    assert tables(sampled, *image(16, 2, 16, 16)) == 0


def test_rows_with_tables_of_their_own_keep_these() -> None:
    """What an image made larger reads again is kept from one row to the next."""
    x = torch.randn(2, 16, 16, 20)
    compiled = fusec.compile(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))
    torch.testing.assert_close(compiled(x), F.interpolate(x, scale_factor=2, mode="bilinear"))
    assert "none yet" in "\n".join(kernel.source for kernel in compiled.kernels.values())


def test_a_wrong_index_is_noticed() -> None:
    """A check is made once for all channels."""
    x, place = torch.randn(32, 5, 8, 8), torch.randint(0, 50, (32, 1, 256))
    assert torch.equal(fusec.compile(gathered)(x, place), gathered(x, place))

    def unchecked(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return x.flatten(2).gather(2, place.expand(*x.shape[:2], -1)) * 2

    torch._dynamo.reset()
    compiled = fusec.compile(unchecked)
    compiled(x, place)
    place[7, 0, 3] = 64
    with pytest.raises((RuntimeError, IndexError)):
        compiled(x, place)
