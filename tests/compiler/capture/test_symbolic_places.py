"""Writes at places that are symbolic: they compile, and one graph is for all places."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()  # TorchDynamo remembers which numbers changed


def a_slice_of_a_size(x: torch.Tensor, n: int) -> None:
    part = x[:n].clone()
    x[-part.shape[0] :] = part * 2


def among_others(x: torch.Tensor, n: int) -> None:
    x[..., :n, None, 1:3] += 1


def from_there(x: torch.Tensor, n: int) -> None:
    x[n:, :3] = x[n:, 1:4].clone()


def a_row(x: torch.Tensor, n: int) -> None:
    x[n] = x[0] * 2


def a_column(x: torch.Tensor, n: int) -> None:
    x.t()[n] = 0.5


def one_by_one(x: torch.Tensor, n: int) -> None:
    for i in range(3):
        x[n + i] = x[n + i - 1] + x[i]


def between(x: torch.Tensor, n: int) -> None:
    x[n][1:] *= 3


def beside_positions(x: torch.Tensor, n: int) -> None:
    x[torch.arange(n), 1:3] = x[:n, 3:5].clone()


WRITES: list[Callable[[torch.Tensor, int], None]] = [
    a_slice_of_a_size,
    among_others,
    from_there,
    a_row,
    a_column,
    one_by_one,
    between,
    beside_positions,
]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_a_write(write: Callable[[torch.Tensor, int], None]) -> None:
    compiled = fusec.compile(write)
    for n in (4, 3, 5, 7, 6):
        x = torch.randn(12, 8)
        expected = x.clone()
        write(expected, n)
        compiled(x, n)
        torch.testing.assert_close(x, expected)
    assert len(compiled.graphs) == 2  # of the first number, and of any


@pytest.mark.parametrize("number", [-(2**63), -(2**62) - 1, -(2**62), 2**62, 2**63 - 1])
def test_a_number_of_any_sign(number: int) -> None:
    def compare(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
        return x + n, x * n, torch.where(x > n, x, n), x == n

    compiled, x = fusec.compile(compare), torch.tensor([-3, 0, 1, number])
    for n in (2, 3, number):
        torch.testing.assert_close(compiled(x, n), compare(x, n))
    assert len(compiled.graphs) == 2
