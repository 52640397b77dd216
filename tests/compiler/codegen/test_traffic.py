"""Every target says the same of what a kernel moves: what its loops can reach, once each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec

TABLE = torch.randn(4096, 64)
ROWS = torch.arange(16) * 7
F32, I64 = 4, 8


def scattered(x: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return x.index_put_((at,), values)


CASES: list[tuple[str, Callable[..., torch.Tensor], tuple[torch.Tensor, ...], int, int]] = [
    # name, function, inputs, bytes read, bytes written
    ("pointwise", lambda x: x * 2, (TABLE,), 4096 * 64 * F32, 4096 * 64 * F32),
    ("a part", lambda x: x[:10] * 2, (TABLE,), 10 * 64 * F32, 10 * 64 * F32),
    ("twice", lambda x: x * x.roll(1, 0), (TABLE,), 4096 * 64 * F32, 4096 * 64 * F32),
    ("row sums", lambda x: x.sum(1), (TABLE,), 4096 * 64 * F32, 4096 * F32),
    ("a gather", F.embedding, (ROWS, TABLE), 16 * I64 + 16 * 64 * F32, 16 * 64 * F32),
    (
        "a gather that is spread",
        lambda at, x: x[at, 0][:, None] * torch.ones(1, 1000),
        (ROWS, TABLE),
        16 * I64 + 16 * F32,
        16 * 1000 * F32,
    ),
]


@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize(
    ("function", "inputs", "read", "written"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_bytes(
    target: str,
    function: Callable[..., torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
    read: int,
    written: int,
) -> None:
    compiled = fusec.compile(function, target=target, dynamic=False)
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    (kernel,) = compiled.kernels.values()
    assert (kernel.generated.read_bytes, kernel.generated.written_bytes) == (read, written)


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_an_update_of_some_rows_moves_those_alone(target: str) -> None:
    compiled = fusec.compile(scattered, target=target, dynamic=False)
    compiled(TABLE.clone(), ROWS, torch.randn(16, 64))
    *_, kernel = compiled.kernels.values()  # the table is copied before
    rows = 16 * 64 * F32
    assert kernel.generated.written_bytes == rows
    assert kernel.generated.read_bytes == 2 * rows + 16 * I64  # what is there counts as read
