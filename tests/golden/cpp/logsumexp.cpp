// masked_fill, logsumexp: max, sum over 300 for each of 9.
//   reads keep: 9 x 300 bool
//   reads x: 9 x 300 float16
//   writes out: 9 float16
// line 2: scores = x.masked_fill(~keep, -float("inf"))
// line 3: y = scores.logsumexp(-1)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t LINE = 64; // elements asked for at a time

extern "C" int logsumexp(const uint8_t* __restrict__ keep, const fx_f16* __restrict__ x,
    fx_f16* __restrict__ out, int64_t threads)
{
    for (int64_t i0 = 0; i0 < 9; ++i0) {
        // line 3: y = scores.logsumexp(-1)
        float row_max = -INFINITY;
        int row_max_nan = 0;
        alignas(64) float row_max_lanes[LINE];
        for (float& lane : row_max_lanes) lane = -INFINITY;
        alignas(64) int row_max_nan_lanes[LINE] = {};
        {
            const auto block = [&](int64_t r0_line, int64_t count) __attribute__((always_inline)) {
                alignas(64) float x_f32[LINE];
                fx_to_floats(x_f32, &x[i0 * 300 + r0_line], count);
                #pragma GCC ivdep
                for (int64_t lane = 0; lane < count; ++lane) {
                    const int64_t r0 = r0_line + lane;
                    // line 2: scores = x.masked_fill(~keep, -float("inf"))
                    const float scores = keep[i0 * 300 + r0] != 0 ? x_f32[lane] : -INFINITY;
                    // line 3: y = scores.logsumexp(-1)
                    row_max_nan_lanes[lane] |= scores != scores;
                    row_max_lanes[lane] = row_max_lanes[lane] > scores ? row_max_lanes[lane]
                        : scores;
                }
            };
            int64_t r0_at = 0;
            for (; r0_at + LINE <= 300; r0_at += LINE) block(r0_at, LINE);
            if (r0_at < 300) block(r0_at, 300 - r0_at);
        }
        #pragma omp simd reduction(max : row_max) reduction(| : row_max_nan)
        for (int64_t lane = 0; lane < LINE; ++lane) {
            const float value = row_max_lanes[lane];
            row_max_nan |= value != value;
            row_max = row_max > value ? row_max : value;
            row_max_nan |= row_max_nan_lanes[lane];
        }
        if (row_max_nan) row_max = NAN;
        const float chosen = fx_choose(fx_isinf(row_max), 0.0f, row_max);
        float row_sum = 0.0f;
        alignas(64) float row_sum_lanes[LINE] = {};
        {
            const auto block = [&](int64_t r0_line, int64_t count, auto mark)
                __attribute__((always_inline)) {
                alignas(64) float x_f32[LINE];
                fx_to_floats(x_f32, &x[i0 * 300 + r0_line], count);
                alignas(64) decltype(mark) marks[LINE];
                #pragma GCC ivdep
                for (int64_t lane = 0; lane < count; ++lane) {
                    marks[lane] = 0;
                    const int64_t r0 = r0_line + lane;
                    // line 2: scores = x.masked_fill(~keep, -float("inf"))
                    const float scores = keep[i0 * 300 + r0] != 0 ? x_f32[lane] : -INFINITY;
                    // line 3: y = scores.logsumexp(-1)
                    row_sum_lanes[lane] += fx_exp_for_half(scores - chosen);
                }
                interleave(marks);
            };
            int64_t r0_at = 0;
            for (; r0_at + LINE <= 300; r0_at += LINE) block(r0_at, LINE, uint8_t());
            if (r0_at < 300) block(r0_at, 300 - r0_at, float());
        }
        #pragma omp simd reduction(+ : row_sum)
        for (int64_t lane = 0; lane < LINE; ++lane) {
            row_sum += row_sum_lanes[lane];
        }
        const float y = fx_log(row_sum) + chosen;
        out[i0] = fx_to_f16(y);
    }
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define FX_INLINE static inline __attribute__((always_inline))

FX_INLINE uint32_t fx_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
FX_INLINE float fx_from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

// _choose.f32: one of the two without a branch, which g++ would join with the next one
FX_INLINE float fx_choose(bool condition, float yes, float no)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return fx_from_bits((fx_bits(yes) & mask) | (fx_bits(no) & ~mask));
}

// _exp2_for_half.f32: 2^x for x <= 128, minimax of degree 4, relative error 2^-18
FX_INLINE float fx_exp2_for_half(float x)
{
    x = x < -126.0f ? -126.0f : x;
    float shifted = x + 0x1.8p23f;
    float r = x - (shifted - 0x1.8p23f);
    // Twice 2^r, so that half the power is a number for all x: down there 0. A NaN stays one.
    float e = 0x1.3b8eb2p-6f;
    e = __builtin_fmaf(e, r, 0x1.ca1350p-4f);
    e = __builtin_fmaf(e, r, 0x1.ebfd22p-2f);
    e = __builtin_fmaf(e, r, 0x1.62e0c2p+0f);
    e = __builtin_fmaf(e, r, 2.0f);
    return e * fx_from_bits((fx_bits(shifted) << 23) + (126u << 23));
}

