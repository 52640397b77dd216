"""``bucketize`` on the CPU: ATen's search, step by step, without a branch."""

import math

import pytest
import torch

import fusec


@pytest.fixture(autouse=True)
def _compiled_anew() -> None:
    """Forget what was compiled: past the limit of recompilations all would run in eager."""
    torch._dynamo.reset()


TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8)


def values_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return values of which many occur twice."""
    if dtype.is_floating_point:
        return (torch.randn(*shape) * 20).round().div(4).to(dtype)
    return torch.randint(0, 50, shape).to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 64, 129])
def test_places_are_those_of_eager(dtype: torch.dtype, right: bool, count: int) -> None:
    x, boundaries = values_of(dtype, 37, 11), values_of(dtype, count)

    def search(x: torch.Tensor, boundaries: torch.Tensor) -> torch.Tensor:
        return torch.bucketize(x, boundaries, right=right)

    compiled = fusec.compile(search)
    # also out of order, where the result is whatever the search comes to
    for given in (boundaries.sort().values, boundaries):
        result = compiled(x.t(), given)
        assert torch.equal(result, search(x.t(), given))
        assert result.dtype == torch.int64
    (kernel,) = compiled.kernels.values()
    assert "failed" not in kernel.source


def test_one_number_without_dimensions() -> None:
    def search(x: torch.Tensor, boundaries: torch.Tensor) -> torch.Tensor:
        return torch.bucketize(x, boundaries)

    compiled, boundaries = fusec.compile(search), torch.arange(5.0)
    for x in (torch.tensor(2.5), torch.tensor(-1.0), torch.tensor(math.nan)):
        result = compiled(x, boundaries)
        assert torch.equal(result, search(x, boundaries))
        assert result.shape == ()
    assert compiled.kernels
    assert not any(graph.fallback for graph in compiled.graphs)


@pytest.mark.parametrize("right", [False, True])
def test_nan_and_infinities_are_placed_as_in_eager(right: bool) -> None:
    numbers = [math.nan, -math.inf, math.inf, -0.0, 0.0, 1e-45, 3.0, -3.0]
    x, boundaries = torch.tensor(numbers), torch.tensor([-math.inf, -1.0, -0.0, 2.0, math.inf])

    def search(x: torch.Tensor, boundaries: torch.Tensor) -> torch.Tensor:
        return torch.bucketize(x, boundaries, out_int32=True, right=right)

    compiled = fusec.compile(search)
    for given in (boundaries, torch.cat([boundaries[1:], x[:1]]), x[:1].repeat(5)):
        result = compiled(x, given)
        assert torch.equal(result, search(x, given))
        assert result.dtype == torch.int32
    assert compiled.kernels


def test_empty_inputs_and_single_ones() -> None:
    compiled = fusec.compile(torch.bucketize)
    boundaries = torch.arange(5.0)
    for x in (torch.randn(0, 3), torch.tensor(2.5)):
        assert torch.equal(compiled(x, boundaries), torch.bucketize(x, boundaries))
