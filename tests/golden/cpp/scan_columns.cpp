// running sum, running logsumexp: running sum, running logsumexp over 100 for each of 40.
//   reads x: 100 x 40 float32
//   writes sum_out: 100 x 40 float32
//   writes logsumexp_out: 100 x 40 float32
// line 2: y = running(x)
#include <stdint.h>
#include "helpers.h" // at the end of this file

extern "C" int scans(const float* __restrict__ x, float* __restrict__ sum_out,
    float* __restrict__ logsumexp_out, int64_t threads)
{
    // line 2: y = running(x)
    double running_sum[40];
    for (int64_t c = 0; c < 40; ++c) {
        running_sum[c] = 0.0;
    }
    double running_greatest[40];
    double running_total[40];
    for (int64_t c = 0; c < 40; ++c) {
        running_greatest[c] = -INFINITY;
        running_total[c] = 0.0;
    }
    for (int64_t r0 = 0; r0 < 100; ++r0) {
        #pragma omp simd
        for (int64_t i0 = 0; i0 < 40; ++i0) {
            const float product = x[r0 * 40 + i0] * 0.5f;
            running_sum[i0] += (double)product;
            const float sum_so_far = (float)running_sum[i0];
            log_add_exp((double)product, running_greatest[i0], running_total[i0]);
            const float logsumexp_so_far = (float)(running_greatest[i0]
                + fx_log(running_total[i0]));
            sum_out[r0 * 40 + i0] = sum_so_far + product;
            logsumexp_out[r0 * 40 + i0] = logsumexp_so_far + product;
        }
    }
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

#define INFINITY __builtin_inff()
#define FX_INLINE static inline __attribute__((always_inline))

FX_INLINE uint64_t fx_bits(double x) { return __builtin_bit_cast(uint64_t, x); }
FX_INLINE double fx_from_bits(uint64_t x) { return __builtin_bit_cast(double, x); }

// _scale.f64: x * 2^(n - 2048) for 4 <= n <= 4092, in two steps, so that only the last one rounds
FX_INLINE double fx_scale(double x, uint64_t n)
{
    // Without a sign, because AVX2 has no arithmetic shift of 64 bits.
    uint64_t half = n >> 1;
    double first = fx_from_bits((half - 1) << 52);
    double second = fx_from_bits((n - half - 1) << 52);
    return x * first * second;
}

// _exp_poly.f64: minimax of degree 11, relative error 2^-57
FX_INLINE double fx_exp_poly(double r)
{
    double p = 0x1.ad7c9717644b0p-26;
    p = __builtin_fma(p, r, 0x1.28ae8ff1e2e6dp-22);
    p = __builtin_fma(p, r, 0x1.71df28f6d9f90p-19);
    p = __builtin_fma(p, r, 0x1.a01998e67c70ep-16);
    p = __builtin_fma(p, r, 0x1.a01a0127e862ap-13);
    p = __builtin_fma(p, r, 0x1.6c16c1849022ep-10);
    p = __builtin_fma(p, r, 0x1.1111111128556p-7);
    p = __builtin_fma(p, r, 0x1.55555555506cdp-5);
    p = __builtin_fma(p, r, 0x1.55555555554f7p-3);
    p = __builtin_fma(p, r, 0x1.000000000000ap-1);
    p = __builtin_fma(p, r, 1.0);
    p = __builtin_fma(p, r, 1.0);
    return p;
}

// exp.f64: x = n ln 2 + r with ln 2 in two parts; 1 ulp
FX_INLINE double fx_exp(double x)
{
    x = x < -746.0 ? -746.0 : x;
    int64_t bits = (int64_t)fx_bits(x);
    double y = fx_from_bits((uint64_t)(bits < 0x4086380000000000 ? bits : 0x4086380000000000));
    double shifted = __builtin_fma(y, 0x1.71547652b82fep+0, 0x1.8p52);
    double n = shifted - 0x1.8p52;
    double r = __builtin_fma(n, -0x1.62e42fefa3800p-1, x);
    r = __builtin_fma(n, -0x1.ef35793c76730p-45, r);
    return fx_scale(fx_exp_poly(r), fx_bits(shifted) - 0x4338000000000000u + 2048u);
}

// _log_split.f64: returns f and sets e, where x = 2^e (1 + f)
FX_INLINE double fx_log_split(double x, double& e)
{
    // A subnormal is scaled up first.
    bool tiny = x < 0x1p-1022;
    double scaled = tiny ? x * 0x1p54 : x;
    double bias = tiny ? 0x1p52 + 1077.0 : 0x1p52 + 1023.0;
    uint64_t bits = fx_bits(scaled) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    e = fx_from_bits((bits >> 52) | 0x4330000000000000u) - bias;
    return fx_from_bits((bits & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
}

// _log_poly.f64: log(1 + f) - f, by way of s = f / (2 + f), minimax of degree 6 in s^2
FX_INLINE double fx_log_poly(double f)
{
    double s = f / (2.0 + f);
    double z = s * s;
    double p = 0x1.2f592001c4943p-3;
    p = __builtin_fma(p, z, 0x1.3999c5aaa0bccp-3);
    p = __builtin_fma(p, z, 0x1.74668a2d450f8p-3);
    p = __builtin_fma(p, z, 0x1.c71c50ad5d1d6p-3);
    p = __builtin_fma(p, z, 0x1.2492494384dafp-2);
    p = __builtin_fma(p, z, 0x1.999999997e309p-2);
    p = __builtin_fma(p, z, 0x1.5555555555597p-1);
    double half = 0.5 * f * f;
    return __builtin_fma(s, __builtin_fma(z, p, half), -half);
}

// _log_special.f64: what a logarithm is at 0, below it, at infinity and at NaN
FX_INLINE double fx_log_special(double x, double result)
{
    result = x < __builtin_inf() ? result : x;
    result = x < 0.0 ? __builtin_nan("") : result;
    return x == 0.0 ? -__builtin_inf() : result;
}

// log.f64: 1 ulp
FX_INLINE double fx_log(double x)
{
    double e;
    double f = fx_log_split(x, e);
    double low = __builtin_fma(e, 0x1.ef35793c76730p-45, fx_log_poly(f));
    return fx_log_special(x, __builtin_fma(e, 0x1.62e42fefa3800p-1, f + low));
}

// Takes x into the greatest value so far and the sum of exp(value - greatest); NaN stays NaN.
static inline void log_add_exp(double x, double& greatest, double& total)
{
    const double distance = x == greatest ? 0.0 : x - greatest; // of infinities too
    const double weight = fx_exp(distance > 0 ? -distance : distance);
    total = x > greatest ? total * weight + 1.0 : total + weight;
    greatest = x > greatest ? x : greatest;
}
