// softmax: max, sum over s1 for each of s0.
//   reads x: s0 x s1 float32
//   writes out: s0 x s1 float32
// line 4: y = torch.softmax(x, -1)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t GRAIN = 32768; // tunable: 4096 8192 16384 32768 65536 (elements worth threads)
constexpr int64_t LINE = 64; // elements asked for at a time

extern "C" int softmax(const float* __restrict__ x, float* __restrict__ out, int64_t s0, int64_t s1,
    int64_t threads)
{
    #pragma omp parallel for num_threads(threads) if (s0 * s1 >= GRAIN)
    for (int64_t i0 = 0; i0 < s0; ++i0) {
        // line 4: y = torch.softmax(x, -1)
        float row_max = -INFINITY;
        alignas(64) float row_max_lanes[LINE];
        for (float& lane : row_max_lanes) lane = -INFINITY;
        {
            const auto block = [&](int64_t r0_line, int64_t count) __attribute__((always_inline)) {
                prefetch<LINE>(&x[s1 * i0 + r0_line + 512]);
                #pragma GCC ivdep
                for (int64_t lane = 0; lane < count; ++lane) {
                    const int64_t r0 = r0_line + lane;
                    row_max_lanes[lane] = number_max(x[s1 * i0 + r0], row_max_lanes[lane]);
                }
            };
            int64_t r0_at = 0;
            for (; r0_at + LINE <= s1; r0_at += LINE) block(r0_at, LINE);
            if (r0_at < s1) block(r0_at, s1 - r0_at);
        }
        #pragma omp simd reduction(max : row_max)
        for (int64_t lane = 0; lane < LINE; ++lane) {
            row_max = number_max(row_max_lanes[lane], row_max);
        }
        double row_total = 0.0;
        for (int64_t r0_chunk = 0; r0_chunk < s1; r0_chunk += 4096) {
            const int64_t r0_end = at_most(r0_chunk + 4096, s1);
            float chunk_sum = 0.0f;
            alignas(64) float chunk_sum_lanes[LINE] = {};
            {
                const auto block = [&](int64_t r0_line, int64_t count, auto mark)
                    __attribute__((always_inline)) {
                    prefetch<LINE>(&x[s1 * i0 + r0_line + 512]);
                    alignas(64) decltype(mark) marks[LINE];
                    #pragma GCC ivdep
                    for (int64_t lane = 0; lane < count; ++lane) {
                        marks[lane] = 0;
                        const int64_t r0 = r0_line + lane;
                        const float exponential = fx_exp_nonpositive(x[s1 * i0 + r0] - row_max);
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
        {
            const auto block = [&](int64_t r0_line, int64_t count, auto mark)
                __attribute__((always_inline)) {
                prefetch<LINE>(&x[s1 * i0 + r0_line + 512]);
                prefetch_to_write<LINE>(&out[s1 * i0 + r0_line + 512]);
                alignas(64) decltype(mark) marks[LINE];
                #pragma GCC ivdep
                for (int64_t lane = 0; lane < count; ++lane) {
                    marks[lane] = 0;
                    const int64_t r0 = r0_line + lane;
                    const float exponential = fx_exp_nonpositive(x[s1 * i0 + r0] - row_max);
                    out[s1 * i0 + r0] = exponential / row_sum;
                }
                interleave(marks);
            };
            int64_t r0_at = 0;
            for (; r0_at + LINE <= s1; r0_at += LINE) block(r0_at, LINE, uint8_t());
            if (r0_at < s1) block(r0_at, s1 - r0_at, float());
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

// Asks the memory for `count` elements from x on, so that they are there when their turn comes.
template <int64_t count, typename T>
static inline void prefetch(const T* x)
{
    constexpr int64_t line = 64 / sizeof(T);
    #pragma GCC unroll 16
    for (int64_t k = 0; k < count; k += line) __builtin_prefetch(x + k, 0);
}

// The same for elements that are going to be written.
template <int64_t count, typename T>
static inline void prefetch_to_write(T* x)
{
    constexpr int64_t line = 64 / sizeof(T);
    #pragma GCC unroll 16
    for (int64_t k = 0; k < count; k += line) __builtin_prefetch(x + k, 1);
}
