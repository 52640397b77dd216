"""Random numbers in kernels: the bits, their statistics, and what a user relies on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import fusec
from fusec.random import SameNumbers, random_bits, random_word

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fallback to eager."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return fusec.compile(function, **options)


@pytest.mark.parametrize(
    ("seed", "position", "stream", "words"),
    [
        # Random123's known answers for philox4x32 with 7 rounds; the fourth counter is always 0
        (0, 0, 0, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    ],
)
def test_known_answers(seed: int, position: int, stream: int, words: tuple[int, ...]) -> None:
    given = torch.tensor(seed), torch.tensor([position])
    found = [int(random_bits(*given, stream, word)) & 0xFFFFFFFF for word in range(4)]
    assert [hex(word) for word in found] == [hex(word) for word in words]


def test_a_word_is_a_quarter_of_a_number() -> None:
    seed, start = torch.tensor(-(2**60) + 12345), 2**38 - 128
    found = random_word(seed, torch.arange(start, start + 256), 7)
    words = []
    for group in range(start // 64, start // 64 + 4):
        numbers = torch.arange(16 * group, 16 * group + 16)
        words += [random_bits(seed, numbers, 7, word) for word in range(4)]
    assert torch.equal(found, torch.cat(words))


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(5, 1000), (7, 33), (300,), (3, 4, 500), (1 << 16,), (0, 3)])
def test_words_by_the_block_are_the_reference_numbers(shape: tuple[int, ...]) -> None:
    """Rows that begin anywhere in a group of 64, rows too short for blocks, other layouts."""

    def drawn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = torch.rand_like(x.transpose(0, -1).contiguous()).transpose(0, -1)
        dropped = F.dropout(x, 0.4)
        return dropped, torch.rand_like(x), turned + 1, dropped.sum(-1), torch.randint_like(x, 99)

    x = torch.randn(shape)
    built = compiled(drawn)
    torch.manual_seed(5)
    got = built(x)
    torch.manual_seed(5)
    with SameNumbers():
        wanted = drawn(x)
    for mine, reference in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-4)


def everything(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.dropout(x, 0.3) * 2,
        *(torch.rand(5, 7, dtype=dtype) for dtype in FLOATS),
        *(torch.randn(300, dtype=dtype) for dtype in FLOATS),
        torch.bernoulli(torch.full((50,), 0.25)),
        x.bernoulli(0.7),
        torch.randint(3, 17, (100,)),
        torch.randint(0, 2**40, (40,)),
        torch.randint(-3, 3, (40,), dtype=torch.int8),
        torch.randint_like(x, 9),
        torch.rand_like(x.half()),
        torch.randn_like(x),
        torch.empty(100).exponential_(2.0),
        torch.empty(100).cauchy_(),
        torch.empty(100).geometric_(0.2),
        torch.empty(100).log_normal_(0.0, 0.5),
        x.clone().normal_(1, 2),
        F.rrelu(x, training=True),
        F.rrelu(x * 2, 0.2, 0.4, training=True, inplace=True),
        torch.rand(0, 3),
        torch.rand(()),
    )


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_kernels_compute_the_reference_numbers(target: str) -> None:
    x = torch.randn(33, 65)
    built = compiled(everything, target=target)
    torch.manual_seed(3)
    got = built(x)
    assert not any(graph.externs for graph in built.graphs)
    torch.manual_seed(3)
    with SameNumbers():
        wanted = everything(x)
    for mine, reference in zip(got, wanted, strict=True):
        assert mine.dtype == reference.dtype
        assert mine.shape == reference.shape
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-6)


def test_seeded_and_different_on_every_call() -> None:
    x = torch.randn(33, 65)
    built = compiled(everything)
    torch.manual_seed(3)
    first, second = built(x), built(x)
    torch.manual_seed(3)
    again = built(x)
    assert all(bool((a == b).all()) for a, b in zip(first, again, strict=True))
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a.numel() >= 35]
    assert not any(bool((a == b).all()) for a, b in pairs)


def test_streams_are_independent() -> None:
    built = compiled(lambda: (torch.rand(100_000), torch.rand(100_000), torch.randn(100_000)))
    a, b, c = built()
    for x, y in ((a, b), (a, c), (a[1:], a[:-1]), (c[1:], c[:-1])):
        correlation = torch.corrcoef(torch.stack([x, y]))[0, 1].item()
        assert abs(correlation) < 5 / math.sqrt(100_000)


def chi_square(counts: torch.Tensor) -> float:
    """Return how many standard deviations the chi-square statistic lies off, for equal bins."""
    expected = counts.sum() / counts.numel()
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    freedom = counts.numel() - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_is_uniform(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = compiled(lambda: torch.rand(1 << 20, dtype=dtype))().double()
    assert x.min().item() >= 0
    assert x.max().item() < 1
    assert abs(chi_square(torch.histc(x, 256, 0, 1))) < 5
    pairs = (x[::2] * 16).floor() * 16 + (x[1::2] * 16).floor()
    assert abs(chi_square(torch.bincount(pairs.long(), minlength=256).double())) < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_is_normal(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    n = 1 << 20
    x = compiled(lambda: torch.randn(n, dtype=dtype))().double()
    assert bool(x.isfinite().all())
    quantiles = torch.special.ndtr(x)
    assert abs(chi_square(torch.histc(quantiles, 256, 0, 1))) < 5
    for power, (mean, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs((x**power).mean().item() - mean) < 5 * math.sqrt(variance / n)
    assert 4.3 < x.abs().max().item() < 6.8


def test_discrete_distributions() -> None:
    torch.manual_seed(4)
    n = 1 << 20
    die, large, coin, trials = compiled(
        lambda: (
            torch.randint(1, 7, (n,)),
            torch.randint(-(2**40), 2**40, (n,)),
            torch.bernoulli(torch.full((n,), 0.3)),
            torch.empty(n).geometric_(0.25),
        )
    )()
    assert die.min().item() == 1
    assert die.max().item() == 6
    assert abs(chi_square(torch.bincount(die - 1, minlength=6).double())) < 5
    assert abs(chi_square(torch.histc(large.double(), 64, -(2.0**40), 2.0**40))) < 5
    assert abs(coin.mean().item() - 0.3) < 5 * math.sqrt(0.21 / n)
    assert trials.min().item() == 1
    assert abs(trials.mean().item() - 4) < 5 * math.sqrt(12 / n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_asked_share_and_scales(dtype: torch.dtype, p: float) -> None:
    x = torch.ones(1 << 19, dtype=dtype)
    y = compiled(lambda x: F.dropout(x, p))(x)
    kept = (y != 0).double().mean().item()
    assert abs(kept - (1 - p)) < 5 * math.sqrt(p * (1 - p) / x.numel())
    scale = torch.ones(1, dtype=dtype) * (1 / (1 - p))
    assert bool(((y == 0) | ((y - scale).abs() <= scale * 2**-7)).all())


def test_dropout_at_its_ends() -> None:
    x = torch.randn(50)
    for p, training in ((0.0, True), (1.0, True), (0.5, False)):
        torch._dynamo.reset()
        wanted = F.dropout(x, p, training)
        assert torch.equal(compiled(lambda x, p=p, t=training: F.dropout(x, p, t))(x), wanted)


def test_forward_and_backward_see_the_same_numbers() -> None:
    x = torch.randn(64, 300, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.dropout((x.sin() * 2).exp(), 0.4)

    built = compiled(function)
    for _ in range(3):
        y = built(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        plain = (x.sin() * 2).exp() * x.cos() * 2 / 0.6
        wanted = torch.where(y == 0, 0, plain)
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_slopes(dtype: torch.dtype) -> None:
    """Between their limits below zero, and none above; backward has the same ones."""
    x = torch.randn(64, 300, dtype=dtype)
    x[0, :3] = torch.tensor([0.0, -0.0, torch.nan])
    x.requires_grad_()
    built = compiled(lambda x: F.rrelu(x, 0.25, 0.5, training=True))
    y = built(x)
    (slopes,) = torch.autograd.grad(y.sum(), x)
    assert not any(graph.externs for graph in built.graphs)
    below = (x <= 0).detach()
    assert bool((slopes[~below] == 1).all())
    assert 0.25 <= slopes[below].min() < 0.26
    assert 0.49 < slopes[below].max() <= 0.5
    torch.testing.assert_close(y, x * slopes, equal_nan=True)


def test_random_slopes_lie_as_eagers() -> None:
    def sloped(x: torch.Tensor) -> torch.Tensor:
        return torch.rrelu(x, 0.25, 0.5, training=True)

    for x in (torch.randn(5, 3).t(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        torch.manual_seed(5)
        got = compiled(sloped)(x)
        torch.manual_seed(5)
        with SameNumbers():
            wanted = sloped(x)
        torch.testing.assert_close(got, wanted)
        assert got.stride() == wanted.stride() == sloped(x).stride()


def test_recomputed_in_a_checkpoint() -> None:
    weight = torch.randn(16, 16, requires_grad=True)
    x = torch.randn(40, 16)

    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout((x @ weight).relu(), 0.5)

    def function(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False)

    built = compiled(function)
    y = built(x)
    (gradient,) = torch.autograd.grad(y.sum(), weight)
    wanted = x.t() @ torch.where(y == 0, 0.0, 2.0)
    torch.testing.assert_close(gradient, wanted)


def test_an_option_gives_exactly_eagers_numbers() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        slopes = F.rrelu(x, training=True)
        numbers = torch.rand(20), torch.randn(20), torch.randint(0, 9, (20,))
        return F.dropout(x, 0.3), slopes, *numbers

    x = torch.randn(10, 10)
    torch.manual_seed(11)
    wanted = function(x)
    torch.manual_seed(11)
    got = compiled(function, eager_random=True)(x)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_a_generator_of_its_own_stays_with_eager() -> None:
    def function(generator: torch.Generator) -> torch.Tensor:
        return torch.rand(20, generator=generator) + 1

    wanted = function(torch.Generator().manual_seed(5))
    assert torch.equal(compiled(function)(torch.Generator().manual_seed(5)), wanted)


def test_symbolic_sizes() -> None:
    built = compiled(lambda x: F.dropout(x, 0.5) + torch.rand_like(x), dynamic=True)
    for n in (3, 50, 1000):
        x = torch.ones(n, 7)
        torch.manual_seed(n)
        got = built(x)
        torch.manual_seed(n)
        with SameNumbers():
            wanted = F.dropout(x, 0.5) + torch.rand_like(x)
        torch.testing.assert_close(got, wanted)
    assert len(built.graphs) == 1


def test_a_graph_with_random_numbers_is_checked_against_eager() -> None:
    built = compiled(lambda x: F.dropout(x.sin(), 0.5) + torch.rand_like(x), keep_inputs=True)
    built(torch.randn(100, 30))
    verdict = built.graphs[0].verify()
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("dynamic", [False, True])
def test_random_tensors_lie_as_eager_lays_them_out(dynamic: bool) -> None:
    """Of a turned tensor, too; and what fills weights on the CPU has eager's own numbers."""

    def drawn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.ops.aten.uniform(x, 2, 5),
            torch.ops.aten.normal_functional(x, 1, 2),
            torch.ops.aten.exponential(x),
            torch.rand_like(x),
        )

    for x in (torch.zeros(5, 3).t(), torch.zeros(2, 3, 4).permute(2, 0, 1)):
        torch.manual_seed(5)
        wanted = drawn(x)
        torch.manual_seed(5)
        got = compiled(drawn, dynamic=dynamic)(x)
        assert [y.stride() for y in got] == [y.stride() for y in wanted]
        assert not any(y.std() == 0 for y in got)
    torch.manual_seed(5)
    first = torch.ops.aten.uniform(x, 2, 5)
    torch.manual_seed(5)
    assert torch.equal(compiled(lambda x: torch.ops.aten.uniform(x, 2, 5))(x), first)
