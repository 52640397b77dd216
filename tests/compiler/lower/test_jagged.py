"""Jagged tensors: the ragged size is an input of their graphs that is no number."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nested import nested_tensor, nested_tensor_from_jagged

import fusec


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    yield
    torch._dynamo.reset()


def jagged(*lengths: int) -> torch.Tensor:
    rows = [torch.randn(length, 6, dtype=torch.float64) for length in lengths]
    return nested_tensor(rows, layout=torch.jagged).requires_grad_()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1),
        lambda x: x * x.square().mean(-1, keepdim=True).rsqrt(),
        lambda x: x + nested_tensor_from_jagged(x.values().exp(), x.offsets()),
        lambda x: x * x.size(0) + x.values().shape[0],
    ],
)
def test_results_and_gradients(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compiled = fusec.compile(function)
    for lengths in ((2, 4, 1), (5, 3, 7), (1, 1)):
        x = jagged(*lengths)
        ours, theirs = compiled(x), function(x)
        assert torch.equal(ours.offsets(), theirs.offsets())
        torch.testing.assert_close(ours.values(), theirs.values())
        weight = torch.randn_like(theirs.values())
        (got,) = torch.autograd.grad(ours.values(), x, weight)
        (wanted,) = torch.autograd.grad(theirs.values(), x, weight)
        torch.testing.assert_close(got.values(), wanted.values())
    assert all(graph.kernels for graph in compiled.graphs)


def test_the_ragged_size_is_returned() -> None:
    compiled = fusec.compile(lambda x: (x * 2, x.size(1), x.shape))
    for lengths in ((2, 4), (3, 3), (2, 4)):
        x = jagged(*lengths)
        doubled, size, shape = compiled(x)
        assert torch.equal(doubled.values(), x.values() * 2)
        assert size == x.size(1)
        assert shape == x.shape


def test_two_of_the_same_lengths() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 + nested_tensor_from_jagged(y, x.offsets()).cos()

    compiled = fusec.compile(function)
    for lengths in ((2, 4), (5, 1, 3)):
        x = jagged(*lengths)
        y = torch.randn(sum(lengths), 6, dtype=torch.float64, requires_grad=True)
        ours, theirs = compiled(x, y), function(x, y)
        torch.testing.assert_close(ours.values(), theirs.values())
        for got, wanted in zip(
            torch.autograd.grad(ours.values().sum(), (x, y)),
            torch.autograd.grad(theirs.values().sum(), (x, y)),
            strict=True,
        ):
            plain = (got.values(), wanted.values()) if got.is_nested else (got, wanted)
            torch.testing.assert_close(*plain)
