"""Types that eager keeps where torch's decompositions promote, or round a number first."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusec


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kept", "given", "dynamic"),
    [
        (torch.int64, torch.float32, False),
        (torch.int64, torch.float32, True),
        (torch.bool, torch.float32, False),
        (torch.float16, torch.float32, False),
        (torch.float32, torch.float64, False),
    ],
)
def test_a_replaced_slice_takes_the_type_of_the_whole(
    kept: torch.dtype, given: torch.dtype, dynamic: bool
) -> None:
    def replaced(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.select_scatter(x, y, 1, -2), torch.select_scatter(x, y, 1, 0) * 2

    x = torch.arange(24).view(3, 4, 2).to(kept)
    y = torch.linspace(-7, 7, 6, dtype=given).view(3, 2)
    got = fusec.compile(replaced, dynamic=dynamic)(x, y)
    for mine, wanted in zip(got, replaced(x, y), strict=True):
        assert mine.dtype == wanted.dtype
        assert torch.equal(mine, wanted)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("limit", [0.1, 0.7])
def test_gradients_at_a_limit_that_half_precision_rounds(dtype: torch.dtype, limit: float) -> None:
    """Eager compares in float32: 0.7 is no limit that a half reaches."""
    middle = torch.tensor([limit, -limit]).to(dtype).view(torch.int16)
    x = torch.cat([middle, middle + 1, middle - 1]).view(dtype)

    def loss(x: torch.Tensor) -> torch.Tensor:
        above, not_below = F.threshold(x, limit, 2.0), F.threshold(x, -limit, 2.0)
        return (above + 10 * not_below + 100 * F.hardtanh(x, -limit, limit)).sum()

    gradients = []
    for function in (loss, fusec.compile(loss)):
        given = x.clone().requires_grad_()
        function(given).backward()
        gradients.append(given.grad)
    assert torch.equal(gradients[0], gradients[1])
