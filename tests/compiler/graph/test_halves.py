"""float16 converted by the block: every half, every rounding, blocks that are not full."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def build(function: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Compile, see that blocks are converted, and return the result."""
    compiled = fusec.compile(function)
    result = compiled(x)
    sources = [kernel.source for kernel in compiled.kernels.values()]
    assert any("fx_to_floats(" in s or "fx_to_halves(" in s for s in sources), sources
    return result


def same(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare bit by bit, all NaNs being one."""
    assert actual.dtype == wanted.dtype
    assert torch.equal(actual.isnan(), wanted.isnan())
    numbers = ~wanted.isnan()
    bits = torch.int16 if wanted.dtype == torch.float16 else torch.int32
    assert torch.equal(actual[numbers].view(bits), wanted[numbers].view(bits))


def every_half() -> torch.Tensor:
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.float16)


def test_every_half_as_float() -> None:
    same(build(lambda x: x.float(), every_half()), every_half().float())


def test_every_half_and_back() -> None:
    same(build(lambda x: -x, every_half()), -every_half())


def test_rounding_of_floats() -> None:
    bits = torch.randint(-(1 << 31), 1 << 31, (300_001,), dtype=torch.int64).to(torch.int32)
    halves = every_half().float()
    between = halves + (torch.nextafter(halves, torch.tensor(1e9)) - halves) / 2
    ties = torch.cat([halves, between, (halves[1:] + halves[:-1]) / 2])
    x = torch.cat([bits.view(torch.float32), ties, torch.tensor([65519.996, 65520.0, 2e-8])])
    same(build(lambda x: x.half(), x), x.half())


@pytest.mark.sample(2)
@pytest.mark.parametrize("width", [260, 321, 322, 384, 1000])
def test_blocks_that_are_not_full(width: int) -> None:
    x = torch.randn(333, width).half()
    torch.testing.assert_close(build(lambda x: x.softmax(-1), x), x.softmax(-1))
    torch.testing.assert_close(
        build(lambda x: (x * 2 + 1).sin(), x), (x.float() * 2 + 1).sin().half(), atol=2e-3, rtol=0
    )
    y = build(lambda x: x[:, 1:-1] * 3, x)
    torch.testing.assert_close(y, x[:, 1:-1] * 3)


def test_updates_in_place_read_before_they_write() -> None:
    x = torch.randn(5000).half()
    wanted = x.flip(0) + x
    actual = x.clone()

    def update(x: torch.Tensor) -> torch.Tensor:
        x.copy_(x.flip(0) + x)
        return x * 2

    compiled = fusec.compile(update)
    doubled = compiled(actual)
    torch.testing.assert_close(actual, wanted)
    torch.testing.assert_close(doubled, wanted * 2)
