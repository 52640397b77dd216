// sin, cos: pointwise over 30 x 333.
//   reads x: 30 x 333 float32
//   writes out: 30 x 333 float32
// line 1: y = torch.sin(x) + torch.cos(x * 3)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t LINE = 64; // elements asked for at a time
constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int wave(const float* __restrict__ x, float* __restrict__ out, int64_t threads)
{
    #pragma omp parallel for num_threads(threads)
    for (int64_t i0 = 0; i0 < 30; ++i0) {
        {
            const auto block = [&](int64_t i1_line, int64_t count, auto mark)
                __attribute__((always_inline)) {
                int far = 0;
                #pragma omp simd reduction(| : far)
                for (int64_t i1 = i1_line; i1 < i1_line + count; ++i1) {
                    // line 1: y = torch.sin(x) + torch.cos(x * 3)
                    const float x_val = x[i0 * 333 + i1];
                    const float product = x_val * 3.0f;
                    far |= fx_is_far(x_val) | fx_is_far(product);
                }
                const auto lanes = [&](auto moderate) __attribute__((always_inline)) {
                    alignas(64) decltype(mark) marks[LINE];
                    #pragma GCC unroll UNROLL
                    #pragma GCC ivdep
                    for (int64_t i1 = i1_line; i1 < i1_line + count; ++i1) {
                        marks[i1 - i1_line] = 0;
                        const float x_val = x[i0 * 333 + i1];
                        const float y = fx_moderate_sin(x_val, moderate)
                            + fx_moderate_cos(x_val * 3.0f, moderate);
                        out[i0 * 333 + i1] = y;
                    }
                    interleave(marks);
                };
                if (far) lanes(fx_flag<false>());
                else lanes(fx_flag<true>());
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

// is_far.f32: whether the quick forms of sin and cos do not hold
FX_INLINE bool fx_is_far(float x) { return !(__builtin_fabsf(x) < 32768.0f); }

template <bool is>
struct fx_flag
{
    static constexpr bool value = is;
};

FX_INLINE uint32_t fx_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
FX_INLINE float fx_from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

// _trig_reduce_moderate.f32: fx_trig_reduce for |x| < 2^15: pi/2 in three parts
FX_INLINE float fx_trig_reduce_moderate(float x, uint32_t& n)
{
    float shifted = __builtin_fmaf(x, 0x1.45f306p-1f, 0x1.8p23f);
    n = fx_bits(shifted);
    float whole = shifted - 0x1.8p23f;
    float r = __builtin_fmaf(whole, -0x1.921fb6p+0f, x);
    r = __builtin_fmaf(whole, 0x1.777a5cp-25f, r);
    return __builtin_fmaf(whole, 0x1.ee59dap-50f, r);
}

// _sin_quadrant.f32: sin(r + n pi/2) for |r| <= pi/4, minimax of degrees 9 and 8
FX_INLINE float fx_sin_quadrant(float r, uint32_t n)
{
    float z = r * r;
    float s = 0x1.7c2d56p-19f;
    s = __builtin_fmaf(s, z, -0x1.a05956p-13f);
    s = __builtin_fmaf(s, z, 0x1.111174p-7f);
    s = __builtin_fmaf(s, z, -0x1.555556p-3f);
    s = __builtin_fmaf(s * z, r, r);
    float c = 0x1.99e80cp-16f;
    c = __builtin_fmaf(c, z, -0x1.6c0c28p-10f);
    c = __builtin_fmaf(c, z, 0x1.55554ap-5f);
    c = __builtin_fmaf(c, z, -0.5f);
    c = __builtin_fmaf(c, z, 1.0f);
    return fx_from_bits(fx_bits(n & 1u ? c : s) ^ (n & 2u) << 30);
}

FX_INLINE uint64_t fx_bits(double x) { return __builtin_bit_cast(uint64_t, x); }
FX_INLINE double fx_from_bits(uint64_t x) { return __builtin_bit_cast(double, x); }

// _trig_reduce.f32: returns r in [-pi/4, pi/4] and sets n, modulo 4, where x = n pi/2 + r
FX_INLINE double fx_trig_reduce(float x, uint32_t& n)
{
    float a = __builtin_fabsf(x);
    double first = a < 0x1p51f ? 0x1.45f306d000000p-1 : 0x1.727220a000000p-27;
    double second = a < 0x1p51f ? 0x1.9391054000000p-30 : 0x1.29fc275000000p-56;
    double third = a < 0x1p51f ? 0x1.4fe13abe8fa9ap-59 : 0x1.f47d4d377036ep-86;
    first = a < 0x1p77f ? first : 0x1.4a7f09c000000p-54;
    second = a < 0x1p77f ? second : 0x1.5f47d4d000000p-82;
    third = a < 0x1p77f ? third : 0x1.bb81b6c52b328p-113;
    first = a < 0x1p103f ? first : 0x1.abe8fa9000000p-79;
    second = a < 0x1p103f ? second : 0x1.4ddc0db000000p-108;
    third = a < 0x1p103f ? third : 0x1.8a5664f10e410p-138;
    // Each part of the product, less the nearest integer; the integers are in the low bits.
    double y = x;
    double high = y * first;
    double high_n = high + 0x1.8p52;
    high -= high_n - 0x1.8p52;
    double middle = y * second;
    double middle_n = middle + 0x1.8p52;
    middle -= middle_n - 0x1.8p52;
    double sum = high + middle;
    double sum_n = sum + 0x1.8p52;
    sum -= sum_n - 0x1.8p52;
    n = (uint32_t)(fx_bits(high_n) + fx_bits(middle_n) + fx_bits(sum_n));
    return __builtin_fma(y, third, sum) * 0x1.921fb54442d18p+0;
}

// cos.f32: 1.5 ulp
FX_INLINE float fx_cos(float x)
{
    uint32_t n;
    float r = (float)fx_trig_reduce(x, n);
    return fx_sin_quadrant(r, n + 1u);
}

// moderate_cos.f32: a third of the work where moderate says that |x| < 2^15; 1.5 ulp
template <typename Moderate>
FX_INLINE float fx_moderate_cos(float x, Moderate moderate)
{
    if constexpr (!moderate.value) return fx_cos(x);
    uint32_t n;
    float r = fx_trig_reduce_moderate(x, n);
    return fx_sin_quadrant(r, n + 1u);
}

// sin.f32: 1.5 ulp
FX_INLINE float fx_sin(float x)
{
    uint32_t n;
    float r = (float)fx_trig_reduce(x, n);
    float result = fx_sin_quadrant(r, n);
    return x == 0.0f ? x : result;
}

// moderate_sin.f32: a third of the work where moderate says that |x| < 2^15; 1.5 ulp
template <typename Moderate>
FX_INLINE float fx_moderate_sin(float x, Moderate moderate)
{
    if constexpr (!moderate.value) return fx_sin(x);
    uint32_t n;
    float r = fx_trig_reduce_moderate(x, n);
    float result = fx_sin_quadrant(r, n);
    return x == 0.0f ? x : result;
}

// Has a loop's marks written: with a byte an element, four vectors of float go side by side.
template <typename T>
static inline void interleave(const T& marks)
{
    asm volatile("" : : "m"(marks));
}
