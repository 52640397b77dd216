"""Decompositions that are not torch's own, or not those of every version: values and layouts."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import fusec
from fusec.graph.decompositions import _comparable, _is_exact

X = torch.randn(4, 5, 1, 4, generator=torch.Generator().manual_seed(0))
PLACES = torch.tensor([0, 2])


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def same(function: Callable[..., Tensor], *args: Tensor) -> None:
    wanted, found = (f(*(t.clone() for t in args)) for f in (function, fusec.compile(function)))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize("dims", [-2, (-2, 1), (1, 3), 2])
def test_norms_over_one_element(dims: int | tuple[int, ...]) -> None:
    """Torch 2.11 keeps a dimension of one element that is counted from the end."""
    same(lambda x: torch.linalg.vector_norm(x, dim=dims) * 2, X)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 0, 2, 1), (2, 1, 0, 3)])
def test_filled_as_it_lies(order: tuple[int, ...]) -> None:
    """Torch 2.11 lays the result out by an update in place, which is no graph."""

    def filled(x: Tensor, places: Tensor) -> Tensor:
        y = x.index_fill(1, places, 0.5)
        return y.index_fill_(-1, places, torch.tensor(2.0))

    same(filled, X.permute(order).contiguous().permute([order.index(n) for n in range(4)]), PLACES)


def test_filled_with_gaps_as_it_lies() -> None:
    """Eager closes the gaps and keeps the order of dimensions, and torch's own does not."""

    def filled(x: Tensor, place: Tensor) -> Tensor:
        return x.permute(3, 1, 2, 0)[::2].index_fill(0, place, 2.5)

    same(filled, X, PLACES[:1])
    same(lambda x, i: x[:1].expand(3, -1, -1, -1).index_fill(1, i, 2.5), X, PLACES)


@pytest.mark.sample(4)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("order", [(2, 1, 0, 3), (1, 2, 3, 0), (3, 1, 2, 0), (0, 1, 2, 3)])
def test_norms_of_single_elements_as_they_lie(order: tuple[int, ...], training: bool) -> None:
    """Where memory is contiguous whatever the strides of dimensions of one element."""

    def normed(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return F.batch_norm(x, mean, variance, training=training)

    x = X[:, :, 0, :1].view(4, 5, 1, 1).permute(order)
    same(normed, x, torch.zeros(x.shape[1]), torch.ones(x.shape[1]))


def test_columns_of_an_image_are_in_order() -> None:
    same(lambda x: F.unfold(x, 1), X.permute(3, 1, 2, 0))


@pytest.mark.parametrize(
    "place", [torch.tensor(-1), torch.tensor([0, -3]), torch.tensor([], dtype=torch.int64)]
)
def test_filled_from_the_end(place: Tensor) -> None:
    """Where ``index_copy``, which it is made of, takes no negative place."""
    same(lambda x, i: x.index_fill(1, i, 2.5) + 1, X, place)
    same(lambda x, i: x.clone().index_fill_(-1, i, torch.tensor(2.5)), X, place)
    with pytest.raises((IndexError, fusec.errors.ValueRefused)):
        fusec.compile(lambda x, i: x.index_fill(2, i - 2, 2.5))(X, torch.tensor([0, -1]))


@pytest.mark.parametrize("place", [torch.tensor([0]), torch.tensor(0)])
def test_the_only_element(place: Tensor) -> None:
    same(lambda x, i: x.index_select(0, i) + 1, torch.tensor(5.0), place)
    same(lambda x, i: x.gather(0, i) + 1, torch.tensor(5.0), place)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.clone().copysign_(y),
        lambda x, y: torch.copysign(y, x),
        lambda x, y: x.clone().xlogy_(y) + torch.special.xlog1py(y, x),
        lambda x, y: torch.xlogy(y, x),
        lambda x, y: x.clone().floor_divide_(y),
        lambda x, y: torch.div(y, x, rounding_mode="floor"),
        lambda x, y: 0.5**x,
        lambda x, y: torch.isin(x, 0.5),
    ],
)
@pytest.mark.parametrize("rows", [2, 1])
def test_results_lie_as_operands_do(function: Callable[..., Tensor], rows: int) -> None:
    """Torch's formulas go by what they compare, or by their only tensor."""
    x = torch.linspace(0.5, 2, 8).reshape(4, 2).t()
    same(function, x, torch.linspace(0.25, 3, 4 * rows).reshape(rows, 4))


@pytest.mark.parametrize(
    ("dtype", "exact"),
    [
        (
            torch.float16,
            [0, -0.0, 1, 0.5, 65504, -65504, 2.0**-14, 2047, math.inf, True],
        ),
        (torch.bfloat16, [0, 1, 255, 2.0**-126, torch.finfo(torch.bfloat16).max, -math.inf]),
    ],
    ids=str,
)
def test_limits_that_halves_hold_exactly(dtype: torch.dtype, exact: list[float]) -> None:
    """Others are compared in float32; what nobody knows, too."""
    assert all(_is_exact(number, dtype) for number in exact)
    kind = torch.finfo(dtype)
    inexact = [0.1, -1.0001, 1 + kind.eps / 2, kind.max * 2, kind.tiny / 2, 2 / kind.eps + 1]
    assert not any(_is_exact(number, dtype) for number in inexact)
    assert not _is_exact(fx.Graph().placeholder("limit"), dtype)
    x = torch.ones(2, dtype=dtype)
    assert _comparable(x, *exact) is x
    assert [_comparable(x, *exact, n).dtype for n in inexact] == [torch.float32] * len(inexact)
    assert _comparable(x.double(), 0.1).dtype == torch.float64


@pytest.mark.sample(4)
@pytest.mark.parametrize("shape", [(2, 4, 6, 6), (2, 4, 1, 6), (2, 4, 5), (2, 4, 3, 3, 3)])
@pytest.mark.parametrize("learns", [False, True])
def test_shuffled_channels_stay_innermost(shape: tuple[int, ...], learns: bool) -> None:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    x = torch.randn(shape)
    for given in (x, x.contiguous(memory_format=formats.get(x.ndim, torch.contiguous_format))):
        torch._dynamo.reset()
        same(lambda x: F.channel_shuffle(x, 2), given.requires_grad_(learns))


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_gradients_of_rows_of_a_number_read_from_data() -> None:
    def divergence(x: Tensor) -> Tensor:
        rows = x[x[:, 0] > 0]
        return F.kl_div(rows.log_softmax(1), rows.softmax(1).square(), reduction="sum")

    x = torch.rand(6, 3) - 0.5
    compiled = fusec.compile(divergence)
    for given in (x, -x, x[:0], x.abs()):
        leaves = [given.clone().requires_grad_() for _ in range(2)]
        for function, leaf in zip((compiled, divergence), leaves, strict=True):
            function(leaf).backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
