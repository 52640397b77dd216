// max pool: pointwise over 30 x 56.
//   reads x: 31 x 112 float32
//   writes out: 30 x 56 float32
// line 1: y = max_pool1d(x[1:], 3, 2, 1)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int row_windows(const float* __restrict__ x, float* __restrict__ out, int64_t threads)
{
    for (int64_t i0 = 0; i0 < 30; ++i0) {
        {
            // line 1: y = max_pool1d(x[1:], 3, 2, 1)
            alignas(64) float x_even[57];
            alignas(64) float x_odd[56];
            #pragma GCC unroll UNROLL
            #pragma GCC ivdep
            for (int64_t pair = 0; pair < 56; ++pair) {
                x_even[pair] = x[i0 * 112 + 111 + 2 * pair];
                x_odd[pair] = x[i0 * 112 + 111 + 2 * pair + 1];
            }
            x_even[56] = x[i0 * 112 + 111 + 2 * 56];
            #pragma GCC unroll UNROLL
            #pragma GCC ivdep
            for (int64_t i1 = 0; i1 < 56; ++i1) {
                out[i0 * 56 + i1] = nan_max(x_even[i1 + 1], fx_maximum(x_odd[i1], x_even[i1]));
            }
        }
        out[i0 * 56] = nan_max(x[i0 * 112 + 113], fx_maximum(x[i0 * 112 + 112], -INFINITY));
    }
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

#define INFINITY __builtin_inff()
#define FX_INLINE static inline __attribute__((always_inline))

FX_INLINE uint32_t fx_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
FX_INLINE float fx_from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

// _choose.f32: one of the two without a branch, which g++ would join with the next one
FX_INLINE float fx_choose(bool condition, float yes, float no)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return fx_from_bits((fx_bits(yes) & mask) | (fx_bits(no) & ~mask));
}

// maximum.f32: NaN if either is
FX_INLINE float fx_maximum(float a, float b)
{
    // If b is NaN, the comparison fails and gives it.
    float result = a > b ? a : b;
    return fx_choose(a != a, a, result);
}

// The greater of two numbers; NaN if either is.
static inline float nan_max(float a, float b)
{
    const float greater = a > b ? a : b;
    return a != a ? a : greater;
}
