// softmax: max, sum over 200 for each of 24.
//   reads x: 24 x 200 float32
//   writes out: 24 x 200 float32
// line 4: y = torch.softmax(x, -1)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int softmax(const float* __restrict__ x, float* __restrict__ out, int64_t threads)
{
    for (int64_t i0 = 0; i0 < 24; ++i0) {
        // line 4: y = torch.softmax(x, -1)
        alignas(64) float exponential_row[200];
        float row_max = -INFINITY;
        #pragma omp simd reduction(max : row_max)
        for (int64_t r0 = 0; r0 < 200; ++r0) {
            row_max = number_max(x[i0 * 200 + r0], row_max);
        }
        float row_sum = 0.0f;
        #pragma omp simd reduction(+ : row_sum)
        for (int64_t r0 = 0; r0 < 200; ++r0) {
            const float exponential = fx_exp_nonpositive(x[i0 * 200 + r0] - row_max);
            exponential_row[r0] = exponential;
            row_sum += exponential;
        }
        #pragma GCC unroll UNROLL
        #pragma GCC ivdep
        for (int64_t r0 = 0; r0 < 200; ++r0) {
            out[i0 * 200 + r0] = exponential_row[r0] / row_sum;
        }
    }
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

#define INFINITY __builtin_inff()
#define FX_INLINE static inline __attribute__((always_inline))

FX_INLINE uint32_t fx_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
FX_INLINE float fx_from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

// _exp_poly.f32: minimax of degree 6, relative error 2^-28
FX_INLINE float fx_exp_poly(float r)
{
    float p = 0x1.6ac5c0p-10f;
    p = __builtin_fmaf(p, r, 0x1.123edep-7f);
    p = __builtin_fmaf(p, r, 0x1.555850p-5f);
    p = __builtin_fmaf(p, r, 0x1.55548ap-3f);
    p = __builtin_fmaf(p, r, 0x1.fffffcp-2f);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    return p;
}

// exp_nonpositive.f32: as exp, for x <= 0; 0.9 ulp
FX_INLINE float fx_exp_nonpositive(float x)
{
    // Its low bits are the exponent of 2^(n + 64), a normal number: the last product alone rounds.
    float shifted = __builtin_fmaf(x, 0x1.715476p+0f, 0x1.80017ep23f);
    float n = shifted - 0x1.80017ep23f;
    float r = __builtin_fmaf(n, -0x1.62e400p-1f, x);
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20f, r);
    float power = fx_exp_poly(r) * fx_from_bits(fx_bits(shifted) << 23) * 0x1p-64f;
    return x < -104.0f ? 0.0f : power;
}

// The greater of two numbers: a NaN is left out, and shows in what is summed.
static inline float number_max(float value, float so_far)
{
    return value > so_far ? value : so_far;
}
