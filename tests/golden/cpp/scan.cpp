// running sum, running max, running argmax: running sum, running max, running argmax over 100 for
// each of 9.
//   reads x: 9 x 100 float32
//   writes sum_out: 9 x 100 float32
//   writes max_out: 9 x 100 float32
//   writes argmax_out: 9 x 100 int64
// line 2: y = running(x)
#include <stdint.h>
#include "helpers.h" // at the end of this file

extern "C" int scans(const float* __restrict__ x, float* __restrict__ sum_out,
    float* __restrict__ max_out, int64_t* __restrict__ argmax_out, int64_t threads)
{
    for (int64_t i0 = 0; i0 < 9; ++i0) {
        // line 2: y = running(x)
        double running_sum = 0.0;
        float running_max = -INFINITY;
        int64_t running_argmax = 0;
        for (int64_t r0 = 0; r0 < 100; ++r0) {
            const float product = x[i0 * 100 + r0] * 0.5f;
            running_sum += (double)product;
            const float sum_so_far = (float)running_sum;
            const bool newer = (product >= running_max) | (product != product);
            running_max = newer ? product : running_max;
            running_argmax = newer ? r0 : running_argmax;
            sum_out[i0 * 100 + r0] = sum_so_far + product;
            max_out[i0 * 100 + r0] = running_max + product;
            argmax_out[i0 * 100 + r0] = running_argmax;
        }
    }
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

#define INFINITY __builtin_inff()
