"""Group norm where the channels lie side by side, beside eager and float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusec


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def image(*shape: int, dtype: torch.dtype = torch.float32, mean: float = 0.0) -> torch.Tensor:
    """Return images whose channels lie side by side."""
    places = {4: torch.channels_last, 5: torch.channels_last_3d}[len(shape)]
    return (torch.randn(*shape) + mean).to(dtype).contiguous(memory_format=places)


SHAPES = [
    ((2, 12, 5, 7), 4, torch.float32),
    ((2, 12, 5, 7), 4, torch.float64),
    ((2, 12, 5, 7), 4, torch.float16),
    ((2, 12, 5, 7), 4, torch.bfloat16),
    ((3, 32, 8, 8), 32, torch.float32),
    ((1, 24, 9, 4), 1, torch.float32),
    ((2, 6, 3, 4, 5), 3, torch.float32),
    ((2, 64, 1, 1), 8, torch.float32),
    ((0, 8, 5, 5), 2, torch.float32),
]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("shape", "groups", "dtype"), SHAPES)
def test_groups_of_channels(shape: tuple[int, ...], groups: int, dtype: torch.dtype) -> None:
    x = image(*shape, dtype=dtype)
    w, b = torch.randn(2, shape[1], dtype=dtype)

    def norm(x: torch.Tensor, w: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor:
        return F.silu(F.group_norm(x, groups, w, b))

    for given in ((w, b), (None, None)):
        torch._dynamo.reset()
        got, want = fusec.compile(norm)(x, *given), norm(x, *given)
        exact = norm(x.double(), *(None if t is None else t.double() for t in given))
        assert got.stride() == want.stride()
        # the worst element, and no worse than twice eager's
        allowed = 2 * (want.double() - exact).abs().amax() if want.numel() else 0
        eps = torch.finfo(dtype).eps
        assert ((got.double() - exact).abs() <= allowed + 8 * eps * (1 + exact.abs())).all()


def test_far_from_zero() -> None:
    """Means of channels that are far apart, and large beside what varies."""
    x = image(2, 16, 20, 20, mean=300.0)
    x += torch.arange(16.0).view(1, 16, 1, 1) * 100
    got = fusec.compile(lambda x: F.group_norm(x, 4))(x)
    exact, eager = F.group_norm(x.double(), 4), F.group_norm(x, 4)
    allowed = 2 * (eager.double() - exact).abs().amax() + 1e-6
    assert (got.double() - exact).abs().amax() <= allowed


def test_moments_go_to_the_backward_pass() -> None:
    x, w, b = image(2, 12, 6, 6), torch.randn(12), torch.randn(12)
    leaves = [t.requires_grad_() for t in (x, w, b)]

    def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, 3, w, b).square()

    gradient = torch.randn(2, 12, 6, 6)
    got = torch.autograd.grad(fusec.compile(norm)(*leaves), leaves, gradient)
    want = torch.autograd.grad(norm(*leaves), leaves, gradient)
    for ours, eager in zip(got, want, strict=True):
        torch.testing.assert_close(ours, eager, rtol=2e-4, atol=2e-4)


def test_an_image_that_is_turned_is_read_where_it_is() -> None:
    x = torch.randn(2, 7, 9, 16)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x.permute(0, 3, 1, 2), 4) * 2

    compiled = fusec.compile(norm)
    torch.testing.assert_close(compiled(x), norm(x), rtol=1e-5, atol=1e-5)
    assert len(compiled.kernels) == 3
