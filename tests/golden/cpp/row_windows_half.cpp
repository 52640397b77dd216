// max pool: pointwise over 30 x 56.
//   reads x: 31 x 112 float16
//   writes out: 30 x 56 float16
// line 1: y = max_pool1d(x[1:], 3, 2, 1)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int row_windows(const fx_f16* __restrict__ x, fx_f16* __restrict__ out, int64_t threads)
{
    for (int64_t i0 = 0; i0 < 30; ++i0) {
        {
            // line 1: y = max_pool1d(x[1:], 3, 2, 1)
            alignas(64) float x_even[57];
            alignas(64) float x_odd[56];
            alignas(64) float x_f32[120];
            fx_to_floats(x_f32, &x[i0 * 112 + 111], 113);
            #pragma GCC unroll UNROLL
            #pragma GCC ivdep
            for (int64_t pair = 0; pair < 56; ++pair) {
                x_even[pair] = x_f32[2 * pair];
                x_odd[pair] = x_f32[2 * pair + 1];
            }
            x_even[56] = x_f32[2 * 56];
            {
                alignas(64) float out_f32[56];
                #pragma GCC unroll UNROLL
                #pragma GCC ivdep
                for (int64_t i1 = 0; i1 < 56; ++i1) {
                    out_f32[i1] = nan_max(x_even[i1 + 1], fx_maximum(x_odd[i1], x_even[i1]));
                }
                fx_to_halves(&out[i0 * 56], out_f32, 56);
            }
        }
        const float larger = fx_maximum(fx_to_float(x[i0 * 112 + 112]), -INFINITY);
        const float y = nan_max(fx_to_float(x[i0 * 112 + 113]), larger);
        out[i0 * 56] = fx_to_f16(y);
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

// to_halves.f16: in vectors where it has an instruction; the last is read whole; exact rounding
FX_INLINE void fx_to_halves(fx_f16* to, const float* from, int64_t count)
{
    int64_t k = 0;
#if defined(__AVX512F__)
    for (; k + 16 <= count; k += 16) {
        fx_sixteen_floats floats;
        __builtin_memcpy(&floats, from + k, sizeof floats);
        const fx_sixteen_halves zeros = {};
        const fx_sixteen_halves halves = __builtin_ia32_vcvtps2ph512_mask(floats, 0, zeros, -1);
        __builtin_memcpy(to + k, &halves, sizeof halves);
    }
#endif
#if defined(__F16C__)
    for (; k + 8 <= count; k += 8) {
        fx_eight_floats floats;
        __builtin_memcpy(&floats, from + k, sizeof floats);
        const fx_eight_halves halves = __builtin_ia32_vcvtps2ph256(floats, 0);
        __builtin_memcpy(to + k, &halves, sizeof halves);
    }
#endif
#if defined(FX_MASKED_HALVES)
    if (k < count) {
        fx_eight_floats floats;
        __builtin_memcpy(&floats, from + k, sizeof floats);
        const fx_eight_halves halves = __builtin_ia32_vcvtps2ph256(floats, 0);
        const unsigned char some = (1u << (count - k)) - 1;
        __builtin_ia32_storedquhi128_mask((fx_masked*)(to + k), halves, some);
        return;
    }
#endif
    for (; k < count; ++k) to[k] = fx_to_f16(from[k]);
}

// The greater of two numbers; NaN if either is.
static inline float nan_max(float a, float b)
{
    const float greater = a > b ? a : b;
    return a != a ? a : greater;
}