// exp_for_half.f32: of degree 4, for half-precision results; 2^-17, subnormal results apart
FX_INLINE float fx_exp_for_half(float x)
{
    float power = x * 0x1.715476p+0f;
    // Up there twice the last power is infinity.
    return fx_exp2_for_half(power > 128.0f ? 128.0f : power);
}

FX_INLINE bool fx_isinf(float x) { return __builtin_fabsf(x) == __builtin_inff(); }

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

struct fx_f16 {
    uint16_t bits;
    // g++ 12 leaves a loop that copies the whole of a struct as it is: no vectors.
    fx_f16& operator=(const fx_f16& x) { bits = x.bits; return *this; }
};

// to_f16.f32: to nearest, ties to even; exact rounding
FX_INLINE fx_f16 fx_to_f16(float x)
{
    uint32_t bits = fx_bits(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    bits &= 0x7fffffffu;
    uint32_t normal = (bits - (112u << 23) + 0xfffu + ((bits >> 13) & 1u)) >> 13;
    // Adding 1/2 leaves a subnormal half, rounded, in the low bits.
    uint32_t small = fx_bits(fx_from_bits(bits) + 0.5f) - (126u << 23);
    uint32_t half = bits < (113u << 23) ? small : normal;
    half = bits >= (143u << 23) ? 0x7c00u : half;
    half = bits > (255u << 23) ? 0x7e00u : half;
    return fx_f16{(uint16_t)(half | sign)};
}

// to_float.f16: exact
FX_INLINE float fx_to_float(fx_f16 x)
{
    uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16;
    uint32_t shifted = (uint32_t)(x.bits & 0x7fffu) << 13;
    uint32_t normal = shifted + (112u << 23);
    // A subnormal is its mantissa on top of 2^-14, less 2^-14.
    float small = fx_from_bits(shifted + (113u << 23)) - 0x1p-14f;
    uint32_t bits = shifted < (1u << 23) ? fx_bits(small) : normal;
    bits = shifted >= (31u << 23) ? normal + (112u << 23) : bits;
    return fx_from_bits(bits | sign);
}

// _vectors.f16: vectors, and what masked loads and stores take for a place in memory
#if defined(__F16C__)
typedef short fx_eight_halves __attribute__((vector_size(16)));
typedef float fx_eight_floats __attribute__((vector_size(32)));
FX_INLINE fx_eight_floats fx_eight_to_floats(fx_eight_halves halves)
{
#if defined(__clang__) // which has no such builtin from 22 on
    typedef _Float16 fx_eight_float16 __attribute__((vector_size(16)));
    return __builtin_convertvector((fx_eight_float16)halves, fx_eight_floats);
#else
    return __builtin_ia32_vcvtph2ps256(halves);
#endif
}
#endif
#if defined(__AVX512F__)
typedef short fx_sixteen_halves __attribute__((vector_size(32)));
typedef float fx_sixteen_floats __attribute__((vector_size(64)));
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__F16C__)
#define FX_MASKED_HALVES
#if defined(__clang__)
typedef fx_eight_halves fx_masked;
#else
typedef short fx_masked;
#endif
#endif

// to_floats.f16: in vectors where it has an instruction; the last is written whole; exact
FX_INLINE void fx_to_floats(float* to, const fx_f16* from, int64_t count)
{
    int64_t k = 0;
#if defined(__AVX512F__)
    // Vectors as wide as those that read them: two halves of one are not forwarded from the
    // store buffer.
    for (; k + 16 <= count; k += 16) {
        fx_sixteen_halves halves;
        __builtin_memcpy(&halves, from + k, sizeof halves);
        const fx_sixteen_floats zeros = {};
        const fx_sixteen_floats floats = __builtin_ia32_vcvtph2ps512_mask(halves, zeros, -1, 4);
        __builtin_memcpy(to + k, &floats, sizeof floats);
    }
#endif
#if defined(__F16C__)
    for (; k + 8 <= count; k += 8) {
        fx_eight_halves halves;
        __builtin_memcpy(&halves, from + k, sizeof halves);
        const fx_eight_floats floats = fx_eight_to_floats(halves);
        __builtin_memcpy(to + k, &floats, sizeof floats);
    }
#endif
#if defined(FX_MASKED_HALVES)
    if (k < count) {
        const unsigned char some = (1u << (count - k)) - 1;
        const fx_eight_halves zeros = {};
        const fx_eight_floats floats = fx_eight_to_floats(
            __builtin_ia32_loaddquhi128_mask((const fx_masked*)(from + k), zeros, some));
        __builtin_memcpy(to + k, &floats, sizeof floats);
        return;
    }
#endif
    for (; k < count; ++k) to[k] = fx_to_float(from[k]);
}

// Has a loop's marks written: with a byte an element, four vectors of float go side by side.
template <typename T>
static inline void interleave(const T& marks)
{
    asm volatile("" : : "m"(marks));
}
