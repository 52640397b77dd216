"""Special functions as generated kernels: values, zeros, infinities and NaN as in eager."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import special

import fusec
from support.compare import difference
from support.interpreted import Interpreted

Function = Callable[..., Any]
F64 = torch.float64


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fallback to eager."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def compiled(function: Function, *args: Any, **options: Any) -> Any:
    """Return what the compiled function returns, having made sure that kernels compute it."""
    built = fusec.compile(function, **options)
    result = built(*args)
    assert built.kernels
    assert not any(graph.externs for graph in built.graphs)
    return result


FUNCTIONS: dict[str, Function] = {
    "i0": torch.i0,
    "i0e": special.i0e,
    "i1": special.i1,
    "i1e": special.i1e,
    "modified_bessel_i0": special.modified_bessel_i0,
    "modified_bessel_i1": special.modified_bessel_i1,
    "modified_bessel_k0": special.modified_bessel_k0,
    "modified_bessel_k1": special.modified_bessel_k1,
    "scaled_modified_bessel_k0": special.scaled_modified_bessel_k0,
    "scaled_modified_bessel_k1": special.scaled_modified_bessel_k1,
    "bessel_j0": special.bessel_j0,
    "bessel_j1": special.bessel_j1,
    "bessel_y0": special.bessel_y0,
    "bessel_y1": special.bessel_y1,
    "spherical_bessel_j0": special.spherical_bessel_j0,
    "airy_ai": special.airy_ai,
    "erfcx": special.erfcx,
    "ndtri": special.ndtri,
    "log_ndtr": special.log_ndtr,
    "angle": torch.angle,
    "digamma": lambda x: torch.polygamma(0, x),
    "trigamma": lambda x: torch.polygamma(1, x),
    "polygamma 2": lambda x: torch.polygamma(2, x),
    "polygamma 3": lambda x: torch.polygamma(3, x),
    "polygamma 6": lambda x: torch.polygamma(6, x),
    "zeta of 1": lambda x: special.zeta(1.0, x),
    "zeta of 2": lambda x: special.zeta(2.0, x),
    "zeta of 3": lambda x: special.zeta(3, x),
    "zeta of 2.5": lambda x: special.zeta(2.5, x),
    "zeta at 1.5": lambda x: special.zeta(x, 1.5),
    "zeta at -2.25": lambda x: special.zeta(x, -2.25),
}
# Where a function passes zero, it is as exact as its terms: errors count on their scale there.
SCALES = dict.fromkeys(("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai"), 1.0)
SCALES |= {"digamma": 1.0, "polygamma 2": 2.0, "polygamma 6": 1e5, "zeta of 3": 1.0}
ULPS = 16
HALVES = ("i0", "i0e", "i1", "i1e", "angle", "digamma", "trigamma", "polygamma 2")


def grid(dtype: torch.dtype) -> torch.Tensor:
    """Return values of every kind: both zeros, the tiniest, the cases' limits, infinities, NaN."""
    values = [0.0, -0.0, math.inf, -math.inf, math.nan]
    sizes = (5e-324, 1e-45, 1e-38, 1e-10, 1e10, 3e38, 1e78, 1e300)
    values += [sign * size for size in sizes for sign in (1, -1)]
    values += [k / 8 for k in range(-130, 250)]
    values += [1e-5, 9e-6, 2.09, -2.09, 5.001, 8.001, 8.33, 103.8, 104.0, 50.1, -6.1, -26.7, -26.8]
    values += [1e-15, 1e-14, 0.1353, 0.1354, 0.8646, 0.8647, 1 - 1e-7, 88.0, 90.0, 700.0, 715.0]
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def problems(
    name: str, x: torch.Tensor, got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor
) -> Iterator[str]:
    """Yield where a result is neither eager's, to some units, nor as near to ``exact``."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    same = (got == want) & ((got != 0) | (got.signbit() == want.signbit()))
    same |= got.isnan() & want.isnan()
    unit = torch.finfo(got.dtype).eps * want.abs().clamp(min=SCALES.get(name, 0.0)).double()
    unit += torch.finfo(got.dtype).tiny
    errors = [(each.double() - exact.double()).abs() for each in (got, want)]
    near = (got.double() - want.double()).abs() <= ULPS * unit
    near |= (errors[0] <= 2 * errors[1] + unit) & got.isfinite() & want.isfinite()
    for at in (~(same | near)).nonzero().flatten().tolist():
        yield f"{name}({x[at].item()!r}) is {got[at].item()!r}, in eager {want[at].item()!r}"


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str, dtype: torch.dtype) -> None:
    function, x = FUNCTIONS[name], grid(dtype)
    got = compiled(function, x)
    assert not list(problems(name, x, got, function(x), function(x.double())))


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_integers(name: str) -> None:
    function = FUNCTIONS[name]
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        torch._dynamo.reset()
        x = torch.arange(-9, 60).to(dtype)
        want = function(x)
        assert not list(problems(name, x, compiled(function, x), want, function(x.double())))


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", HALVES)
def test_halves(name: str) -> None:
    function = FUNCTIONS[name]
    for dtype in (torch.bfloat16, torch.float16):
        torch._dynamo.reset()
        x = torch.linspace(-9.3, 9.3, 200).to(dtype)
        problem = difference(compiled(function, x), function(x))
        assert not problem, problem


@pytest.mark.triton
@pytest.mark.sample(5)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_triton(name: str) -> None:
    function, x = FUNCTIONS[name], grid(torch.float32)[::5]
    got = compiled(function, x, target="triton")
    assert not list(problems(name, x, got, function(x), function(x.double())))


@pytest.mark.slow
def test_zeta_of_tensors() -> None:
    s = torch.tensor([-2.0, 0.5, 1.0, 1.25, 2.0, 3.0, 7.5, 40.0, 300.0, math.inf, math.nan])
    q = torch.tensor([-math.inf, -30.25, -4.0, -2.5, -0.75, -1e-9, -0.0, 0.0, 1e-9, 0.5, 1.0])
    q = torch.cat([q, torch.tensor([2.0, 9.0, 1e3, 1e9, 1e30, math.inf, math.nan])])
    for dtype in (torch.float32, torch.float64):
        torch._dynamo.reset()
        given = [t.to(dtype) for t in torch.meshgrid(s, q, indexing="ij")]
        got, want = compiled(special.zeta, *given), special.zeta(*given)
        exact = special.zeta(*(t.double() for t in given))
        flat = [t.flatten() for t in (got, want, exact)]
        assert not list(problems("zeta of 3", given[1].flatten(), *flat))


def test_a_high_order_has_its_poles_and_signs() -> None:
    x = grid(torch.float64)
    x = x[(x % 1 != 0.5) | (x > 0)]  # where terms cancel, eager has noise
    for order in (5, 20, 40, 100):
        torch._dynamo.reset()
        got = compiled(lambda x, n=order: torch.polygamma(n, x), x)
        want = torch.polygamma(order, x)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=0, equal_nan=True)


def assert_equal_signs(got: torch.Tensor, want: torch.Tensor) -> None:
    """Of zeros too, but not of NaN: eager's is that of the processor's instruction.

    As bfloat16 eager writes a NaN as 0xffff where it takes vectors and as 0x7fc0 where not.
    """
    number = ~want.isnan()
    assert torch.equal(got.signbit()[number], want.signbit()[number])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_frexp(dtype: torch.dtype) -> None:
    powers = torch.arange(-1080, 1030, dtype=torch.float64).exp2()
    x = torch.cat([grid(torch.float64), powers, -0.75 * powers, powers * (2 - 2**-52)]).to(dtype)
    got, want = compiled(torch.frexp, x), torch.frexp(x)
    assert torch.equal(got[1], want[1])
    assert torch.equal(got[0].nan_to_num(7.0), want[0].nan_to_num(7.0))
    assert_equal_signs(got[0], want[0])


def test_ldexp_is_exact() -> None:
    exponents = torch.tensor([*range(-2200, 2201, 40), *range(-160, 160, 7), 2**31 + 5, -(2**40)])
    mantissas = torch.tensor([1.0, -1.75, 1 + 2**-23, 0.0, -0.0, math.inf, math.nan], dtype=F64)
    scales = torch.tensor([-1060.0, -1000.0, -140.0, -100.0, -30.0, 0.0, 100.0, 1000.0], dtype=F64)
    values = (mantissas * scales.exp2()[:, None]).flatten()[:, None]
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        torch._dynamo.reset()
        x, other = torch.broadcast_tensors(values.to(dtype), exponents)
        got, want = compiled(torch.ldexp, x, other), torch.ldexp(x, other)
        assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))
        assert_equal_signs(got, want)


def test_types_of_ldexp() -> None:
    exponents = torch.arange(-160, 160, 3)
    single, double = torch.randn(107), torch.randn(107, dtype=F64)
    for x, other in (
        (double, exponents * 7.0),
        (single, exponents / 7),
        (single.half(), exponents.half()),
        (single.bfloat16(), exponents.to(torch.int8)),
        (exponents, exponents),
        (exponents > 0, exponents.double()),
        (torch.tensor(3.0), exponents),
        (double, torch.tensor(-3)),
    ):
        torch._dynamo.reset()
        wanted = torch.ldexp(x, other)
        torch.testing.assert_close(compiled(torch.ldexp, x, other), wanted, rtol=3e-7, atol=0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("decimals", [-2, -1, 0, 1, 3, 5])
def test_round_to_decimals(decimals: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        torch._dynamo.reset()
        x = torch.cat([grid(torch.float64), torch.randn(300, dtype=torch.float64) * 50]).to(dtype)
        got, want = compiled(lambda x: x.round(decimals=decimals), x), x.round(decimals=decimals)
        assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))
        assert torch.equal(got.isnan(), want.isnan())


WHOLE = (torch.int32, torch.int16, torch.int8, torch.uint8)


@pytest.mark.parametrize("name", ["gcd", "lcm"])
def test_common_divisors(name: str) -> None:
    function = getattr(torch, name)
    for dtype in WHOLE:
        torch._dynamo.reset()
        limits = torch.iinfo(dtype)
        # not the least one, whose remainder by -1 ends eager's process
        special_values = torch.tensor([limits.min + 1, limits.max, 0, 1, 2, 12, 18, 60, 89, 144])
        x, y = torch.meshgrid(special_values, special_values, indexing="ij")
        wide = [torch.randint(limits.min + 1, limits.max, (500,)) for _ in range(2)]
        # neighbors in Fibonacci's sequence need the most steps
        fibonacci = [1, 1]
        while sum(fibonacci[-2:]) <= limits.max:
            fibonacci.append(sum(fibonacci[-2:]))
        pair = torch.tensor(fibonacci)
        x = torch.cat([x.flatten(), wide[0], pair[1:], pair[:-1]]).to(dtype)
        y = torch.cat([y.flatten(), wide[1], pair[:-1], pair[1:]]).to(dtype)
        assert torch.equal(compiled(function, x, y), function(x, y))


def test_powers_of_integers() -> None:
    for dtype in (torch.int64, *WHOLE):
        torch._dynamo.reset()
        low = 0 if dtype == torch.uint8 else -4
        x, y = torch.meshgrid(torch.arange(low, 9), torch.arange(low, 40), indexing="ij")
        x, y = x.to(dtype), y.to(dtype)
        assert torch.equal(compiled(torch.pow, x, y), torch.pow(x, y))
        assert torch.equal(compiled(lambda y: 3**y, y), 3**y)


def test_logsumexp_of_integers() -> None:
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        torch._dynamo.reset()
        x = torch.randint(0, 100, (7, 33)).to(dtype)
        problem = difference(compiled(lambda x: x.logsumexp(1), x), x.logsumexp(1))
        assert not problem, problem


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["i0", "i0e", "i1", "i1e", "erfcx", "log_ndtr", "trigamma"])
def test_backward(name: str) -> None:
    function = FUNCTIONS[name]
    x = torch.linspace(-3.3, 4.2, 60, dtype=torch.float64)
    given = [x.clone().requires_grad_() for _ in range(2)]
    for f, g in zip((fusec.compile(function), function), given, strict=True):
        f(g).sum().backward()
    assert not difference(given[0].grad, given[1].grad)


def test_they_fuse() -> None:
    backend = Interpreted()
    x = torch.rand(6, 50) * 3 + 0.2
    function = lambda x: (special.i0e(x * 2) + torch.polygamma(2, x)).sum(1)  # noqa: E731
    problem = difference(torch.compile(function, backend=backend)(x), function(x))
    assert not problem, problem
    assert backend.kernel_count == 1
