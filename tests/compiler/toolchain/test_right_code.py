"""Loops that some releases of g++ get wrong: what the flags of kernels make of them."""

from __future__ import annotations

import ctypes

import pytest
import torch

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
