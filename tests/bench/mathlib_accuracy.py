"""The error of the C++ maths library's float32 functions over every float32.

`python tests/bench/mathlib_accuracy.py [NAME...]` prints a table: the largest error in units in
the last place and where it is, how many results are off by more than 1, how many are wrong in
kind (NaN, infinity or sign where the exact result has none), and nanoseconds an element in
cache. The exact result is taken from the library's own float64 function, which
`tests/compiler/targets/cpp/test_mathlib.py` holds against extended and arbitrary precision.

`--step N` takes every Nth float only. About a minute a function and core without it.
"""

from __future__ import annotations

import argparse
import ctypes
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch  # noqa: F401  (its OpenMP runtime, before a kernel asks for one)

from fusec.targets.cpp.mathlib import expand, helper_sources
from fusec.toolchain.build import build
from fusec.toolchain.loading import load

UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sigmoid tanh sinh cosh asinh acosh atanh erf erfc erfinv "
    "sin cos tan asin acos atan rsqrt"
).split()
CHUNK = 1 << 16
KERNEL = """\
#include <stdint.h>
{helpers}
struct Result {{
    double largest;
    uint32_t where;
    int64_t over_one;
    int64_t wrong;
}};

static inline double error_in_ulp(float got, double exact)
{{
    // The last place of a float of this size, or of the least normal one.
    uint64_t exponent = __builtin_bit_cast(uint64_t, exact) >> 52 & 2047u;
    exponent = exponent < 897u ? 897u : exponent;
    double per_ulp = __builtin_bit_cast(double, (2069u - exponent) << 52);
    return __builtin_fabs((double)got - exact) * per_ulp;
}}

extern "C" int sweep(uint32_t first, int64_t count, int64_t step, Result* result)
{{
    static thread_local float got[{chunk}];
    static thread_local double exact[{chunk}];
    static thread_local double error[{chunk}];
    for (int64_t base = 0; base < count; base += {chunk}) {{
        int64_t n = count - base < {chunk} ? count - base : {chunk};
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {{
            float x = __builtin_bit_cast(float, first + (uint32_t)((base + i) * step));
            got[i] = fx_{name}(x);
        }}
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {{
            float x = __builtin_bit_cast(float, first + (uint32_t)((base + i) * step));
            exact[i] = fx_{name}((double)x);
        }}
        int64_t over = 0, wrong = 0;
        double largest = 0;
#pragma omp simd reduction(+ : over, wrong) reduction(max : largest)
        for (int64_t i = 0; i < n; i++) {{
            float rounded = (float)exact[i];
            bool both_nan = (got[i] != got[i]) & (rounded != rounded);
            double size = __builtin_fabs((double)got[i]);
            double want = __builtin_fabs(exact[i]);
            bool finite = (size < 0x1p128) & (__builtin_fabs((double)rounded) < 0x1p128);
            // At the edge of overflow, the largest float for infinity is off by 1, not wrong.
            bool edge = (size > 0x1.fffff0p127) & (want > 0x1.fffffcp127) & (want < 0x1.000002p128);
            bool same = both_nan | (got[i] == rounded);
            bool sign = __builtin_signbit(got[i]) != __builtin_signbit(rounded);
            double e = finite ? error_in_ulp(got[i], exact[i]) : same ? 0.0 : edge ? 1.0 : 0.0;
            bool bad = (!finite & !same & !edge) | (sign & !both_nan);
            error[i] = e;
            over += e > 1.0;
            wrong += bad;
            largest = e > largest ? e : largest;
        }}
        result->over_one += over;
        result->wrong += wrong;
        if (largest > result->largest) {{
            result->largest = largest;
            for (int64_t i = 0; i < n; i++)
                if (error[i] == largest) result->where = first + (uint32_t)((base + i) * step);
        }}
    }}
    return 0;
}}

extern "C" int speed(int64_t repeats)
{{
    static float x[4096], y[4096];
    for (int i = 0; i < 4096; i++) x[i] = {low}f + {width}f * i / 4096;
    for (int64_t r = 0; r < repeats; r++) {{
#pragma omp simd
        for (int i = 0; i < 4096; i++) y[i] = fx_{name}(x[i]);
        __asm__ volatile("" : : "r"(y) : "memory");
    }}
    return 0;
}}

"""


class Result(ctypes.Structure):
    _fields_ = (
        ("largest", ctypes.c_double),
        ("where", ctypes.c_uint32),
        ("over_one", ctypes.c_int64),
        ("wrong", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Row:
    """What one function's sweep found."""

    name: str
    largest: float
    where: float
    over_one: int
    wrong: int
    points: int
    nanoseconds: float

    def __str__(self) -> str:
        declared = expand(f"{self.name}.f32")[0].accuracy
        return (
            f"{self.name:8s} {self.largest:6.3f} ulp at {self.where:<15.8g} "
            f"over 1 ulp {self.over_one / self.points:8.1e}  wrong {self.wrong:<4d} "
            f"{self.nanoseconds:5.2f} ns  (declared: {declared})"
        )


def kernel_text(name: str) -> str:
    helpers = helper_sources([f"{name}.f32", f"{name}.f64"])
    low, width = {"acosh": (1.0, 8.0)}.get(name, (-0.95, 1.9) if name[:1] == "a" else (-4.0, 8.0))
    if name in ("log", "log2", "log10", "rsqrt"):
        low, width = 0.01, 8.0
    return KERNEL.format(
        name=name,
        chunk=CHUNK,
        low=low,
        width=width,
        helpers=helpers,
    )


def measure(name: str, step: int = 1, threads: int = 1) -> Row:
    """Sweep every `step`th float32 bit pattern."""
    path = build(kernel_text(name))
    sweep = load(
        path,
        "sweep",
        argtypes=(ctypes.c_uint32, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(Result)),
    )
    speed = load(path, "speed", argtypes=(ctypes.c_int64,))
    nanoseconds = min(timed(speed, 20) for _ in range(20)) / (20 * 4096) * 1e9
    points = -(-(1 << 32) // step)

    def part(first: int, count: int) -> Result:
        result = Result()
        sweep(first * step % 2**32, count, step, ctypes.byref(result))
        return result

    def parts() -> Iterator[tuple[int, int]]:
        size = max(CHUNK, points // 64)
        return ((first, min(size, points - first)) for first in range(0, points, size))

    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(part, *zip(*parts(), strict=True)))
    worst = max(results, key=lambda result: result.largest)
    return Row(
        name,
        worst.largest,
        struct.unpack("<f", struct.pack("<I", worst.where))[0],
        sum(result.over_one for result in results),
        sum(result.wrong for result in results),
        points,
        nanoseconds,
    )


def timed(function: Callable[[int], object], argument: int) -> float:
    started = time.perf_counter()
    function(argument)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=UNARY)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    for name in options.names:
        print(measure(name, options.step, options.threads), flush=True)


if __name__ == "__main__":
    main()
