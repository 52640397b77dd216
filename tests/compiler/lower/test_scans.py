"""Scans end to end: cumsum and its kin as generated kernels, forward and backward, as in eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from support.compare import difference
from support.interpreted import Interpreted

Function = Callable[..., Any]

SCANS: dict[str, Function] = {
    "cumsum": lambda x, dim: x.cumsum(dim),
    "cumprod": lambda x, dim: x.cumprod(dim),
    "cummax": lambda x, dim: tuple(x.cummax(dim)),
    "cummin": lambda x, dim: tuple(x.cummin(dim)),
    "logcumsumexp": lambda x, dim: x.logcumsumexp(dim),
}
# The others go the same ways as these.
SAMPLED = [
    name if name in ("cumsum", "cummax") else pytest.param(name, marks=pytest.mark.slow)
    for name in SCANS
]
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fallback to eager."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def compiled(function: Function, *args: Any) -> Any:
    """Return what the compiled function returns, having made sure that kernels compute it."""
    built = fusec.compile(function)
    result = built(*args)
    assert not any(graph.externs for graph in built.graphs)
    return result


def check(function: Function, *args: Any) -> None:
    problem = difference(compiled(function, *args), function(*args))
    assert not problem, problem


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point:
        # sixteenths: the sums of a few hundred are exact, whatever their order
        return (torch.randn(shape, generator=generator) * 16).round().div(16).to(dtype)
    return torch.randint(0, 9, shape, generator=generator).to(dtype)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SAMPLED)
def test_every_dtype_and_dimension(name: str) -> None:
    function = SCANS[name]

    def everywhere(x: torch.Tensor) -> Any:
        return function(x, 0), function(x, 1), function(x, -1)

    for dtype in FLOATS if name == "logcumsumexp" else FLOATS + WHOLE:
        torch._dynamo.reset()
        check(everywhere, values((3, 5, 17), dtype))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SCANS)
def test_special_values(name: str) -> None:
    x = values((6, 40), torch.float32)
    x[0, 5:9] = torch.tensor([0.0, -0.0, 0.0, -0.0])
    x[1] = -0.0
    x[2, 3], x[2, 9], x[2, 30] = math.nan, math.inf, math.nan
    x[3, 4], x[3, 8] = math.inf, -math.inf
    x[4, :5], x[4, 30] = -math.inf, math.inf
    x[5] = 1.0
    function = SCANS[name]
    for dim, given in ((1, x), (0, x.t().contiguous()), (1, x.t().contiguous().t()), (1, x[:, :1])):
        torch._dynamo.reset()
        wanted = function(given, dim)
        got = compiled(lambda x, dim=dim: function(x, dim), given)
        assert not difference(got, wanted), difference(got, wanted)
        first, second = (g if isinstance(g, torch.Tensor) else g[0] for g in (got, wanted))
        assert bool(((first.signbit() == second.signbit()) | second.isnan()).all()), "signs"


@pytest.mark.parametrize("name", SAMPLED)
def test_empty_scalar_and_strided(name: str) -> None:
    function = SCANS[name]
    x = values((6, 8), torch.float32)
    cases = [x[:0], x[:, :0], x[:, :1], x[::2, ::3], x.t(), x[:, :1].expand(6, 9)]
    for given in [*cases, torch.tensor(-0.0), torch.tensor(2.5)]:
        torch._dynamo.reset()
        check(lambda x: function(x, -1), given)


def test_dtype_argument() -> None:
    x = values((4, 30), torch.float32) * 4
    whole = values((4, 30), torch.int64) * 1000
    for given, dtype in (
        (x, torch.float64),
        (x, torch.bfloat16),
        (x, torch.int64),
        (whole, torch.int8),
        (whole, torch.int16),
        (whole, torch.uint8),
        (whole, torch.int32),
        (whole, torch.float32),
        (whole > 3000, torch.float16),
        (whole > 3000, torch.int32),
    ):
        torch._dynamo.reset()
        check(lambda x, t=dtype: (x.cumsum(1, dtype=t), (x * 0 + 1).cumprod(0, dtype=t)), given)


def test_a_bool_result_stays_with_aten() -> None:
    with pytest.raises(RuntimeError, match="not implemented for 'Bool'"):
        fusec.compile(lambda x: x.cumsum(0, dtype=torch.bool))(torch.ones(3))


def test_long_rows_are_as_accurate_as_eager() -> None:
    x = torch.rand(3, 100_000)
    for dim, given in ((1, x), (0, x.t().contiguous())):
        torch._dynamo.reset()
        exact = given.double().cumsum(dim)
        got = compiled(lambda x, dim=dim: x.cumsum(dim), given)
        error = ((got - exact) / exact).abs().max().item()
        assert error <= torch.finfo(torch.float32).eps


FUSED: dict[str, tuple[Function, int]] = {
    "pointwise before and after": (lambda x: (x.sin().cumsum(1) * 2).exp(), 1),
    "after a softmax": (lambda x: x.softmax(-1).cumsum(-1), 1),
    "before a sum": (lambda x: x.cumsum(1) / (1 + x.cumsum(1).abs().sum(1, keepdim=True)), 1),
    "siblings": (lambda x: (x.cumsum(1), x.cummax(1).values, x.cummin(1).indices, x.sum(1)), 1),
    "one after the other": (lambda x: x.cumsum(1).cummax(1).values.logcumsumexp(1), 1),
    "from the end": (lambda x: (x * 2).flip(1).cumsum(1).flip(1) + x, 1),
    "from the end, columns": (lambda x: x.flip(0).logcumsumexp(0).flip(0), 1),
    "position of the largest": (lambda x: (x.cumsum(1).argmax(1), x.cumsum(1).amax(1)), 1),
    "columns after columns": (lambda x: (x - x.mean(0)).cumsum(0).amax(0), 1),
    "differences": (lambda x: x.cumsum(1).diff(dim=1), 2),
    "rows, then columns": (lambda x: x.cumsum(0).cumsum(1), 2),
    "both ends": (lambda x: x.cumsum(1) + x.flip(1).cumsum(1).flip(1), 2),
    "one element": (lambda x: x.cumsum(1)[:, -1] * 2, 2),
    "other elements": (lambda x: torch.roll(x.cumsum(1), 1, 1), 2),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", FUSED)
def test_fusion(name: str) -> None:
    function, kernels = FUSED[name]
    backend = Interpreted()
    x = values((12, 12), torch.float32)  # a square: no size tells rows from columns
    problem = difference(torch.compile(function, backend=backend)(x), function(x))
    assert not problem, problem
    assert backend.kernel_count == kernels
    torch._dynamo.reset()
    built = fusec.compile(function)
    x = values((7, 33), torch.float32)
    problem = difference(built(x), function(x))
    assert not problem, problem
    assert len(built.kernels) == kernels


def test_a_refused_fusion_says_why() -> None:
    backend = Interpreted()
    torch.compile(lambda x: x.cumsum(0).cumsum(1), backend=backend)(torch.randn(5, 7))
    (schedule,) = backend.schedules
    reasons = [d.reason for d in schedule.decisions if not d.fused]
    assert reasons == ["one runs over 7, the other over 5"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SCANS)
def test_symbolic_sizes(name: str) -> None:
    function = SCANS[name]
    for dim in (0, 1):
        torch._dynamo.reset()
        built = fusec.compile(lambda x, dim=dim: function(x * 2, dim), dynamic=True)
        for shape in ((3, 9), (5, 70), (40, 4)):
            x = values(shape, torch.float32)
            problem = difference(built(x), function(x * 2, dim))
            assert not problem, problem


BACKWARD: dict[str, Function] = {
    "cumsum": lambda x: x.sin().cumsum(1) * x,
    "cumsum of columns": lambda x: (x.cumsum(0) * x).exp(),
    "cummax": lambda x: x.cummax(1).values * 2,
    "cummin": lambda x: x.cummin(0).values * x,
    "logcumsumexp": lambda x: x.logcumsumexp(1).sin(),
    "cumprod": lambda x: x.cumprod(1).sin(),
    "cumprod of columns": lambda x: x.cumprod(0),
    "normalized": lambda x: x.softmax(1).cumsum(1) ** 2,
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name: str) -> None:
    function = BACKWARD[name]
    x = values((5, 23), torch.float64, 3)
    x[1, 3] = 0
    weight = torch.randn(5, 23, dtype=torch.float64)
    given = [x.clone().requires_grad_() for _ in range(2)]
    results = [f(g) for f, g in zip((fusec.compile(function), function), given, strict=True)]
    assert not difference(results[0], results[1])
    for result in results:
        result.backward(weight)
    assert not difference(given[0].grad, given[1].grad)


def test_the_gradient_of_a_running_sum_is_one_kernel() -> None:
    backend = Interpreted()
    x = torch.randn(6, 40, requires_grad=True)
    torch.compile(lambda x: (x.cumsum(1) * 2).tanh(), backend=backend)(x).sum().backward()
    assert [len(s.program.steps) for s in backend.schedules] == [1, 1]
