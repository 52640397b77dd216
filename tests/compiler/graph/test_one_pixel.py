"""Convolutions of single pixels as matrix products: which become some, and that they are equal."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fusec


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    # as on a processor whose products are faster than its convolutions
    monkeypatch.setattr("fusec.graph.choices.is_amd", lambda: False)
    torch._dynamo.reset()
    torch.manual_seed(0)


def check(module: nn.Module, x: torch.Tensor) -> dict[str, int]:
    """Compare inference and two training steps with float64; count the library calls."""
    exact, mine = copy.deepcopy(module).double(), copy.deepcopy(module)
    compiled = fusec.compile(mine)
    with torch.no_grad():
        _compare([compiled(x)], [module(x)], [exact(x.double())])
    for _ in range(2):
        found = [
            _gradients(call, own, given)
            for call, own, given in (
                (compiled, mine, x),
                (module, module, x),
                (exact, exact, x.double()),
            )
        ]
        _compare(*found)
    counts: dict[str, int] = {}
    for graph in compiled.graphs:
        for extern in graph.externs:
            counts[extern.name.split(".")[1]] = counts.get(extern.name.split(".")[1], 0) + 1
    return counts


def _gradients(call: object, own: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    given = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    own.zero_grad()
    result = call(given)  # type: ignore[operator]
    result.square().mean().backward()
    return [result.detach(), *[t.grad for t in (given, *own.parameters())]]  # type: ignore[list-item]


def _compare(
    found: list[torch.Tensor], eager: list[torch.Tensor], truth: list[torch.Tensor]
) -> None:
    for got, plain, right in zip(found, eager, truth, strict=True):
        places = [
            [stride for size, stride in zip(t.shape, t.stride(), strict=True) if size != 1]
            for t in (got, plain)
        ]
        assert places[0] == places[1]
        if right.numel():
            scale = right.abs().max().item() + 1e-12
            own = (plain.double() - right).abs().max().item() / scale
            assert (got.double() - right).abs().max().item() / scale <= 4 * own + 1e-5


class Narrowing(nn.Module):
    """A residual block whose convolutions are of single pixels but for the middle one."""

    def __init__(self, channels: int, width: int, *, bias: bool, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 1, stride, bias=bias)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, channels, 1, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(self.middle(self.first(x).relu()).relu())
        return torch.relu(y + x[:, :, : y.shape[2], : y.shape[3]])


def blocks(bias: bool) -> nn.Module:
    """Return enough of them for layouts to be worth a change."""
    return nn.Sequential(Narrowing(160, 128, bias=bias), Narrowing(160, 128, bias=bias))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("shape", "bias"), [((4, 160, 28, 28), False), ((1, 160, 31, 57), True)], ids=["plain", "bias"]
)
def test_blocks(shape: tuple[int, ...], bias: bool) -> None:
    counts = check(blocks(bias), torch.randn(shape))
    assert counts["convolution"] == 4  # the ones in the middle, in inference and in training
    assert counts["convolution_backward"] == 2
    assert counts["addmm" if bias else "mm"] >= 4


def test_images_that_have_the_channels_innermost() -> None:
    x = torch.randn(4, 160, 28, 28).to(memory_format=torch.channels_last)
    assert check(blocks(True), x)["convolution"] == 4


def test_others_stay_convolutions() -> None:
    few = check(Narrowing(64, 160, bias=False), torch.randn(2, 64, 14, 14))
    assert few["convolution"] == 6
    strided = nn.Sequential(nn.Conv2d(160, 128, 1, 2), nn.Conv2d(128, 160, 3, padding=1))
    assert check(strided, torch.randn(4, 160, 28, 28))["convolution"] == 4


def test_no_images() -> None:
    check(blocks(True), torch.randn(0, 160, 28, 28))


def test_an_image_that_needs_no_gradient() -> None:
    module = blocks(False)
    compiled = fusec.compile(copy.deepcopy(module))
    x = torch.randn(4, 160, 28, 28)
    for call in (module, compiled):
        call(x).square().mean().backward()
    for one, two in zip(module.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-7)


def test_a_weight_that_needs_no_gradient() -> None:
    module = blocks(True)
    compiled = fusec.compile(module)
    first, last = module[0].first, module[0].last  # type: ignore[index]
    first.requires_grad_(False)
    results = []
    for call in (module, compiled):
        x = torch.randn(4, 160, 28, 28, generator=torch.Generator().manual_seed(1))
        module.zero_grad()
        call(x.requires_grad_()).square().mean().backward()
        assert first.weight.grad is None
        results.append((x.grad, last.weight.grad, last.bias.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-7)
