"""Products of groups of rows, run by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fusec.targets.triton import grouped_products as products
from fusec.targets.triton.toolchain.interpret import interpreting

Tensor = torch.Tensor
ROWS, INNER, COLUMNS = 150, 40, 70
ENDS = {
    "all": [3, 3, 70, 131, 150],
    "rows behind the last": [0, 20, 20, 90, 101],
    "none": [0, 0, 0, 0, 0],
    "one has all": [0, 0, 150, 150, 150],
    "more than there are": [0, 40, 150, 160, 170],
}


@pytest.fixture
def launchers() -> Iterator[tuple[Any, Any]]:
    import triton.experimental.gluon  # noqa: F401 - which fails while kernels are interpreted
    from triton.runtime.interpreter import InterpretedFunction

    with interpreting():
        yield tuple(
            InterpretedFunction(kernel.fn)
            for kernel in (products.rows_by_group, products.matrices_by_group)
        )


def looped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], weight.shape[2])
    begin = 0
    for each, end in zip(weight, ends.tolist(), strict=True):
        out[begin:end] = x[begin:end] @ each
        begin = end
    return out


def looped_matrices(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    begins = [0, *ends.tolist()[:-1]]
    parts = [x[a:b].t() @ y[a:b] for a, b in zip(begins, ends.tolist(), strict=True)]
    return torch.stack(parts)


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_groups_are_as_a_loop_has_them(launchers: Any, dtype: torch.dtype, ends: list[int]) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, INNER, dtype=dtype), torch.randn(ROWS, COLUMNS, dtype=dtype)
    weight = torch.randn(5, COLUMNS, INNER, dtype=dtype).transpose(1, 2)
    last = torch.tensor(ends, dtype=torch.int32 if dtype == torch.float32 else torch.int64)
    found = products.grouped_rows(x, weight, last, launcher=launchers[0])
    wanted = looped(x.double(), weight.double(), last)
    tolerance = 20 * torch.finfo(dtype).eps
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)
    back = products.grouped_matrices(x, y, last, weight, launcher=launchers[1])
    assert back.stride() == weight.stride()
    wanted = looped_matrices(x.double(), y.double(), last)
    torch.testing.assert_close(back.double(), wanted, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("shape", [(0, 4, 6), (5, 0, 6), (5, 4, 0)], ids=str)
def test_nothing_to_multiply(launchers: Any, shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    x, weight, y = torch.ones(rows, inner), torch.ones(2, inner, columns), torch.ones(rows, columns)
    ends = torch.tensor([rows // 2, rows])
    found = products.grouped_rows(x, weight, ends, launcher=launchers[0])
    assert torch.equal(found, torch.zeros(rows, columns))
    back = products.grouped_matrices(x, y, ends, weight, launcher=launchers[1])
    assert torch.equal(back, torch.zeros(2, inner, columns))
