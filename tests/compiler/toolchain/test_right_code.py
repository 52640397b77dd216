"""Loops that some releases of g++ get wrong: what the flags of kernels make of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.toolchain.build import build
from fusec.toolchain.loading import load_library

ROWS, COLUMNS = 130, 4
GUARDED = """\
#include <stdint.h>
extern "C" int guarded(const float* __restrict__ x, const uint8_t* __restrict__ byte,
    float* __restrict__ out, int64_t threads)
{
    for (int64_t i0 = 0; i0 < %d; ++i0) {
        for (int64_t i1 = 0; i1 < %d; ++i1) {
            const bool inside = %s;
            const float value = inside ? x[i0 * %d + i1] : 0.0f;
            out[i0 * %d + i1] = value + (byte[i0 * %d + i1] != 0 ? 1.0f : 0.0f);
        }
    }
    return 0;
}
"""


@pytest.mark.parametrize("edge", [1, 2, 3, 5, 15])
@pytest.mark.parametrize("condition", ["i0 >= %d", "i0 < %d", "i0 / 3 == %d", "i0 - %d >= 0"])
def test_rows_that_a_condition_guards(condition: str, edge: int) -> None:
    """Several rows in a vector, bytes beside floats: each row has a condition of its own."""
    columns = (COLUMNS,) * 4
    text = GUARDED % (ROWS, columns[0], condition % edge, *columns[1:])
    library = load_library(build(text))
    x, byte = torch.randn(ROWS, COLUMNS), torch.randint(0, 2, (ROWS, COLUMNS), dtype=torch.uint8)
    out = torch.full_like(x, float("nan"))
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, byte, out)]
    assert library.guarded(*pointers, ctypes.c_int64(1)) == 0
    i0 = torch.arange(ROWS)[:, None]
    inside = {">": i0 >= edge, "<": i0 < edge, "/": i0 // 3 == edge, "-": i0 >= edge}
    assert torch.equal(out, torch.where(inside[condition[3]], x, 0.0) + byte)


ROUNDED = """\
#include <stdint.h>
extern "C" int rounded(const double* __restrict__ x, double* __restrict__ out, int64_t threads)
{
    #pragma omp simd
    for (int64_t i0 = 0; i0 < %d; ++i0) {
        out[i0] = %s;
    }
    return 0;
}
"""


@pytest.mark.parametrize("count", [3, 63, 1000])
@pytest.mark.parametrize("value", ["(double)((float)x[i0])", "x[i0 + 1] + (double)((float)x[i0])"])
def test_a_rounding_to_float_in_the_last_turns(value: str, count: int) -> None:
    """What vectors do not reach is rounded as what they do."""
    library = load_library(build(ROUNDED % (count, value)))
    x = torch.randn(count + 1, dtype=torch.float64)
    out = torch.full((count,), float("nan"), dtype=torch.float64)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, out)]
    assert library.rounded(*pointers, ctypes.c_int64(1)) == 0
    wanted = x[:-1].float().double()
    assert torch.equal(out, wanted + x[1:] if "+" in value else wanted)


@pytest.mark.parametrize("count", [5, 64, 1000])
def test_casts_there_and_back(count: int) -> None:
    x = torch.randn(count, dtype=torch.float64)

    def rolled(x: torch.Tensor) -> torch.Tensor:
        return x + x.float().roll(1)

    def padded(x: torch.Tensor) -> torch.Tensor:
        return x + F.pad(x.float()[:-2], (1, 1), value=4 / 3)

    for function in (rolled, padded):
        assert torch.equal(fusec.compile(function, dynamic=False)(x), function(x))


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("source", FLOATS)
def test_whole_numbers_have_no_negative_zero(source: torch.dtype) -> None:
    """g++ 12 takes a number to a whole one and back for ``trunc``, whose zeros have signs."""
    numbers = torch.tensor([-0.5, 0.0, -0.0, 0.5, -1.5, -0.99, 100.7, -128.0], dtype=source)
    inputs = [
        (numbers.repeat(12)[:count], whole, target)
        for whole in SIGNED
        for target in FLOATS
        for count in (8, 91)
    ]

    def function(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [x.to(whole).to(to) for x, (_, whole, to) in zip(xs, inputs, strict=True)]

    xs = [x for x, _, _ in inputs]
    for found, wanted in zip(fusec.compile(function)(*xs), function(*xs), strict=True):
        assert torch.equal(found, wanted)
        assert not found[wanted == 0].signbit().any()


def test_constants_have_the_digits_of_their_type() -> None:
    """A third in float32, added in float64, is the float32 that is nearest to it."""
    third = 1 / 3
    x = torch.randn(5, dtype=torch.float64)
    makes: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x + torch.full((5,), third),
        lambda x: x + torch.full((5,), third, dtype=torch.bfloat16),
        lambda x: x * torch.scalar_tensor(third),
        lambda x: x + torch.empty(5).fill_(third) * 1,
        lambda x: x - x.new_full((5,), third, dtype=torch.float32),
        lambda x: torch.where(x > 0, x, torch.full((5,), third)),
        lambda x: x + torch.cat([x.float()[:2], torch.full((3,), third)]),
        lambda x: x + (torch.full((5,), 0.1).double() > 0.1),
    ]
    for each in makes:
        assert torch.equal(fusec.compile(each, dynamic=False)(x), each(x))
