// relu, tanh: pointwise over 300 x 333.
//   reads a: 300 x 333 float32
//   reads b: 300 x 333 float32
//   writes out: 300 x 333 float32
// line 2: h = torch.relu(a + b)
// line 3: y = torch.tanh(h) * h + 2
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t LINE = 64; // elements asked for at a time
constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int pointwise_chain(const float* __restrict__ a, const float* __restrict__ b,
    float* __restrict__ out, int64_t threads)
{
    #pragma omp parallel for num_threads(threads)
    for (int64_t i0 = 0; i0 < 300; ++i0) {
        {
            const auto block = [&](int64_t i1_line, int64_t count, auto mark)
                __attribute__((always_inline)) {
                prefetch<LINE>(&a[i0 * 333 + i1_line + 666]);
                prefetch<LINE>(&b[i0 * 333 + i1_line + 666]);
                prefetch_to_write<LINE>(&out[i0 * 333 + i1_line + 666]);
                alignas(64) decltype(mark) marks[LINE];
                #pragma GCC unroll UNROLL
                #pragma GCC ivdep
                for (int64_t i1 = i1_line; i1 < i1_line + count; ++i1) {
                    marks[i1 - i1_line] = 0;
                    // line 2: h = torch.relu(a + b)
                    const float h = fx_maximum(a[i0 * 333 + i1] + b[i0 * 333 + i1], 0.0f);
                    // line 3: y = torch.tanh(h) * h + 2
                    out[i0 * 333 + i1] = fx_tanh(h) * h + 2.0f;
                }
                interleave(marks);
            };
            int64_t i1_at = 0;
            for (; i1_at + LINE <= 333; i1_at += LINE) block(i1_at, LINE, uint8_t());
            if (i1_at < 333) block(i1_at, 333 - i1_at, float());
        }
    }
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

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

// tanh.f32: x + x^3 P(x^2) up to 0.6, minimax of degree 4; 1 - 2 / (exp(2 |x|) + 1) beyond; 1.6 ulp
FX_INLINE float fx_tanh(float x)
{
    float z = x * x;
    float p = -0x1.8287a6p-8f;
    p = __builtin_fmaf(p, z, 0x1.54c3c6p-6f);
    p = __builtin_fmaf(p, z, -0x1.b89abap-5f);
    p = __builtin_fmaf(p, z, 0x1.1109bep-3f);
    p = __builtin_fmaf(p, z, -0x1.55553ep-2f);
    float near = __builtin_fmaf(p * z, x, x);
    float a = __builtin_fabsf(x);
    a = a > 9.1f ? 9.1f : a;
    // exp(2 a) = 2^n 2^r with n + r = a 2 / ln 2, minimax of degree 6 for 2^r
    float shifted = __builtin_fmaf(a, 0x1.715476p+1f, 0x1.8p23f);
    float r = __builtin_fmaf(a, 0x1.715476p+1f, 0x1.8p23f - shifted);
    float e = 0x1.4500bep-13f;
    e = __builtin_fmaf(e, r, 0x1.5ee4f4p-10f);
    e = __builtin_fmaf(e, r, 0x1.3b2a70p-7f);
    e = __builtin_fmaf(e, r, 0x1.c6afdcp-5f);
    e = __builtin_fmaf(e, r, 0x1.ebfbe0p-3f);
    e = __builtin_fmaf(e, r, 0x1.62e430p-1f);
    e = __builtin_fmaf(e, r, 1.0f);
    e = fx_from_bits(fx_bits(e) + (fx_bits(shifted) << 23));
    float far = 1.0f - 2.0f / (e + 1.0f);
    // Asked this way round, NaN takes the near side, which keeps it. A zero keeps its sign.
    return __builtin_copysignf(a >= 0.6f ? far : near, x);
}

// Has a loop's marks written: with a byte an element, four vectors of float go side by side.
template <typename T>
static inline void interleave(const T& marks)
{
    asm volatile("" : : "m"(marks));
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
