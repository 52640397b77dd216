// cross_entropy: max, sum over 5000 for each of 5.
//   reads logits: 5 x 5000 float32
//   reads target: 5 int64
//   writes loss: 5 float32
// line 5: loss = cross_entropy(logits, target, reduction="none")
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t LINE = 64; // elements asked for at a time

extern "C" int cross_entropy(const float* __restrict__ logits, const int64_t* __restrict__ target,
    float* __restrict__ loss, int64_t threads)
{
    int failed = 0; // the number of a check that failed
    #pragma omp parallel for num_threads(threads) reduction(max : failed)
    for (int64_t i0 = 0; i0 < 5; ++i0) {
        // line 5: loss = cross_entropy(logits, target, reduction="none")
        const int64_t target_val = target[i0];
        const int64_t wrapped = target_val < 0 ? wrap_add(target_val, 5000) : target_val;
        const bool valid = (wrapped >= 0) & (wrapped < 5000);
        if (!valid) failed = 1;
        const int64_t checked = valid ? wrapped : 0;
        const float logits_val = logits[i0 * 5000 + checked];
        float row_max = -INFINITY;
        alignas(64) float row_max_lanes[LINE];
        for (float& lane : row_max_lanes) lane = -INFINITY;
        {
            const auto block = [&](int64_t r0_line, int64_t count) __attribute__((always_inline)) {
                #pragma GCC ivdep
                for (int64_t lane = 0; lane < count; ++lane) {
                    const int64_t r0 = r0_line + lane;
                    row_max_lanes[lane] = number_max(logits[i0 * 5000 + r0], row_max_lanes[lane]);
                }
            };
            int64_t r0_at = 0;
            for (; r0_at + LINE <= 5000; r0_at += LINE) block(r0_at, LINE);
            if (r0_at < 5000) block(r0_at, 5000 - r0_at);
        }
        #pragma omp simd reduction(max : row_max)
        for (int64_t lane = 0; lane < LINE; ++lane) {
            row_max = number_max(row_max_lanes[lane], row_max);
        }
        const float difference = logits_val - row_max;
        double row_total = 0.0;
        for (int64_t r0_chunk = 0; r0_chunk < 5000; r0_chunk += 4096) {
            const int64_t r0_end = at_most(r0_chunk + 4096, 5000);
            float chunk_sum = 0.0f;
            alignas(64) float chunk_sum_lanes[LINE] = {};
            {
                const auto block = [&](int64_t r0_line, int64_t count, auto mark)
                    __attribute__((always_inline)) {
                    alignas(64) decltype(mark) marks[LINE];
                    #pragma GCC ivdep
                    for (int64_t lane = 0; lane < count; ++lane) {
                        marks[lane] = 0;
                        const int64_t r0 = r0_line + lane;
                        const float exponential = fx_exp_nonpositive(logits[i0 * 5000 + r0]
                            - row_max);
                        chunk_sum_lanes[lane] += exponential;
                    }
                    interleave(marks);
                };
                int64_t r0_at = r0_chunk;
                for (; r0_at + LINE <= r0_end; r0_at += LINE) block(r0_at, LINE, uint8_t());
                if (r0_at < r0_end) block(r0_at, r0_end - r0_at, float());
            }
            #pragma omp simd reduction(+ : chunk_sum)
            for (int64_t lane = 0; lane < LINE; ++lane) {
                chunk_sum += chunk_sum_lanes[lane];
            }
            row_total += chunk_sum;
        }
        const float row_sum = (float)row_total;
        loss[i0] = fx_log(row_sum) - difference;
    }
    return failed;
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

// _log_split.f32: returns f and sets e, where x = 2^e (1 + f)
FX_INLINE float fx_log_split(float x, float& e)
{
    // A subnormal is scaled up first.
    bool tiny = x < 0x1p-126f;
    float scaled = tiny ? x * 0x1p23f : x;
    float shift = tiny ? 23.0f : 0.0f;
    uint32_t bits = fx_bits(scaled) - 0x3f3504f3u;
    e = (float)((int32_t)bits >> 23) - shift;
    return fx_from_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
}

// _log_poly.f32: (log(1 + f) - f) / f^2, minimax of degree 8
FX_INLINE float fx_log_poly(float f)
{
    float p = -0x1.38fb50p-4f;
    p = __builtin_fmaf(p, f, 0x1.0574c2p-3f);
    p = __builtin_fmaf(p, f, -0x1.0d8410p-3f);
    p = __builtin_fmaf(p, f, 0x1.22d67ep-3f);
    p = __builtin_fmaf(p, f, -0x1.54720cp-3f);
    p = __builtin_fmaf(p, f, 0x1.99a030p-3f);
    p = __builtin_fmaf(p, f, -0x1.000228p-2f);
    p = __builtin_fmaf(p, f, 0x1.555554p-2f);
    p = __builtin_fmaf(p, f, -0.5f);
    return p;
}

// _log_special.f32: what a logarithm is at 0, below it, at infinity and at NaN
FX_INLINE float fx_log_special(float x, float result)
{
    result = x < __builtin_inff() ? result : x;
    result = x < 0.0f ? __builtin_nanf("") : result;
    return x == 0.0f ? -__builtin_inff() : result;
}

// log.f32: 0.9 ulp
FX_INLINE float fx_log(float x)
{
    float e;
    float f = fx_log_split(x, e);
    float low = __builtin_fmaf(f * f, fx_log_poly(f), e * -0x1.05c610p-29f);
    return fx_log_special(x, __builtin_fmaf(e, 0x1.62e430p-1f, f + low));
}

static inline int64_t at_most(int64_t x, int64_t limit)
{
    return x < limit ? x : limit;
}

// Has a loop's marks written: with a byte an element, four vectors of float go side by side.
template <typename T>
static inline void interleave(const T& marks)
{
    asm volatile("" : : "m"(marks));
}

// The greater of two numbers: a NaN is left out, and shows in what is summed.
static inline float number_max(float value, float so_far)
{
    return value > so_far ? value : so_far;
}

// Wraps around where it overflows, as eager does.
static inline int64_t wrap_add(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x + (uint64_t)y);
}
