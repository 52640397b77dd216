"""Pooling as generated kernels: the largest and the average of windows, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
import fusec.lower.pooling.backward
from support.compare import difference
from support.interpreted import Interpreted

Function = Callable[..., Any]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SHAPES = {1: (2, 3, 37), 2: (2, 3, 11, 14), 3: (2, 2, 7, 6, 9)}
MAX: dict[int, Function] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE: dict[int, Function] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE_MAX: dict[int, Function] = {
    1: F.adaptive_max_pool1d,
    2: F.adaptive_max_pool2d,
    3: F.adaptive_max_pool3d,
}
ADAPTIVE: dict[int, Function] = {
    1: F.adaptive_avg_pool1d,
    2: F.adaptive_avg_pool2d,
    3: F.adaptive_avg_pool3d,
}
# kernel, stride, padding, dilation, ceil_mode; a tuple is cut to the number of dimensions
WINDOWS: dict[str, tuple[Any, Any, Any, Any, bool]] = {
    "side by side": (2, None, 0, 1, False),
    "overlapping": (3, 2, 1, 1, False),
    "the last one cut off": (3, 2, 1, 1, True),
    "every element": (3, 1, 1, 1, False),
    "with holes": (3, 1, 1, 2, False),
    "holes and steps": (2, 3, 1, 3, True),
    "gaps between": (1, 3, 0, 1, False),
    "unequal sides": ((2, 3, 4), (1, 2, 3), (0, 1, 2), (1, 2, 1), True),
    "large": (6, (2, 3, 1), 3, 1, True),
}
SHARES: dict[str, tuple[int, ...]] = {
    "one": (1, 1, 1),
    "unequal shares": (3, 4, 5),
    "more than there are": (13, 17, 11),
    "equal in one dimension": (11, 7, 3),
}


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fallback to eager."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def compiled(function: Function, *args: Any, **options: Any) -> Any:
    """Return what the compiled function returns, having made sure that kernels compute it."""
    torch._dynamo.reset()
    built = fusec.compile(function, **options)
    result = built(*args)
    assert not any(graph.externs for graph in built.graphs)
    assert len(built.graphs) == 1
    return result


def check(function: Function, *args: Any, **options: Any) -> None:
    problem = difference(compiled(function, *args, **options), function(*args))
    assert not problem, problem


def check_gradients(run: Callable[[Function], Function], function: Function, *args: Any) -> None:
    """Compare gradients of all arguments, of one number made from all results."""
    given = [[a.detach().clone().requires_grad_() for a in args] for _ in range(2)]
    grads = []
    for chosen, inputs in zip((run(function), function), given, strict=True):
        results = chosen(*inputs)
        total = sum((r * torch.arange(r.numel()).reshape(r.shape)).sum() for r in results)
        grads.append(torch.autograd.grad(total, inputs))
    assert not difference(*grads), difference(*grads)


def strictly(function: Function) -> Function:
    """Return the compiled function, which fails at an operator that is left to ATen."""
    torch._dynamo.reset()
    built = fusec.compile(function)

    def run(*args: Any) -> Any:
        result = built(*args)
        assert not any(graph.externs for graph in built.graphs)
        return result

    return run


def values(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    if dtype.is_floating_point:
        # quarters, many of them equal: the first of the largest is chosen
        return (torch.randn(shape, generator=generator) * 4).round().div(4).to(dtype)
    low = 0 if dtype == torch.uint8 else -9
    return torch.randint(low, 9, shape, generator=generator).to(dtype)


def cut(value: Any, n: int) -> Any:
    return value[:n] if isinstance(value, tuple) else value


def largest(n: int, windows: str, x: torch.Tensor) -> Any:
    kernel, stride, padding, dilation, ceil_mode = (cut(v, n) for v in WINDOWS[windows])
    return MAX[n](x, kernel, stride, padding, dilation, ceil_mode, return_indices=True)


def averages(n: int, windows: str, x: torch.Tensor) -> list[torch.Tensor]:
    kernel, stride, padding, _, ceil_mode = (cut(v, n) for v in WINDOWS[windows])
    if isinstance(padding, tuple):
        padding = tuple(min(p, k // 2) for p, k in zip(padding, kernel, strict=True))
    else:
        padding = min(padding, kernel // 2)
    return [AVERAGE[n](x, kernel, stride, padding, ceil_mode, whole) for whole in (True, False)]


# -- forward --------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("n", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_windows(n: int, windows: str) -> None:
    x = values(SHAPES[n])

    def everything(x: torch.Tensor) -> Any:
        return [(largest(n, windows, each), averages(n, windows, each)) for each in (x, x[1])]

    check(everything, x)


@pytest.mark.sample(3)
@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_shares(n: int, shares: str) -> None:
    x, size = values(SHAPES[n]), SHARES[shares][:n]

    def everything(x: torch.Tensor) -> Any:
        both = [(ADAPTIVE[n](each, size), ADAPTIVE_MAX[n](each, size, True)) for each in (x, x[1])]
        return both

    check(everything, x)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.int8, torch.uint8])
def test_dtypes(dtype: torch.dtype) -> None:
    x = values((2, 3, 9, 11), dtype)

    def everything(x: torch.Tensor) -> Any:
        results = [largest(2, name, x) for name in ("overlapping", "large")]
        if x.dtype.is_floating_point:
            results += [F.adaptive_max_pool2d(x, 4, return_indices=True)]
            results += [F.adaptive_avg_pool2d(x, 4), F.adaptive_avg_pool2d(x, (1, 2))]
        if x.dtype.is_floating_point or x.dtype == torch.int64:
            results += averages(2, "the last one cut off", x) + averages(2, "large", x)
            results += [F.avg_pool2d(x, 3, divisor_override=2)]
        return results

    check(everything, x)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_special_values(dtype: torch.dtype) -> None:
    x = values((5, 1, 9, 9)).to(dtype)
    x[0, 0, 2, 2], x[0, 0, 3, 1], x[0, 0, 7, 7] = math.nan, math.nan, math.inf
    x[1] = -math.inf
    x[2] = math.nan
    x[3, 0, 4:] = -math.inf
    x[4] = torch.where(x[4] > 0, 0.0, -0.0)

    def everything(x: torch.Tensor) -> Any:
        found = [largest(2, name, x) for name in ("overlapping", "every element", "large")]
        return found, F.adaptive_max_pool2d(x, (2, 4), return_indices=True), averages(2, "large", x)

    check(everything, x)


def test_integers_may_be_the_lowest_there_is() -> None:
    for dtype in (torch.int64, torch.int8):
        x = torch.full((1, 6, 6), torch.iinfo(dtype).min, dtype=dtype)
        check(lambda x: (largest(2, "overlapping", x), largest(2, "large", x)), x)


def test_a_window_in_the_padding_alone() -> None:
    check(lambda x: F.max_pool2d(x, 2, 1, 1, 2, return_indices=True), torch.ones(1, 1, 1, 1))


def test_nothing() -> None:
    def everything(x: torch.Tensor) -> Any:
        pooled = largest(2, "overlapping", x), averages(2, "overlapping", x)
        return pooled, F.adaptive_avg_pool2d(x, (3, 4)), F.adaptive_max_pool2d(x, 5, True)

    check(everything, torch.ones(0, 3, 8, 9))
    check(lambda x: F.adaptive_avg_pool2d(x, (0, 2)), torch.ones(2, 3, 8, 9))
    empty = torch.ones(0, 3, 8, 9)
    check_gradients(strictly, lambda x: [largest(2, "overlapping", x)[0]], empty)
    check_gradients(strictly, lambda x: averages(2, "overlapping", x), empty)


def test_layouts() -> None:
    x = values((2, 8, 12, 10))
    for given in (x.contiguous(memory_format=torch.channels_last), x[:, ::2, 1:, ::3], x.mT):
        got = compiled(lambda x: largest(2, "overlapping", x * 2), given)
        wanted = largest(2, "overlapping", given * 2)
        assert not difference(got, wanted), difference(got, wanted)
        assert got[0].stride() == wanted[0].stride()
        check(lambda x: (averages(2, "overlapping", x), F.adaptive_avg_pool2d(x, (5, 3))), given)


@pytest.mark.sample(1)
@pytest.mark.parametrize("n", [1, 2])
def test_symbolic_sizes(n: int) -> None:
    def everything(x: torch.Tensor) -> Any:
        found = [largest(n, name, x) for name in ("side by side", "the last one cut off")]
        return found, averages(n, "overlapping", x), ADAPTIVE[n](x, 1), ADAPTIVE_MAX[n](x, 1)

    built = fusec.compile(everything, dynamic=True)
    for shape in ((2, 3, 9, 12), (3, 5, 16, 21), (2, 4, 7, 8)):
        x = values(shape[: n + 2])
        problem = difference(built(x), everything(x))
        assert not problem, problem
    assert not any(graph.externs for graph in built.graphs)


@pytest.mark.triton
def test_triton() -> None:
    x = values((1, 2, 9, 8))

    def everything(x: torch.Tensor) -> Any:
        found = [largest(2, name, x) for name in ("overlapping", "large")]
        return found, averages(2, "overlapping", x), F.adaptive_max_pool2d(x, (4, 3), True)

    check(everything, x, target="triton")


# -- fusion ---------------------------------------------------------------------------------------

FUSED: dict[str, tuple[Function, int]] = {
    "one kernel for both results": (lambda x: largest(2, "overlapping", x), 1),
    "pointwise before and after": (lambda x: F.max_pool2d(x.relu(), 3, 2, 1) * 2, 1),
    "after an average": (lambda x: F.avg_pool2d(x + 1, 2).tanh(), 1),
    "a large window": (lambda x: F.adaptive_avg_pool2d(x.exp(), 1).flatten(1) * 2, 1),
    "two of one": (lambda x: (F.avg_pool2d(x, 3, 1, 1), F.max_pool2d(x, 3, 1, 1)), 1),
    "windows": (lambda x: x.unfold(2, 4, 2).sum(-1), 1),
}


@pytest.mark.parametrize("name", FUSED)
def test_fusion(name: str) -> None:
    function, kernels = FUSED[name]
    built = fusec.compile(function)
    x = values((2, 4, 12, 12))
    assert not difference(built(x), function(x))
    assert len(built.kernels) == kernels


def test_indices_that_nobody_reads_are_not_written() -> None:
    backend = Interpreted()
    torch.compile(lambda x: F.max_pool2d(x, 2), backend=backend)(values((1, 2, 8, 8)))
    (step,) = backend.schedules[0].program.steps
    assert len(step.writes()) == 1


# -- backward -------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("n", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_gradients_of_windows(n: int, windows: str) -> None:
    x = values(SHAPES[n], torch.float64)

    def everything(x: torch.Tensor) -> Any:
        return [largest(n, windows, x)[0], *averages(n, windows, x)]

    check_gradients(strictly, everything, x)


@pytest.mark.sample(2)
@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients_of_shares(n: int, shares: str) -> None:
    x, size = values(SHAPES[n], torch.float64), SHARES[shares][:n]
    check_gradients(strictly, lambda x: [ADAPTIVE[n](x, size), ADAPTIVE_MAX[n](x, size)], x)


@pytest.mark.sample(4)
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_gathered_gradients(n: int, windows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kernels in Triton have them, for which `fusec.compile` would take the longer."""
    monkeypatch.setattr(fusec.lower.pooling.backward, "_is_sparse", lambda *_: False)
    x, size = values(SHAPES[n], torch.float64), SHARES["unequal shares"][:n]

    def interpreted(function: Function) -> Function:
        torch._dynamo.reset()
        return torch.compile(function, backend=Interpreted(fuse=False))

    check_gradients(interpreted, lambda x: [largest(n, windows, x)[0]], x)
    check_gradients(interpreted, lambda x: [ADAPTIVE_MAX[n](x, size)], x)


