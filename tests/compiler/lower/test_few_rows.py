"""Adding to tables of few rows: a reduction for each row in place of atomics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec

Function = Callable[..., torch.Tensor]


def check(function: Function, *given: torch.Tensor, floor: float = 1e-5) -> str:
    """Compare with float64, beside eager's own error; return the kernels' text."""
    torch._dynamo.reset()
    compiled = fusec.compile(function, target="triton")
    exact = [t.double() if t.is_floating_point() else t for t in given]
    got, plain, truth = compiled(*given), function(*given), function(*exact)
    assert got.dtype == plain.dtype
    assert got.shape == plain.shape
    assert torch.equal(got.isnan(), truth.isnan())
    errors = [(t.double() - truth).nan_to_num().abs().max().item() for t in (got, plain)]
    assert errors[0] <= 2 * errors[1] + floor
    assert not compiled.fallbacks
    return "\n".join(kernel.source for kernel in compiled.kernels.values())


def added(x: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return x.index_put((at,), values, accumulate=True)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_rows_are_sums(dtype: torch.dtype) -> None:
    at = torch.randint(-4, 4, (9, 70))
    values = torch.randn(9, 70, 5, dtype=dtype)
    floor = {torch.float16: 6e-2, torch.bfloat16: 0.5}.get(dtype, 1e-5)
    text = check(added, torch.randn(4, 5, dtype=dtype), at, values, floor=floor)
    assert "atomic" not in text


@pytest.mark.triton
def test_a_nan_stays_in_its_row() -> None:
    values = torch.randn(300, 3)
    values[7] = float("nan")
    values[8, 1] = float("inf")
    assert "atomic" not in check(added, torch.randn(3, 3), torch.arange(300) % 3, values)


@pytest.mark.triton
@pytest.mark.parametrize("shape", [(), (1,), (1, 6), (300, 1)])
def test_values_are_broadcast(shape: tuple[int, ...]) -> None:
    at = torch.randint(0, 3, (300,))
    assert "atomic" not in check(added, torch.randn(3, 6), at, torch.randn(shape), floor=1e-3)


@pytest.mark.triton
def test_relative_positions() -> None:
    """What T5 adds to its 32 rows: sums of several gradients, which are added up once."""

    def function(at: torch.Tensor, *gradients: torch.Tensor) -> torch.Tensor:
        total = sum(gradients[1:], gradients[0]).permute(1, 2, 0)
        return torch.zeros(16, 3, dtype=total.dtype).index_put((at,), total, accumulate=True)

    at = torch.randint(0, 16, (40, 48))
    text = check(function, at, *(torch.randn(3, 40, 48) for _ in range(4)), floor=1e-4)
    assert "atomic" not in text
    assert text.count("@triton.jit") >= 2


@pytest.mark.sample(2)
@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padding", [None, 1])
def test_segments(padding: int | None, dtype: torch.dtype) -> None:
    at = torch.randint(0, 2, (4, 100))
    upstream = torch.randn(4, 100, 40, dtype=dtype)
    compiled = fusec.compile(lambda w: F.embedding(at, w, padding_idx=padding), target="triton")
    found = []
    for call, kind in ((compiled, dtype), (compiled, dtype), (F.embedding, torch.float64)):
        weight = torch.ones(2, 40, dtype=kind, requires_grad=True)
        result = call(weight) if call is compiled else call(at, weight, padding)
        result.backward(upstream.to(kind))
        assert weight.grad is not None
        found.append(weight.grad.double())
    scale = found[2].abs().max()
    assert torch.equal(found[0], found[1])
    assert (found[0] - found[2]).abs().max() <= scale * (1e-5 if dtype == torch.float32 else 1e-2)
    assert not any("atomic" in kernel.source for kernel in compiled.kernels.values())


@pytest.mark.triton
def test_many_rows_take_atomics() -> None:
    at = torch.randint(0, 100, (300,))
    assert "atomic" in check(added, torch.randn(100, 6), at, torch.randn(300, 6))


def test_a_row_that_is_not_there() -> None:
    compiled = fusec.compile(added, target="triton")
    with pytest.raises((IndexError, RuntimeError)):
        compiled(torch.randn(2, 3), torch.full((200,), 2), torch.randn(200, 3))


def test_any_number_of_values() -> None:
    compiled = fusec.compile(added, dynamic=True, target="triton")
    for count in (200, 333):
        x, at, values = torch.randn(2, 3), torch.randint(0, 2, (count,)), torch.randn(count, 3)
        torch.testing.assert_close(compiled(x, at, values), added(x, at, values))
