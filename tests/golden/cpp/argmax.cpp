// argmax: argmax over 100 for each of 9.
//   reads x: 9 x 100 float32
//   writes out: 9 int64
// line 1: y = x.argmax(-1)
#include <stdint.h>
#include "helpers.h" // at the end of this file

extern "C" int row_argmax(const float* __restrict__ x, int64_t* __restrict__ out, int64_t threads)
{
    for (int64_t i0 = 0; i0 < 9; ++i0) {
        // line 1: y = x.argmax(-1)
        float row_max = -INFINITY;
        int64_t row_argmax2 = -1;
        float chunk_max = -INFINITY;
        int chunk_max_nan = 0;
        #pragma omp simd reduction(max : chunk_max) reduction(| : chunk_max_nan)
        for (int64_t r0 = 0; r0 < 100; ++r0) {
            const float value = x[i0 * 100 + r0];
            chunk_max_nan |= value != value;
            chunk_max = chunk_max > value ? chunk_max : value;
        }
        if (chunk_max_nan) chunk_max = NAN;
        if (row_argmax2 < 0 || chunk_max > row_max
            || (chunk_max != chunk_max && row_max == row_max)) {
            int32_t left = 0;
            #pragma omp simd reduction(max : left)
            for (int64_t r0 = 0; r0 < 100; ++r0) {
                const float x_val = x[i0 * 100 + r0];
                const int32_t here = (x_val == chunk_max) | (x_val != x_val) ? 100 - (int32_t)(r0)
                    : 0;
                left = here > left ? here : left;
            }
            row_max = chunk_max;
            row_argmax2 = 100 - left;
        }
        out[i0] = row_argmax2;
    }
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
