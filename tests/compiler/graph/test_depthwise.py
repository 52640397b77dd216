"""Convolutions of each channel by itself: kernels of our own where the channels are innermost."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import fusec
from fusec.graph.choices import own_windows_pay
from fusec.graph.convolutions.depthwise import divide_gradients

HALF, BF16 = torch.float16, torch.bfloat16


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)


def image(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


def convolution(
    stride: object = 1, padding: object = 0, dilation: object = 1
) -> Callable[..., torch.Tensor]:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, weight, None, stride, padding, dilation, weight.shape[0])

    return function


def externs(compiled: fusec.CompiledFunction) -> list[str]:
    return [e.name.split(".")[1] for graph in compiled.graphs for e in graph.externs]


def check(
    function: Callable[..., torch.Tensor], x: torch.Tensor, weight: torch.Tensor
) -> fusec.CompiledFunction:
    """Compare a result and both gradients with float64, beside eager's own error."""
    compiled = fusec.compile(function, target="triton")
    upstream: torch.Tensor | None = None
    found = []
    for call, dtype in ((compiled, x.dtype), (function, x.dtype), (function, torch.float64)):
        leaves = [t.detach().to(dtype).requires_grad_() for t in (x, weight)]
        y = call(*leaves)
        upstream = torch.randn_like(y) if upstream is None else upstream
        y.backward(upstream.to(dtype))
        found.append([y.detach(), *[leaf.grad for leaf in leaves]])
    for got, plain, truth in zip(*found, strict=True):
        assert got.dtype == plain.dtype
        assert got.stride() == plain.stride()
        scale = max(truth.abs().max().item(), 1.0)
        errors = [(each.double() - truth).abs().max().item() / scale for each in (got, plain)]
        assert errors[0] <= 2 * errors[1] + 4e-3
    return compiled


@pytest.mark.triton
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("channels", "window", "stride", "padding"),
    [
        (32, (3, 3), 1, 1),
        (32, (3, 3), 2, 1),
        (24, (5, 5), 1, 2),
        (24, (5, 5), 2, 2),
        (16, (3, 5), (2, 1), (0, 2)),
        (16, (2, 2), 2, 0),
        (5, (3, 3), 3, 2),
        (8, (4, 4), 1, 3),
    ],
)
def test_both_parts_are_kernels(
    channels: int, window: tuple[int, int], stride: object, padding: object
) -> None:
    x = image(2, channels, 11, 14)
    compiled = check(convolution(stride, padding), x, torch.randn(channels, 1, *window, dtype=BF16))
    # the gradient of the weight is the library's
    assert externs(compiled) == ["convolution_backward"]


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_one_image(dtype: torch.dtype) -> None:
    weight = torch.randn(16, 1, 3, 3, dtype=dtype)
    check(convolution(2, 1), image(1, 16, 9, 8, dtype=dtype), weight)


@pytest.mark.triton
def test_steps_between_the_pixels_of_a_window() -> None:
    compiled = check(convolution(1, 2, 2), image(2, 16, 9, 9), torch.randn(16, 1, 3, 3, dtype=BF16))
    assert externs(compiled) == ["convolution_backward"]
    assert len(compiled.kernels) == 1


@pytest.mark.triton
def test_seven_pixels_backward_only() -> None:
    compiled = check(convolution(1, 3), image(1, 16, 9, 9), torch.randn(16, 1, 7, 7, dtype=BF16))
    assert sorted(externs(compiled)) == ["convolution", "convolution_backward"]


@pytest.mark.parametrize("what", ["row-major", "float32", "two a group", "transposed", "1-D"])
def test_others_stay_with_the_library(what: str) -> None:
    x, weight = image(2, 16, 9, 9), torch.randn(16, 1, 3, 3, dtype=BF16)

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if what == "transposed":
            return F.conv_transpose2d(x, weight, groups=16)
        if what == "1-D":
            return F.conv1d(x[:, :, 0], weight[:, :, 0], groups=16)
        return F.conv2d(x, weight, groups=8 if what == "two a group" else 16)

    if what == "row-major":
        x = x.contiguous()
    if what == "float32":
        x, weight = x.float(), weight.float()
    if what == "two a group":
        weight = torch.randn(16, 2, 3, 3, dtype=BF16)
    compiled = fusec.compile(function, target="triton")
    torch.testing.assert_close(compiled(x, weight), function(x, weight))
    assert externs(compiled) == ["convolution"]


