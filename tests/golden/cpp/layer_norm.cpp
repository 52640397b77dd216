// gelu, layer_norm: sum over 200 for each of 600.
//   reads x: 600 x 200 float32
//   reads w: 200 float32
//   reads b: 200 float32
//   reads gamma: 200 float32
//   reads beta: 200 float32
//   writes out: 600 x 200 float32
// line 2: h = gelu(x * w + b)
// line 3: y = layer_norm(h, (n,), gamma, beta)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t ROWS = 8; // tunable: 1 4 8 32 128 (rows a thread takes)
constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int gelu_layer_norm(const float* __restrict__ x, const float* __restrict__ w,
    const float* __restrict__ b, const float* __restrict__ gamma, const float* __restrict__ beta,
    float* __restrict__ out, int64_t threads)
{
    #pragma omp parallel for num_threads(threads) schedule(static, ROWS)
    for (int64_t i0 = 0; i0 < 600; ++i0) {
        // line 2: h = gelu(x * w + b)
        alignas(64) float h_row[200];
        // line 3: y = layer_norm(h, (n,), gamma, beta)
        float row_sum = 0.0f;
        #pragma omp simd reduction(+ : row_sum)
        for (int64_t r0 = 0; r0 < 200; ++r0) {
            // line 2: h = gelu(x * w + b)
            const float total = x[i0 * 200 + r0] * w[r0] + b[r0];
            const float h = total * 0.5f * fx_one_plus_erf(total * 0.70710677f);
            h_row[r0] = h;
            // line 3: y = layer_norm(h, (n,), gamma, beta)
            row_sum += h;
        }
        const float mean = row_sum / 200.0f;
        float row_squares = 0.0f;
        #pragma omp simd reduction(+ : row_squares)
        for (int64_t r0 = 0; r0 < 200; ++r0) {
            const float difference = h_row[r0] - mean;
            row_squares += difference * difference;
        }
        const float rstd = fx_rsqrt(row_squares / 200.0f + 1e-05f);
        #pragma GCC unroll UNROLL
        #pragma GCC ivdep
        for (int64_t r0 = 0; r0 < 200; ++r0) {
            out[i0 * 200 + r0] = (h_row[r0] - mean) * rstd * gamma[r0] + beta[r0];
        }
    }
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

#define FX_INLINE static inline __attribute__((always_inline))

FX_INLINE uint32_t fx_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
FX_INLINE float fx_from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

// one_plus_erf.f32: erfc(|x|) = 2^(|x| Q(|x|)), minimax of degree 7; 2^-23
FX_INLINE float fx_one_plus_erf(float x)
{
    float a = __builtin_fabsf(x);
    // From there on the power is 2^-127, which counts as 0; a NaN stays one.
    a = a > 7.0521f ? 7.0521f : a;
    float q = -0x1.7c2652p-15f;
    q = __builtin_fmaf(q, a, 0x1.d2dea4p-12f);
    q = __builtin_fmaf(q, a, -0x1.86489ap-10f);
    q = __builtin_fmaf(q, a, -0x1.9676c8p-11f);
    q = __builtin_fmaf(q, a, 0x1.cee968p-6f);
    q = __builtin_fmaf(q, a, -0x1.301718p-3f);
    q = __builtin_fmaf(q, a, -0x1.d63aaep-1f);
    q = __builtin_fmaf(q, a, -0x1.a0be9ep+0f);
    float power = q * a;
    // The power is n + r, minimax of degree 6 for 2^r.
    float shifted = power + 0x1.8p23f;
    float r = power - (shifted - 0x1.8p23f);
    float e = 0x1.4500bep-13f;
    e = __builtin_fmaf(e, r, 0x1.5ee4f4p-10f);
    e = __builtin_fmaf(e, r, 0x1.3b2a70p-7f);
    e = __builtin_fmaf(e, r, 0x1.c6afdcp-5f);
    e = __builtin_fmaf(e, r, 0x1.ebfbe0p-3f);
    e = __builtin_fmaf(e, r, 0x1.62e430p-1f);
    e = __builtin_fmaf(e, r, 1.0f);
    float tail = e * fx_from_bits((fx_bits(shifted) << 23) + (127u << 23));
    return x > 0.0f ? 2.0f - tail : tail;
}

// rsqrt.f32: 1.5 ulp
FX_INLINE float fx_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
