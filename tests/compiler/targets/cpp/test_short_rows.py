"""C++ kernels that reduce many short rows side by side."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec

Function = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def agree(function: Function, *inputs: torch.Tensor, turned: bool = True) -> None:
    """Compile, compare with eager and float64, and see whether rows are turned over."""
    compiled = fusec.compile(function)
    found = compiled(*inputs)
    (graph,) = compiled.graphs
    assert any("turn_over" in kernel.source for kernel in graph.kernels) is turned
    wanted = function(*inputs)
    exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    for got, eager, truth in zip(*map(_several, (found, wanted, exact)), strict=True):
        assert got.dtype == eager.dtype
        assert got.shape == eager.shape
        assert got.stride() == eager.stride()
        if not got.is_floating_point():
            assert torch.equal(got, eager)
            continue
        assert torch.equal(got.isnan(), eager.isnan())
        near = torch.finfo(got.dtype).eps * 4 * truth.nan_to_num(0, 0, 0).abs().max()
        assert torch.allclose(got.double(), truth.double(), rtol=0, atol=near, equal_nan=True)


def _several(value: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def normalized(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


def scaled(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    centered = x - x.mean(-1, keepdim=True)
    return centered.exp(), centered.square().sum(-1), (centered > 0).any(-1), x.amax(-1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("points", [2, 5, 8, 17, 32])
@pytest.mark.parametrize("rows", [64, 100, 1027])
def test_softmax(rows: int, points: int) -> None:
    agree(lambda x: x.softmax(-1), torch.randn(rows, points) * 4)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", [normalized, several, lambda x: x.log_softmax(-1)])
def test_other_types(function: Function, dtype: torch.dtype) -> None:
    agree(function, torch.randn(300, 12).to(dtype))


def test_rows_that_nothing_is_left_of() -> None:
    agree(lambda x: x.logsumexp(-1), torch.randn(777, 9))
    agree(lambda x: torch.var_mean(x, -1), torch.randn(777, 9) + 100)


def test_weights_along_the_row_and_values_of_each_row() -> None:
    x, w, b = torch.randn(500, 24), torch.randn(24), torch.randn(24)
    agree(scaled, x, w, b)
    agree(lambda x, s: (x * s[:, None]).softmax(-1), x, torch.randn(500))


def test_bytes_and_conditions() -> None:
    x = torch.randint(0, 255, (400, 6), dtype=torch.uint8)
    agree(lambda x: (x.sum(-1), (x > 100).any(-1), x.float().softmax(-1)), x)
    agree(
        lambda x, m: x.masked_fill(m, -torch.inf).softmax(-1),
        torch.randn(400, 6),
        torch.rand(400, 6) < 0.5,
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "given",
    [
        lambda: torch.randn(300, 20)[:, :7],
        lambda: torch.randn(600, 7)[::2],
        lambda: torch.randn(300, 9)[:, 1:],
        lambda: torch.randn(3, 5, 70, 11),
        lambda: torch.randn(70, 5, 11).transpose(0, 1),
        lambda: torch.randn(11).expand(90, 11),
    ],
    ids=["wide", "every other", "shifted", "outer", "transposed", "expanded"],
)
def test_rows_that_are_not_one_after_the_other(given: Callable[[], torch.Tensor]) -> None:
    agree(normalized, given())


def test_special_values() -> None:
    x = torch.randn(200, 8)
    x[3, 2] = torch.nan
    x[4] = torch.inf
    x[5] = -torch.inf
    x[6, 1] = -torch.inf
    x[7, 7] = 3e38
    agree(lambda x: x.softmax(-1), x)
    agree(lambda x: (x.amax(-1), x.sum(-1), x.amin(-1), x.sin().sum(-1)), x)


def test_a_number_of_rows_that_changes() -> None:
    compiled = fusec.compile(lambda x: x.softmax(-1), dynamic=True)
    for rows in (1000, 65, 64, 63, 2):
        x = torch.randn(rows, 10)
        torch.testing.assert_close(compiled(x), x.softmax(-1))
    assert len(compiled.graphs) == 1


def test_threads_do_not_change_a_bit() -> None:
    x = torch.randn(5000, 12)
    compiled = fusec.compile(lambda x: x.softmax(-1) + normalized(x))
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(compiled(x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_few_rows_and_longer_ones_are_left_alone() -> None:
    agree(lambda x: x.softmax(-1), torch.randn(20, 8), turned=False)
    agree(lambda x: x.softmax(-1), torch.randn(500, 200), turned=False)


def test_gradients() -> None:
    x = torch.randn(400, 9, requires_grad=True)
    again = x.detach().clone().requires_grad_()
    (x.softmax(-1) * normalized(x)).square().sum().backward()
    fusec.compile(lambda x: (x.softmax(-1) * normalized(x)).square().sum())(again).backward()
    torch.testing.assert_close(again.grad, x.grad)


def overwriting(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    shifted = (x - x.amax(-1, keepdim=True)).exp()
    total = shifted.sum(-1, keepdim=True)
    return shifted / total, x * 2, shifted + x, x.sum(-1), total.squeeze(-1)


def two_inputs(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    centered, power = x - x.mean(-1, keepdim=True), y.exp()
    spread = (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return centered / spread * power, power / power.sum(-1, keepdim=True), centered


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [(200, 24), (129, 7), (3, 100, 31)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_that_take_the_place_of_what_was_read(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, y = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    agree(overwriting, x)
    agree(two_inputs, x, y)