@pytest.mark.triton
def test_nothing_is_read_beside_the_image() -> None:
    x = image(3, 8, 6, 6)
    whole = torch.full((3, 8, 6, 7), float("nan"), dtype=BF16)
    whole = whole.contiguous(memory_format=torch.channels_last)
    whole[..., :6] = x
    weight = torch.randn(8, 1, 3, 3, dtype=BF16)
    compiled = fusec.compile(convolution(1, 1), target="triton")
    got = compiled(whole[..., :6], weight)
    assert not got.isnan().any()
    torch.testing.assert_close(got, convolution(1, 1)(x, weight), rtol=2e-2, atol=2e-2)


class Block(nn.Module):
    """A norm and relu, a convolution of each channel, a norm and hardswish, as MobileNets have."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.BatchNorm2d(32), nn.BatchNorm2d(32)
        self.each = nn.Conv2d(32, 32, 3, 1, 1, groups=32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.hardswish(self.after(self.each(F.relu(self.before(x)))))


@pytest.mark.triton
def test_what_comes_next_is_computed_on_the_way() -> None:
    block = Block().eval().to(BF16).to(memory_format=torch.channels_last)
    compiled = fusec.compile(block, target="triton")
    x = image(2, 32, 20, 20)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), block(x), rtol=5e-2, atol=5e-2)
    names = [name for name in compiled.kernels if "conv2d" in name]
    # The weights, turned over; all else.
    assert names == ["conv2d_kernel", "conv2d_batch_norm_hardswish"]
    assert not externs(compiled)


@pytest.mark.slow
def test_what_comes_before_is_computed_once() -> None:
    block = Block().to(BF16).to(memory_format=torch.channels_last)
    ours, exact = copy.deepcopy(block), copy.deepcopy(block).double()
    compiled = fusec.compile(ours, target="triton")
    x = image(4, 32, 20, 20)
    for call, given in ((compiled, x), (block, x), (exact, x.double())):
        call(given).square().mean().backward()
    for got, plain, truth in zip(*(m.parameters() for m in (ours, block, exact)), strict=True):
        scale = max(truth.grad.abs().max().item(), 1e-3)
        errors = [(p.grad.double() - truth.grad).abs().max().item() / scale for p in (got, plain)]
        assert errors[0] <= 3 * errors[1] + 2e-2
    title = '"""Conv2d: pointwise in tiles over 4'
    (text,) = [k.source for k in compiled.kernels.values() if title in k.source]
    assert text.count("tl.load") == 9 + 9 + 1  # elements, weights, the bias
    titles = [kernel.source.splitlines()[0] for kernel in compiled.kernels.values()]
    assert not any("onv2d" in each and "reduction" in each for each in titles)
    reasons = [decision.reason for graph in compiled.graphs for decision in graph.fusions]
    assert "windows are computed in tiles of their own" in reasons
    assert any("once for every pixel of a window" in reason for reason in reasons)


def test_the_choice() -> None:
    assert own_windows_pay(BF16, (5, 5), gradient=False)
    assert not own_windows_pay(BF16, (7, 7), gradient=False)
    assert own_windows_pay(BF16, (7, 7), gradient=True)
    assert not own_windows_pay(torch.float32, (3, 3), gradient=True)


def test_nobody_is_left_to_read_what_is_computed_apart() -> None:
    def backward(
        gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
    ) -> tuple[object, ...]:
        return torch.ops.aten.convolution_backward(
            *(gradient, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 16),
            [True, True, False],
        )[:2]

    given = image(2, 16, 8, 8), image(2, 16, 8, 8), torch.randn(16, 1, 3, 3, dtype=BF16)
    with FakeTensorMode():
        fake = [torch.empty_strided(t.shape, t.stride(), dtype=BF16, device="cuda") for t in given]
        module = make_fx(backward)(*fake)
    assert divide_gradients(module) == 1
    for got, plain in zip(module(*given), backward(*given), strict=True):
        torch.testing.assert_close(got, plain, rtol=2e-2, atol=2e-1)
    for node in module.graph.nodes:
        if "getitem" in str(node.target):
            made, number = node.args
            assert number or made.args[-1] == [True, False, False], "nobody computes it"
