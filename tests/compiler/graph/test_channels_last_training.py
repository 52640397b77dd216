"""Training with the channels innermost: what changes, and what must not."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from fusec.graph.convolutions.channels_last import CHANNELS_LAST


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)


def check(module: nn.Module, *inputs: torch.Tensor, autocast: bool = False) -> list[bool]:
    """Compare two steps with float64 beside eager, layouts included.

    Returns for each convolution, and each gradient of one, whether its layout was chosen.
    """
    exact = copy.deepcopy(module).double()
    mine = copy.deepcopy(module)
    compiled = fusec.compile(mine)
    for _ in range(2):
        eager = _step(module, module, inputs, autocast)
        found = _step(compiled, mine, inputs, autocast)
        truth = _step(exact, exact, [x.double() for x in inputs], False)
        floor = 2e-2 if autocast else 1e-5
        assert [x.stride() for x in found] == [x.stride() for x in eager]
        largest = max(x.abs().max().item() for x in truth)  # some gradients are zero but for noise
        for got, plain, right in zip(found, eager, truth, strict=True):
            scale = max(right.abs().max().item(), 1e-3 * largest)
            errors = [(x.double() - right).abs().max().item() / scale for x in (got, plain)]
            assert errors[0] <= 4 * errors[1] + floor, errors
    externs = [e for g in compiled.graphs for e in g.externs]
    return [CHANNELS_LAST in e.reason for e in externs if "convolution" in e.name]


def _step(call: object, module: nn.Module, inputs: object, autocast: bool) -> list[torch.Tensor]:
    given = [x.detach().clone().requires_grad_() for x in inputs]  # type: ignore[attr-defined]
    module.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = call(*given)  # type: ignore[operator]
    result.float().square().mean().backward()
    gradients = [x.grad for x in (*given, *module.parameters()) if x.grad is not None]
    buffers = [x.clone() for x in module.buffers() if x.is_floating_point()]
    return [result.detach(), *gradients, *buffers]


class Block(nn.Module):
    """Convolutions with norms, a pool, a residual and a product at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.third = nn.Conv2d(16, 24, 3, stride=2)
        self.last = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
        x = F.relu(x + self.second(x))
        return self.last(self.third(x).relu().mean((2, 3)))


@pytest.mark.sample(1)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 64, 64), (1, 3, 57, 43)])
def test_a_network_of_convolutions(shape: tuple[int, ...], autocast: bool) -> None:
    changed = check(Block(), torch.randn(shape), autocast=autocast)
    assert autocast or all(changed)  # half-precision ones are not, unless they run in float32


def test_images_that_have_the_channels_innermost_already() -> None:
    x = torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last)
    assert all(check(Block(), x))


def test_views_between_see_what_was_traced() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(16, 32, 3, padding=1)
            self.second = nn.Conv2d(32, 32, 3, padding=1)
            self.third = nn.Conv2d(32, 16, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.second(self.first(x).relu()).tanh()
            weights = torch.softmax(x.flatten(2).sum(1, keepdim=True), 2)
            x = x.flatten(2) * weights
            x = x.as_strided((2, 32, 1024), (32 * 1024, 1024, 1)) + 1
            return self.third(x.unflatten(2, (32, 32)))

    check(Views(), torch.randn(2, 16, 32, 32))


def test_results_lie_as_in_eager() -> None:
    class Returned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(8, 32, 3, padding=1)
            self.second = nn.Conv2d(32, 32, 3, padding=1)
            self.third = nn.Conv2d(32, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.third(self.second(self.first(x).relu()).sigmoid())

    assert all(check(Returned(), torch.randn(2, 8, 40, 24)))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(16, 16, 3, groups=4),
        nn.ConvTranspose2d(16, 8, 3, stride=2),
        nn.Conv2d(16, 8, 1),
    ],
    ids=["groups", "transposed", "one"],
)
def test_others_stay_as_they_are(layer: nn.Module) -> None:
    # not measured; not the same operator; as much to turn over as there is to gain
    assert not any(check(nn.Sequential(layer, nn.Tanh()), torch.randn(2, 16, 28, 28)))


def test_sizes_that_change() -> None:
    module = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Conv2d(32, 16, 3))
    compiled = fusec.compile(module, dynamic=True)
    for size in (20, 33, 47):
        x = torch.randn(2, 16, size, size)
        wanted = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
        found = torch.autograd.grad(compiled(x).square().sum(), list(module.parameters()))
        for got, plain in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, plain, rtol=1e-4, atol=1e-5 * plain.abs().max().item())


def test_no_images() -> None:
    module = nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3))
    check_empty = fusec.compile(module)
    x = torch.randn(0, 16, 32, 32, requires_grad=True)
    check_empty(x).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
