"""Running sums by vectors: as near to float64 as eager's, the same where numbers are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch

import fusec

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fallback to eager."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def special() -> torch.Tensor:
    """Return rows with infinities, NaN, subnormal numbers, signed zeros, sums out of range."""
    x = torch.randn(9, 700)
    x[0, 500] = torch.inf
    x[1, 10] = torch.nan
    x[2, 333], x[2, 600] = -torch.inf, torch.inf
    x[3] *= 1e-42
    x[4, 3:] = 3e38
    x[5] = -0.0
    return x


CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "whole lines": (lambda x: x.cumsum(-1), torch.randn(20, 1024)),
    "a rest": (lambda x: x.cumsum(-1), torch.randn(20, 1003)),
    "one row": (lambda x: x.cumsum(0), torch.randn(50_001)),
    "float16": (lambda x: x.cumsum(-1), torch.randn(5, 777).half()),
    "bfloat16": (lambda x: x.cumsum(-1), torch.randn(5, 777).bfloat16()),
    "computed": (lambda x: x.exp().cumsum(-1) * x, torch.randn(5, 300)),
    "read twice": (lambda x: x.cumsum(-1) - x, torch.randn(5, 300)),
    "the same value": (lambda x: x[:, :1].expand(-1, 300).cumsum(-1), torch.randn(5, 300)),
    "computed once": (lambda x: (x[:, :1].exp() + 0 * x).cumsum(-1), torch.randn(5, 300)),
    "two": (lambda x: (x + 1).cumsum(-1) / x.abs().cumsum(-1), torch.rand(5, 300) + 1),
    "one after the other": (lambda x: x.cumsum(-1).cumsum(-1), torch.rand(5, 300)),
    "strided": (lambda x: x[:, ::2].cumsum(-1), torch.randn(4, 1000)),
    "beside a sum": (lambda x: x.cumsum(-1) / x.sum(-1, keepdim=True), torch.rand(4, 1000)),
    "in place": (lambda x: (x + 0).cumsum_(-1), torch.rand(4, 1000)),
    "special": (lambda x: x.cumsum(-1), special()),
    "empty": (lambda x: x.cumsum(-1), torch.randn(0, 1000)),
    "empty rows": (lambda x: x.cumsum(-1), torch.randn(4, 0)),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", CASES)
def test_running_sums(name: str) -> None:
    function, x = CASES[name]
    built = fusec.compile(function)
    wanted, eager = function(x.double()), function(x)
    for _ in range(2):
        got = built(x)
        assert got.dtype == x.dtype
        for test in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(test(got), test(eager))
        numbers = eager.isfinite()
        scale = wanted.abs() + 1
        mine = (((got.double() - wanted) / scale)[numbers]).abs()
        theirs = (((eager.double() - wanted) / scale)[numbers]).abs()
        if mine.numel():
            # eager may have been lucky to a unit in the last place
            unit = torch.finfo(x.dtype).eps
            assert mine.max() <= max(1.5 * theirs.max().item(), unit)


def test_double_is_as_near_as_eager() -> None:
    x = torch.randn(50, 2000, dtype=F64)
    exact = numpy.cumsum(x.numpy().astype(numpy.longdouble), -1)

    def error(found: torch.Tensor) -> float:
        return float(abs(found.numpy() - exact).max())

    assert error(fusec.compile(lambda x: x.cumsum(-1))(x)) <= error(x.cumsum(-1))


@pytest.mark.parametrize("size", [300, 1000, 4097])
def test_with_a_size_that_changes(size: int) -> None:
    built = fusec.compile(lambda x: x.cumsum(-1), dynamic=True)
    for length in (size, size + 13, 3):
        x = torch.randn(6, length)
        torch.testing.assert_close(built(x), x.cumsum(-1), rtol=1e-6, atol=1e-5)


def test_written_where_it_is_read() -> None:
    def update(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum_(-1)

    x = torch.randn(30, 1000)
    y = x.clone()
    fusec.compile(update)(y)
    torch.testing.assert_close(y, x.cumsum(-1), rtol=1e-6, atol=1e-5)


def test_long_rows_go_by_vectors() -> None:
    built = fusec.compile(lambda x: x.cumsum(-1))
    built(torch.randn(20, 1000))
    (kernel,) = built.kernels.values()
    assert "running_sums(" in kernel.source