@pytest.mark.triton
def test_gradients_in_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    x = values((1, 2, 7, 8), torch.float64)

    def in_triton(function: Function) -> Function:
        torch._dynamo.reset()
        return fusec.compile(function, target="triton")

    check_gradients(in_triton, lambda x: [largest(2, "overlapping", x)[0]], x)
    check_gradients(in_triton, lambda x: averages(2, "overlapping", x), x)
    check_gradients(in_triton, lambda x: [F.max_pool2d(x, 5, 1, 2)], x)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_summed_in_float32(dtype: torch.dtype) -> None:
    """A constant input: one element of a window of many has all of their gradients."""
    x = torch.ones(1, 1, 20, 20, dtype=dtype)
    for kernel, stride in ((5, 1), (4, 1), (8, 2)):
        exact = x.double().requires_grad_()
        F.max_pool2d(exact, kernel, stride, kernel // 2).sum().backward()
        given = x.clone().requires_grad_()
        torch._dynamo.reset()
        built = fusec.compile(lambda x, k=kernel, s=stride: F.max_pool2d(x, k, s, k // 2))
        built(given).sum().backward()
        assert exact.grad is not None
        assert not difference(given.grad, exact.grad.to(dtype))


UNEQUAL: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]] = [
    *(((2, 3, 30, 30), (7, 7), dtype) for dtype in FLOATS),
    ((1, 2, 5, 9), (7, 4), torch.float32),
    ((2, 2, 7, 10, 9), (3, 4, 5), torch.float32),
    ((3, 11, 14), (4, 4), torch.float32),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("shape", "count", "dtype"), UNEQUAL)
def test_windows_of_unequal_sizes(
    shape: tuple[int, ...], count: tuple[int, ...], dtype: torch.dtype
) -> None:
    """A dimension at a time, forward and backward; a sum of -0.0 alone is 0.0."""
    pool = ADAPTIVE[len(count)]
    x = torch.randn(*shape).to(dtype)
    x[0] = -0.0
    leaf = x.detach().requires_grad_()
    got, want = fusec.compile(lambda x: pool(x, count))(leaf), pool(leaf, count)
    assert got.stride() == want.stride()
    assert torch.equal(got.signbit(), want.signbit())
    gradient = torch.randn_like(want)
    (ours,) = torch.autograd.grad(got, leaf, gradient)
    (theirs,) = torch.autograd.grad(want, leaf, gradient)
    wide = x.double().requires_grad_()
    exact = pool(wide, count)
    (slope,) = torch.autograd.grad(exact, wide, gradient.double())
    eps = torch.finfo(dtype).eps
    for mine, eager, right in ((got, want, exact), (ours, theirs, slope)):
        allowed = (eager.double() - right).abs().amax() + 4 * eps * (1 + right.abs())
        assert ((mine.double() - right).abs() <= allowed).all()


def test_gradients_of_padding() -> None:
    cases: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((2, 3, 7), (2, 1)),
        ((3, 7), (0, 3)),
        ((2, 3, 5, 7), (1, 2, 2, 0)),
        ((3, 5, 7), (5, 4, 3, 6)),
        ((3, 5, 7), (-1, 2, 1, -2)),
        ((1, 2, 1, 3, 4), (1, 1, 1, 1, 2, 2)),
    ]
    for shape, widths in cases:
        x = values(shape, torch.float64)
        check_gradients(strictly, lambda x, w=widths: [F.pad(x, w, "replicate")], x)


# -- windows as a view ----------------------------------------------------------------------------


def test_unfold() -> None:
    x = values((4, 9, 11))
    check(lambda x: (x.unfold(1, 3, 2) + 1, x.unfold(-1, 4, 1).unfold(0, 2, 2) * 2), x)
    check(lambda x: (x * 2).unfold(2, 11, 5).sum(-1), x.mT.contiguous().mT)
    check(lambda x: x.unfold(0, 1, 1) + 1, torch.tensor(2.0))
    got = compiled(lambda x: x.unfold(1, 3, 2), x)
    assert got.stride() == x.unfold(1, 3, 2).stride()
    check_gradients(strictly, lambda x: [x.unfold(1, 3, 2).exp()], x.double())
