"""lgamma and erfinv of C++ kernels against arbitrary precision, and at their ends eager's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from fusec.machine import this_machine
from fusec.targets.cpp.mathlib import expand, helper_sources
from fusec.toolchain.build import build
from fusec.toolchain.loading import load

FUSED = this_machine().isa != "sse2"
Array = np.ndarray[Any, Any]
Run = Callable[[str, torch.Tensor], torch.Tensor]
REAL = ("f32", "f64")
DTYPES = {"f32": torch.float32, "f64": torch.float64}
# fmt: off
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.0, -2.0, 2.5, 3.0, -3.0, 7.0, -7.0, 1e-40, -1e-40,
    0.99999994, 1.0000001, 1e20, -1e20, 1e38, -1e38, float("inf"), -float("inf"), float("nan"),
    5e-324, -5e-324, 1e300, -1e300,
]
# fmt: on
LOOP = """\
#include <stdint.h>
{helpers}
extern "C" int {name}_{kind}(const {c}* __restrict__ x, {c}* __restrict__ out, int64_t n)
{{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = fx_{name}(x[i]);
    return 0;
}}
"""


@pytest.fixture(scope="module")
def run() -> Run:
    loops = {}
    for name, kind in (*((name, kind) for name in ("lgamma", "erfinv") for kind in REAL),):
        c = "float" if kind == "f32" else "double"
        helpers = helper_sources([f"{name}.{kind}"], fused=FUSED)
        path = build(LOOP.format(helpers=helpers, name=name, kind=kind, c=c))
        loops[f"{name}_{kind}"] = load(path, f"{name}_{kind}")

    def call(name: str, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, out)]
        assert loops[name](*pointers, ctypes.c_int64(x.numel())) == 0
        return out

    return call


def assert_same(got: torch.Tensor, want: torch.Tensor, rtol: float) -> None:
    """Equal, NaN and the sign of zero included."""
    torch.testing.assert_close(got, want, rtol=rtol, atol=0, equal_nan=True)
    number = ~want.isnan()
    assert torch.equal(got.signbit()[number], want.signbit()[number])


def lgamma_exact(x: float) -> mpmath.mpf:
    if x > 0:
        return mpmath.loggamma(x)
    return mpmath.log(abs(mpmath.pi / mpmath.sinpi(x))) - mpmath.loggamma(1 - mpmath.mpf(x))


def lgamma_samples(kind: str) -> Array:
    """All regions and what is between them, near poles, near zeros, all magnitudes."""
    rng = np.random.default_rng(7)
    bits, least, most = (23, -126, 120) if kind == "f32" else (52, -1022, 1010)
    ranges = [(0, 0.5), (0.5, 1.5), (1.5, 2.5), (2.5, 9), (8, 100), (-0.6, 0), (-3, -0.4)]
    ranges += [(-9, -2), (-50, -8)]
    parts = [rng.uniform(low, high, 200) for low, high in ranges]
    near = rng.choice([-1, 1], 200) * 2.0 ** -rng.uniform(1, bits, 200)
    parts += [1 + near, 2 + near, -rng.integers(1, 30, 200) + near / 4]
    parts += [2.0 ** rng.uniform(least, most, 200), -(2.0 ** rng.uniform(least, 0, 200))]
    zeros = [-2.4570247382208, -2.7476826467274, -3.1435808883499, -3.9552942848585]
    parts += [zero + near[:50] * 2.0**-10 for zero in zeros]
    x = np.concatenate(parts).astype(np.float32 if kind == "f32" else np.float64)
    return x[(x > 0) | (x != np.floor(x))]


@pytest.mark.parametrize("kind", REAL)
def test_lgamma(kind: str, run: Run) -> None:
    """Relative errors; below -2, where it crosses 0, also what two terms that cancel have."""
    x = lgamma_samples(kind)
    got = run(f"lgamma_{kind}", torch.from_numpy(x)).numpy()
    helper = expand(f"lgamma.{kind}")[0]
    declared = float(helper.accuracy.removesuffix(" ulp"))
    digits, least, terms = (24, -126, 2.0**-42) if kind == "f32" else (53, -1022, 2.0**-51)
    with mpmath.workdps(40):
        for value, result in zip(x.tolist(), got.tolist(), strict=True):
            exact = lgamma_exact(value)
            size = max(int(mpmath.floor(mpmath.log(abs(exact), 2))), least)
            limit = declared * mpmath.mpf(2) ** (size - digits + 1)
            limit += terms * max(1, mpmath.loggamma(-value)) if value < -2 else 0
            assert abs(mpmath.mpf(result) - exact) <= limit, (value, result, float(exact))


@pytest.mark.parametrize("kind", REAL)
def test_lgamma_of_what_is_special(kind: str, run: Run) -> None:
    """Poles, infinities, NaN, the ends of the range: as eager."""
    # fmt: off
    x = [
        *SPECIAL, -4.0, -100.0, -8388607.5, -8388608.0, 8.0, -8.0, -8.5, 1e-310, -1e-310, 2.5e305,
        1.7e308, -4503599627370495.5, -4503599627370496.0, -2251799813685247.75, -1e15, 3.4e36,
    ]
    # fmt: on
    given = torch.tensor(x, dtype=torch.float64).to(DTYPES[kind])
    rtol = 2e-7 if kind == "f32" else 1e-15
    assert_same(run(f"lgamma_{kind}", given), torch.lgamma(given), rtol=rtol)


@pytest.mark.parametrize("kind", REAL)
def test_erfinv_at_its_ends(kind: str, run: Run) -> None:
    """Infinite at 1, NaN beyond, the sign of zero and subnormal numbers kept: as eager."""
    near = [1 - 2.0**-24, 2.0**-24 - 1, 1 - 2.0**-23, 1.0000001, -1.0000001]
    near += [1 - 2.0**-53, 2.0**-53 - 1, 1 + 2.0**-52, 0.8, -0.8, 0.8 + 2.0**-53]
    given = torch.tensor([*SPECIAL, *near], dtype=torch.float64).to(DTYPES[kind])
    rtol = 3e-7 if kind == "f32" else 6e-16
    assert_same(run(f"erfinv_{kind}", given), torch.erfinv(given), rtol=rtol)


def test_double_erfinv(run: Run) -> None:
    """Within what it declares, on both sides of where its two formulas meet."""
    rng = np.random.default_rng(8)
    parts = [rng.uniform(0, 1, 400), rng.uniform(0.79, 0.82, 400), 2.0 ** -rng.uniform(0, 60, 200)]
    parts += [1 - 2.0 ** -rng.uniform(1, 53, 400), 2.0 ** rng.uniform(-1022, -60, 100)]
    x = np.concatenate(parts)
    x = x[x < 1]
    got = run("erfinv_f64", torch.from_numpy(x)).numpy()
    (helper,) = expand("erfinv.f64")
    declared = float((helper.accuracy if FUSED else helper.rounded).removesuffix(" ulp"))
    with mpmath.workdps(50):
        root = mpmath.sqrt(mpmath.pi) / 2
        for value, result in zip(x.tolist(), got.tolist(), strict=True):
            y, guess = mpmath.mpf(value), mpmath.mpf(result)
            # one step of Newton's method from what is right to 50 bits
            exact = guess + ((1 - y) * -1 + mpmath.erfc(guess)) * root * mpmath.exp(guess**2)
            size = max(int(mpmath.floor(mpmath.log(exact, 2))), -1022)
            assert abs(guess - exact) <= declared * mpmath.mpf(2) ** (size - 52), value
