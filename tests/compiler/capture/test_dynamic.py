"""Changing sizes: how often one compiles again, and that every size is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import sympy  # type: ignore[import-untyped]
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import fusec
from fusec.ir.index import Expr, Symbol
from fusec.lower.sizes import SizeTable
from fusec.lower.values import NotLowered
from fusec.targets.triton.plan.tiling import times_reach
from support.compare import difference
from support.releases import OLD

Make = Callable[[int], tuple[Any, ...]]


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    # TorchDynamo remembers which sizes changed, also for code that tests share
    torch._dynamo.reset()


class Block(nn.Module):
    """A transformer block with attention written out."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * (d // self.heads) ** -0.5
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def sweep(
    function: Callable[..., Any], make: Make, sizes: Iterable[int], **options: Any
) -> fusec.CompiledFunction:
    """Call with every size and compare with eager."""
    compiled = fusec.compile(function, **options)
    for size in sizes:
        inputs = make(size)
        actual, expected = compiled(*inputs), function(*inputs)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert not compiled.fallbacks
    return compiled


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


@torch.no_grad()
def test_fifty_batch_sizes_compile_twice() -> None:
    compiled = sweep(Block(), lambda n: (randn(n, 6, 32),), range(2, 52))
    assert len(compiled.graphs) == 2
    assert len(compiled.recompiles) == 1


@torch.no_grad()
def test_fifty_lengths_compile_twice() -> None:
    assert len(sweep(Block(), lambda n: (randn(2, n, 32),), range(2, 52)).graphs) <= 2


@torch.no_grad()
def test_dynamic_from_the_start_compiles_once() -> None:
    compiled = sweep(Block(), lambda n: (randn(n, n + 1, 32),), range(2, 20, 3), dynamic=True)
    assert len(compiled.graphs) == 1


def test_training_with_changing_batches() -> None:
    block = Block()
    compiled = fusec.compile(block)
    for size in (2, 3, 5, 8, 13):
        x = randn(size, 5, 32)
        grads = []
        for call in (compiled, block):
            block.zero_grad()
            call(x).square().mean().backward()
            grads.append([p.grad.clone() for p in block.parameters() if p.grad is not None])
        torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-5)
    assert len(compiled.graphs) <= 2


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (lambda x: F.softmax(x, -1).sum(0), lambda n: (randn(n, 7),)),
        (lambda x: (x.sum(-1), x * 2, x.relu().t().contiguous()), lambda n: (randn(4, n),)),
        (lambda x, y: torch.cat([x, y], 0).sum(0), lambda n: (randn(n, 3), randn(2, 3))),
    ],
    ids=["rows", "columns", "cat"],
)
def test_sizes_zero_and_one(function: Callable[..., Any], make: Make) -> None:
    compiled = sweep(function, make, [3, 0, 5, 1, 0, 9, 1, 4])
    assert len(compiled.graphs) <= 4  # the first, 0, 1, and one for all others


