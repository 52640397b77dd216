"""Norms and softmaxes of rows that hold an infinity or NaN, or whose squares overflow."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "group norm": lambda x: F.group_norm(x.unsqueeze(1), 1),
    "batch norm": lambda x: F.batch_norm(x.unsqueeze(0), None, None, training=True),
    "variance": lambda x: x.var(-1),
    "deviation": lambda x: x.std(-1),
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "log-sum-exp": lambda x: x.logsumexp(-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
}


def rows(count: int, dtype: torch.dtype) -> Tensor:
    """Return rows with one that is not finite at the start, within, at the end, and everywhere."""
    plain = torch.randn(count, dtype=torch.float64)
    made = []
    for value in (math.inf, -math.inf, math.nan):
        for place in (0, count // 2, count - 1, slice(None)):
            made.append(plain.clone())
            made[-1][place] = value
    made.append(plain.clone())
    made[-1][1], made[-1][count - 2] = math.inf, -math.inf
    return torch.stack(made).to(dtype)


def kinds(x: Tensor) -> Tensor:
    """Return 2 for NaN, 1 and -1 for the infinities, 0 for numbers."""
    return torch.where(x.isnan(), 2, x.isposinf().int() - x.isneginf().int())


@pytest.mark.sample(1)
@pytest.mark.parametrize("count", [1000, 7])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_nan_and_infinities_are_where_eager_has_them(dtype: str, count: int) -> None:
    x = rows(count, getattr(torch, dtype))

    def all_of_them(*inputs: Tensor) -> list[Tensor]:
        return [f(x) for f, x in zip(FUNCTIONS.values(), inputs, strict=True)]

    def found(call: Callable[..., list[Tensor]]) -> list[Tensor]:
        inputs = [x.clone().requires_grad_() for _ in FUNCTIONS]
        results = call(*inputs)
        weights = [torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y) for y in results]
        return results + list(torch.autograd.grad(results, inputs, weights))

    ours = found(torch.compile(all_of_them, backend="fusec", fullgraph=True))
    names = [*FUNCTIONS, *(f"gradient of {name}" for name in FUNCTIONS)]
    for name, expected, got in zip(names, found(all_of_them), ours, strict=True):
        assert torch.equal(kinds(got), kinds(expected)), name


def test_whether_eagers_layer_norm_of_large_rows_is_nan_depends_on_their_length() -> None:
    """Ours is the formula's in float32: 0 of a row of one value, however long.

    Eager joins the moments of pieces of a row, the first with those of nothing: the square of
    1e30 - 0, which overflows, times none.  Whether pieces are joined so hangs on the length.
    """
    norm = FUNCTIONS["layer norm"]
    ours = torch.compile(norm, backend="fusec", fullgraph=True, dynamic=False)
    for count, is_nan in ((128, True), (129, False)):
        x = torch.full((2, count), 2.0**100)
        assert norm(x).isnan().all() == is_nan
        assert norm(x.double()).eq(0).all()
        assert ours(x).eq(0).all()


@pytest.mark.parametrize("size", [1e-25, 1e20, 1e36])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deviations_whose_squares_leave_float32(dtype: str, size: float) -> None:
    """The root of a square is in range where the square is not; eager computes in float64."""

    def deviation(x: Tensor) -> Tensor:
        return torch.cat([x.std(-1), torch.std_mean(x, 0)[0]])

    x = (torch.randn(5, 50) * size).to(getattr(torch, dtype)).requires_grad_()
    found, expected = torch.compile(deviation, backend="fusec", fullgraph=True)(x), deviation(x)
    torch.testing.assert_close(found.double() / size, expected.double() / size, rtol=1e-2, atol=0)
    ours, gradient = (torch.autograd.grad(result.sum(), x)[0] for result in (found, expected))
    torch.testing.assert_close(ours, gradient, rtol=1e-2, atol=1e-2)
    assert gradient.abs().max() > 0.1
