"""Products of many small matrices on a CPU, written out in a kernel rather than left to BLAS."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import fusec


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)


def laid_out(batch: int, rows: int, columns: int, dtype: torch.dtype, how: str) -> torch.Tensor:
    if how == "transposed":
        return torch.randn(batch, columns, rows).to(dtype).mT
    if how == "apart":
        return torch.randn(batch, rows, 2 * columns).to(dtype)[..., ::2]
    if how == "one":
        return torch.randn(rows, columns).to(dtype).expand(batch, rows, columns)
    return torch.randn(batch, rows, columns).to(dtype)


SIDES = ((1, 1, 1), (2, 3, 4), (3, 3, 3), (4, 4, 1), (1, 8, 8), (8, 8, 8), (7, 5, 6), (8, 9, 2))
LAYOUTS = ("rows", "transposed", "apart", "one")


@pytest.mark.sample(24)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, LAYOUTS)), ids="-".join)
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_products(
    sides: tuple[int, int, int], layouts: tuple[str, str], dtype: torch.dtype
) -> None:
    rows, terms, columns = sides
    x = laid_out(37, rows, terms, dtype, layouts[0])
    y = laid_out(37, terms, columns, dtype, layouts[1])
    got, eager, exact = fusec.compile(torch.bmm)(x, y), torch.bmm(x, y), x.double() @ y.double()
    assert got.dtype == eager.dtype
    assert got.stride() == eager.stride()
    own = (eager.double() - exact).abs().max()
    scale = exact.abs().max() * torch.finfo(dtype).eps
    assert (got.double() - exact).abs().max() <= own + 8 * scale


def test_which_are_written_out() -> None:
    def externs(rows: int, terms: int, columns: int, dtype: torch.dtype, right: str) -> int:
        torch._dynamo.reset()
        compiled = fusec.compile(torch.bmm)
        x = laid_out(5, rows, terms, dtype, "rows")
        compiled(x, laid_out(5, terms, columns, dtype, right))
        return len(compiled.graphs[0].externs)

    f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16
    assert externs(8, 8, 8, f32, "rows") == externs(8, 8, 8, torch.float64, "rows") == 0
    assert externs(9, 8, 8, f32, "rows") == externs(8, 9, 8, f32, "rows") == 1
    assert externs(8, 8, 9, f32, "rows") == 1
    assert externs(6, 6, 6, f32, "transposed") == externs(6, 6, 6, bf16, "rows") == 0
    assert externs(6, 6, 7, f32, "transposed") == externs(6, 6, 7, bf16, "rows") == 1
    assert externs(2, 2, 2, f16, "rows") == 1


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 2), (0.5, -1)])
@pytest.mark.parametrize("shape", [(9, 3, 5), (1, 3, 5), (9, 1, 1), (9, 3, 1)], ids=str)
def test_with_a_bias(shape: tuple[int, ...], beta: float, alpha: float) -> None:
    bias = torch.full(shape, math.nan) if beta == 0 else torch.randn(shape)
    x, y = torch.randn(9, 3, 4), torch.randn(9, 4, 5)
    function = lambda b, x, y: torch.baddbmm(b, x, y, beta=beta, alpha=alpha)  # noqa: E731
    torch.testing.assert_close(fusec.compile(function)(bias, x, y), function(bias, x, y))


def test_numbers_that_are_none() -> None:
    x, y = torch.ones(4, 2, 2), torch.ones(4, 2, 2)
    x[0, 0, 0], x[1, 0, 1], x[2, 1, 1] = math.nan, math.inf, -math.inf
    y[1, 1, 0], y[2, 1, 0] = 0.0, -math.inf
    got, eager = fusec.compile(torch.bmm)(x, y), torch.bmm(x, y)
    torch.testing.assert_close(got, eager, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shapes", [((0, 3, 3), (0, 3, 3)), ((4, 3, 0), (4, 0, 3))], ids=str)
def test_empty_ones(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = (torch.randn(shape) for shape in shapes)
    assert torch.equal(fusec.compile(torch.bmm)(x, y), torch.bmm(x, y))


def test_any_number_of_them_with_what_reads_them() -> None:
    compiled = fusec.compile(lambda x, y: (x @ y).relu().sum(-1), dynamic=True)
    for batch in (5, 1, 300):
        x, y = torch.randn(batch, 4, 4), torch.randn(batch, 4, 3)
        torch.testing.assert_close(compiled(x, y), (x @ y).relu().sum(-1))


def test_gradients() -> None:
    function = lambda x, y: (x.sin() @ y).square().sum()  # noqa: E731
    x, y = (torch.randn(6, 5, 5, requires_grad=True) for _ in range(2))
    got = torch.autograd.grad(fusec.compile(function)(x, y), (x, y))
    for mine, eager in zip(got, torch.autograd.grad(function(x, y), (x, y)), strict=True):
        torch.testing.assert_close(mine, eager)