def test_mark_dynamic_compiles_once_for_all_sizes() -> None:
    compiled = fusec.compile(lambda x: x.softmax(-1) * x.shape[0])
    for size in (8, 9, 30):
        x = randn(size, 5)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), x.softmax(-1) * size)
    assert len(compiled.graphs) == 1
    assert compiled.recompiles == ()


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (lambda x: (x > 0).nonzero() * 2, lambda n: (randn(n),)),
        (lambda x: x[x > 0].sin() + 1, lambda n: (randn(n),)),
        (lambda x: x * x.sum().item(), lambda n: (randn(n),)),
        (lambda x, n: x[: n.item()] * 2, lambda n: (randn(30), torch.tensor(n))),
        (lambda x: x.unique().float() * 2, lambda n: (torch.randint(0, 9, (n,)),)),
    ],
    ids=["nonzero", "mask", "item", "slice", "unique"],
)
def test_sizes_that_depend_on_data_break_with_a_reason(
    function: Callable[..., Any], make: Make
) -> None:
    compiled = sweep(function, make, [5, 9, 20])
    assert compiled.breaks
    assert all(each.hint and each.where is not None for each in compiled.breaks)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("function", "make"),
    [
        (lambda x, n: x * n + x.reshape(-1)[:n].sum(), lambda n: (randn(40), n)),
        (lambda x, n: x * n, lambda n: (randn(40), n * 0.5)),
        (lambda x: F.interpolate(x, scale_factor=2.0), lambda n: (randn(1, 2, n, n + 1),)),
        (lambda x: x.view(-1, 2).t().contiguous() + 1, lambda n: (randn(2 * n, 4),)),
        (lambda x: x.new_zeros(max(1, x.shape[0] // 4)).sum() + x, lambda n: (randn(n),)),
        (lambda x: x[: min(x.shape[0], 12)] + 1, lambda n: (randn(n),)),
    ],
    ids=["integer", "float", "interpolate", "view", "largest", "smallest"],
)
def test_numbers_and_derived_sizes(function: Callable[..., Any], make: Make) -> None:
    compiled = sweep(function, make, [5, 9, 20, 21, 22, 35])
    assert len(compiled.graphs) <= 3


def test_convolutions_of_changing_images() -> None:
    """Strides of what a convolution yields contain ``Max(1, ...)``, in backward as well."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
    ).eval()
    compiled = sweep(net, lambda n: (randn(2, 3, n, n),), [9, 12, 20, 21])
    assert len(compiled.graphs) == 2


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_reductions_over_joined_symbolic_dimensions(target: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sum((2, 3)) / 3, F.avg_pool2d(x, [4, 3], [4, 1], 0, True)

    compiled = fusec.compile(function, dynamic=True, target=target)
    for shape in ((2, 3, 9, 11), (4, 2, 12, 7)):
        x = torch.randn(shape)
        assert not difference(compiled(x), function(x))
    assert not compiled.fallbacks
    # torch 2.11 asks whether a window ends where the image does
    assert len(compiled.graphs) == 1 + OLD


NUMBERS: dict[str, Callable[..., Any]] = {
    "twice": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "half": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear") * 2,
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest") + 1,
    "1.3 times": lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear"),
    "to a size": lambda x: F.interpolate(x, size=(2 * x.shape[2], x.shape[3]), mode="bilinear"),
    "ratio": lambda x: x * (x.shape[2] / x.shape[3]),
    "root": lambda x: x / x.shape[-1] ** 0.5,
    "truncated": lambda x: x[:, :, : int(x.shape[2] * 0.7)] + 1,
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_follow_from_sizes(name: str, target: str) -> None:
    """A size or number that no expression of sizes gives holds for the size it was compiled for."""
    compiled = sweep(
        NUMBERS[name],
        lambda n: (randn(2, 3, 2 * n, n + 4),),
        (10, 12, 10, 17),
        dynamic=True,
        target=target,
    )
    assert compiled.kernels


# TorchDynamo makes a symbol of a number from outside, which F.interpolate does not take
BY_ONE_FACTOR: dict[str, Callable[..., Any]] = {
    "bilinear 2": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear 0.5": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "bilinear 1.25": lambda x: F.interpolate(x, scale_factor=1.25, mode="bilinear"),
    "nearest 2": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "nearest 0.5": lambda x: F.interpolate(x, scale_factor=0.5, mode="nearest"),
    "nearest 3": lambda x: F.interpolate(x, scale_factor=3.0, mode="nearest"),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("name", BY_ONE_FACTOR)
def test_images_of_any_size_by_one_factor(name: str, target: str) -> None:
    function = BY_ONE_FACTOR[name]
    compiled = fusec.compile(function, dynamic=True, target=target)
    for height, width in ((9, 12), (17, 30), (24, 5), (11, 11)):
        x = randn(2, 3, height, width)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)
    assert not compiled.fallbacks
    assert len(compiled.graphs) == 1


def test_shares_of_sizes_are_exact() -> None:
    functions = {
        "trunc": lambda x: x[: int(x.shape[0] * 0.75)] + 1,
        "floor": lambda x: x[: math.floor(x.shape[0] * 0.625)] + 1,
        "ceil": lambda x: x[: math.ceil(x.shape[0] * 0.3125)] + 1,
    }
    for function in functions.values():
        compiled = fusec.compile(function, dynamic=True)
        for n in (7, 8, 9, 15, 16, 31, 33):
            x = randn(n, 2)
            torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)
        assert len(compiled.graphs) == 1
        assert not compiled.fallbacks


def test_gradients_of_numbers_that_follow_from_sizes() -> None:
    compiled = fusec.compile(NUMBERS["twice"], dynamic=True)
    for n in (6, 9):
        x = randn(1, 2, n, n + 3).requires_grad_()
        weight = randn(1, 2, 2 * n, 2 * n + 6)
        slopes = [torch.autograd.grad(f(x), x, weight)[0] for f in (compiled, NUMBERS["twice"])]
        torch.testing.assert_close(*slopes)
    assert not compiled.fallbacks


@pytest.mark.triton
def test_windows_of_symbolic_images_divide_32_bits() -> None:
    compiled = sweep(
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda n: (randn(2, 3, n, n + 5),),
        (9, 12, 20),
        dynamic=True,
        target="triton",
    )
    kernels = compiled.kernels.values()
    assert len(kernels) == 1 + OLD  # torch 2.11 asks whether a window ends where the image does
    for kernel in kernels:
        assert "tl.int64)" not in kernel.source.partition("def launch")[0]
        assert "2**28" in kernel.source


@pytest.mark.triton
def test_positions_that_may_be_far_from_a_tensor_keep_64_bits() -> None:
    compiled = sweep(
        lambda x: torch.where(torch.arange(x.shape[0]) * x.shape[0] * 50 > 60, x, -x),
        lambda n: (randn(n),),
        (9, 12, 20),
        dynamic=True,
        target="triton",
    )
    (kernel,) = compiled.kernels.values()
    assert "tl.int64)" in kernel.source.partition("def launch")[0]
    assert "2**28" not in kernel.source


@pytest.mark.triton
def test_kernels_are_made_for_the_size_at_hand() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.argmax(-1)

    blocks = []
    for n in (200, 5000):
        torch._dynamo.reset()
        compiled = fusec.compile(function, dynamic=True, target="triton")
        x = randn(3, 4, n)
        torch._dynamo.mark_dynamic(x, (1, 2))
        torch.testing.assert_close(compiled(x), function(x))
        y = randn(3, 5, 3 * n)
        torch.testing.assert_close(compiled(y), function(y))
        assert len(compiled.graphs) == 1
        (kernel,) = compiled.kernels.values()
        blocks.append({t.name: t.value for t in kernel.tunables}["RBLOCK"])
    assert blocks[0] < blocks[1]


def test_a_part_of_a_size_is_never_rounded() -> None:
    """The expression ``s0 / 2`` has parts that are no sizes: a half is not taken for 0."""
    shapes = ShapeEnv()
    size = sympy.Symbol("s0", positive=True, integer=True)
    with pytest.raises(NotLowered):
        SizeTable()._from_sympy(size * sympy.Rational(1, 2), shapes)


def test_positions_along_a_huge_axis_of_known_size_are_not_near() -> None:
    huge, short = (Symbol("i", "axis", Expr.of(n)) for n in (2**30, 2**20))
    reach = [Expr.of(2**30), Expr.of(2**20)]
    assert times_reach(3 * Expr.of(huge) + 1, reach) is None
    assert times_reach(3 * Expr.of(short) + 1, reach) == 3


def test_a_number_that_a_kernel_is_written_with_is_symbolic() -> None:
    """The order of a norm: the operator stays with ATen."""

    def function(x: torch.Tensor, order: int) -> torch.Tensor:
        return torch.dist(x, x + 1, order) + torch.linalg.vector_norm(x, order)

    compiled = fusec.compile(function, dynamic=True)
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    for order in (3, 2, 5):
        torch.testing.assert_close(compiled(x, order), function(x, order))


@pytest.mark.parametrize("triangle", [torch.tril, torch.triu])
def test_a_diagonal_that_is_a_size(triangle: Callable[..., torch.Tensor]) -> None:
    compiled = fusec.compile(lambda x, diagonal: triangle(x, diagonal) * 2, dynamic=True)
    for diagonal in (-7, -3, -1, 0, 1, 2, 9):
        x = torch.randn(6, 5)
        assert torch.equal(compiled(x, diagonal), triangle(x, diagonal) * 2)
    (graph,) = compiled.graphs
    assert not graph.fallback
    assert len(graph.kernels) == 1
