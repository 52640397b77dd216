"""tan of C++ kernels against arbitrary precision, near its poles and zeros and where it is far."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import fusec
from fusec.targets.cpp.mathlib import expand, without_fma
from fusec.targets.cpp.plan import choices

Array = np.ndarray[Any, Any]
LIMITS = {"f32": 2.0**15, "f64": 2.0**20}
TYPES: dict[str, Any] = {"f32": np.float32, "f64": np.float64}


def samples(kind: str) -> Array:
    """Multiples of pi/2 and their neighbors, all sizes, and the limit of the quick form."""
    rng = np.random.default_rng(11)
    limit = LIMITS[kind]
    turns = np.concatenate([np.arange(1, 200), rng.integers(1, int(limit / 1.571), 1200)])
    with mpmath.workdps(40):
        near = np.array([float(int(turn) * mpmath.pi / 2) for turn in turns]).astype(TYPES[kind])
    zero, infinity = np.array([0, np.inf], dtype=near.dtype)
    parts = [near, np.nextafter(near, zero), np.nextafter(near, infinity)]
    parts += [rng.uniform(0, 4, 1000), rng.uniform(0, limit, 1000)]
    parts += [2.0 ** rng.uniform(-126 if kind == "f32" else -1022, 0, 300)]
    parts += [np.nextafter(np.array([limit], dtype=near.dtype), zero)]
    x = np.concatenate([part.astype(near.dtype) for part in parts])
    return np.concatenate([x, -x])


def worst_error(x: Array, got: Array, kind: str) -> tuple[float, float]:
    """Return the largest error in units of the last place, and where it is."""
    digits, least = (24, -126) if kind == "f32" else (53, -1022)
    errors = []
    with mpmath.workdps(360 if kind == "f64" else 90):
        for value, result in zip(x.tolist(), got.tolist(), strict=True):
            exact = mpmath.tan(mpmath.mpf(value))
            size = max(int(mpmath.floor(mpmath.log(abs(exact), 2))), least)
            errors.append(
                float(abs(mpmath.mpf(result) - exact) / mpmath.mpf(2) ** (size - digits + 1))
            )
    index = int(np.argmax(errors))
    return errors[index], x.tolist()[index]


def compiled_tan(x: Array) -> tuple[Array, str]:
    torch._dynamo.reset()
    compiled = fusec.compile(torch.tan)
    many = np.resize(x, 1 << 16)  # few are over before a second form would pay
    got = compiled(torch.from_numpy(many)).numpy()
    (kernel,) = compiled.kernels.values()
    return got[: len(x)], kernel.source


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_moderate_angles(kind: str) -> None:
    if kind == "f64" and not choices.has_fma():
        pytest.skip("the C library's there")
    x = samples(kind)
    got, source = compiled_tan(x)
    assert "fx_moderate_tan" in source
    helper = expand(f"moderate_tan.{kind}")[0]
    text = (helper if choices.has_fma() else without_fma(helper)).accuracy
    error, where = worst_error(x, got, kind)
    assert error <= float(text.removesuffix(" ulp")), (error, where)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_huge_angles(kind: str) -> None:
    """Up to the largest number, and with one of them among moderate ones."""
    rng = np.random.default_rng(12)
    top = 127.9 if kind == "f32" else 1023.9
    x = (rng.choice([-1, 1], 800) * 2.0 ** rng.uniform(14, top, 800)).astype(TYPES[kind])
    x = np.concatenate([x, samples(kind)[::7]])
    got, _ = compiled_tan(x)
    error, where = worst_error(x, got, kind)
    assert error <= 2, (error, where)


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("far", [False, True])
def test_what_is_special(kind: str, far: bool) -> None:
    """NaN, infinities, zeros of both signs, subnormal numbers: as eager."""
    tiny = [0.0, -0.0, 1e-40, -1e-40, 5e-324, -5e-324, 2.0**-126]
    ends = [float("inf"), -float("inf"), float("nan"), 1e38]
    x = torch.tensor((tiny + ends * far) * 500, dtype=torch.float64)
    x = x.float() if kind == "f32" else x
    got, want = torch.from_numpy(compiled_tan(x.numpy())[0]), torch.tan(x)
    torch.testing.assert_close(
        got, want, rtol=2.5e-7 if kind == "f32" else 5e-16, atol=0, equal_nan=True
    )
    number = ~want.isnan()
    assert torch.equal(got.signbit()[number], want.signbit()[number])
