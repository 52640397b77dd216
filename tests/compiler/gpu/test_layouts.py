"""On a GPU: convolutions with the channels innermost and padded products give eager's results."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from fusec.graph.convolutions.channels_last import CHANNELS_LAST
from fusec.graph.products.alignment import PADDED

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)


def reasons(compiled: fusec.CompiledFunction, word: str) -> int:
    """Return how many extern calls give ``word`` as a reason."""
    return sum(word in e.reason for g in compiled.graphs for e in g.externs)


class Convolutions(nn.Module):
    """Every kind of convolution, with norms, pools, a residual and a view between them."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 7, 2, 3)
        self.norm = nn.BatchNorm2d(32)
        self.each = nn.Conv2d(32, 32, 5, padding=2, groups=32)
        self.grouped = nn.Conv2d(32, 48, 3, padding=1, groups=groups)
        self.pixel = nn.Conv2d(48, 32, 1, bias=False)
        self.apart = nn.Conv2d(32, 40, 3, 2, dilation=2)
        self.group_norm = nn.GroupNorm(4, 40)
        self.up = nn.ConvTranspose2d(40, 16, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.silu(self.norm(self.first(x))), 3, 2, 1)
        x = x + self.pixel(F.gelu(self.grouped(self.each(x))))
        x = F.interpolate(x, scale_factor=2, mode="bilinear")
        x = F.relu(self.group_norm(self.apart(x)))
        return self.up(x).flatten(2).transpose(1, 2)


def equal(ours: nn.Module, module: nn.Module, dtype: torch.dtype, x: torch.Tensor) -> None:
    """Compare two training steps with float64, beside eager's own error; layouts included."""
    exact = copy.deepcopy(module).double()
    inputs = [x, x, x.double()]
    results = []
    for model, given in zip((ours, module, exact), inputs, strict=True):
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32 and model is not exact):
            leaf = given.clone().requires_grad_()
            y = model(leaf)
        y.double().square().mean().backward()
        results.append([y, leaf.grad, *[p.grad for p in model.parameters()]])
    largest = max(truth.norm().item() for truth in results[2][1:])
    for number, (got, plain, truth) in enumerate(zip(*results, strict=True)):
        assert got.dtype == plain.dtype
        assert got.stride() == plain.stride()
        # The gradient of a bias in front of a norm is nothing but rounding; a maximum may be
        # another element's, so errors are those of all elements together.
        scale = max(truth.norm().item(), 1e-2 * largest)
        wrong = (got.double() - truth).norm().item() / scale
        own = (plain.double() - truth).norm().item() / scale
        floor = 1e-4 if dtype == torch.float32 else 1e-2
        assert wrong <= 3 * own + floor, (number, wrong, own)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize(("channels_last", "groups"), [(False, 1), (True, 1), (False, 4)])
def test_convolutions_train_as_in_eager(
    dtype: torch.dtype, channels_last: bool, groups: int
) -> None:
    module = Convolutions(groups).cuda()
    x = torch.randn(8, 3, 70, 66, device="cuda")
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    ours = copy.deepcopy(module)
    compiled = fusec.compile(ours)

    class Call(nn.Module):
        """The compiled module, with its parameters."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = ours

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return compiled(x)

    equal(Call(), module, dtype, x)
    equal(Call(), module, dtype, torch.randn_like(x))  # the second run, gradients added up
    turned = reasons(compiled, CHANNELS_LAST)
    assert not turned if dtype == torch.float32 else groups > 1 or turned >= 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_gradients_of_enlarged_images(mode: str, channels_last: bool, dtype: torch.dtype) -> None:
    def enlarged(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x.relu(), scale_factor=2, mode=mode)

    compiled = fusec.compile(enlarged)
    for _ in range(2):
        x = torch.randn(4, 24, 35, 46, device="cuda", dtype=dtype)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        upstream = torch.randn_like(enlarged(x))
        found = []
        for call, given in ((compiled, x), (enlarged, x), (enlarged, x.double())):
            leaf = given.clone().requires_grad_()
            call(leaf).backward(upstream.to(given.dtype))
            found.append(leaf.grad.double())
        errors = [(each - found[2]).abs().max().item() for each in found[:2]]
        assert errors[0] <= 3 * errors[1] + (1e-5 if dtype == torch.float32 else 2e-2)
    assert not any("atomic" in kernel.source for kernel in compiled.kernels.values())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("classes", [5003, 4999, 5010, 5004])
def test_vocabularies_of_odd_sizes(dtype: torch.dtype, classes: int) -> None:
    rows = 4096
    head = nn.Linear(512, classes, bias=classes % 2 == 0).cuda()
    ours = copy.deepcopy(head)
    x = torch.randn(8, rows // 8, 512, device="cuda")
    labels = torch.randint(0, classes, (rows,), device="cuda")
    found = []

    def loss(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = layer(x)
        return F.cross_entropy(logits.view(-1, classes).float(), labels), logits

    compiled = fusec.compile(loss)
    exact = copy.deepcopy(head).double()
    for function, layer in ((compiled, ours), (loss, head), (loss, exact)):
        given = x.double() if layer is exact else x
        leaf = given.clone().requires_grad_()
        with torch.autocast("cuda", dtype, enabled=layer is not exact):
            value, logits = function(layer, leaf)
        (1e3 * value).backward()
        found.append([value, logits, leaf.grad, *[p.grad for p in layer.parameters()]])
    for got, plain, truth in zip(*found, strict=True):
        assert got.stride() == plain.stride()
        scale = truth.abs().max().item()
        wrong = (got.double() - truth).abs().max().item() / scale
        own = (plain.double() - truth).abs().max().item() / scale
        assert wrong <= 3 * own + 1e-2, (wrong, own)
    assert reasons(compiled, PADDED) == 3 or classes % 4 == 0
