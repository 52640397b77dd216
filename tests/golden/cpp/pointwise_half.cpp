// relu, tanh: pointwise over 600 x 128.
//   reads a: 600 x 128 bfloat16
//   reads b: 600 x 128 bfloat16
//   writes out: 600 x 128 bfloat16
// line 2: h = torch.relu(a + b)
// line 3: y = torch.tanh(h) * h + 2
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int pointwise_chain(const fx_bf16* __restrict__ a, const fx_bf16* __restrict__ b,
    fx_bf16* __restrict__ out, int64_t threads)
{
    #pragma omp parallel for num_threads(threads)
    for (int64_t i0 = 0; i0 < 600; ++i0) {
        {
            alignas(64) float out_f32[128];
            #pragma GCC unroll UNROLL
            #pragma GCC ivdep
            for (int64_t i1 = 0; i1 < 128; ++i1) {
                // line 2: h = torch.relu(a + b)
                const float total = fx_to_float(a[i0 * 128 + i1]) + fx_to_float(b[i0 * 128 + i1]);
                const float h = fx_maximum(total, 0.0f);
                out_f32[i1] = fx_tanh(h) * h + 2.0f;
            }
            fx_to_halves(&out[i0 * 128], out_f32, 128);
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

struct fx_bf16 {
    uint16_t bits;
    // g++ 12 leaves a loop that copies the whole of a struct as it is: no vectors.
    fx_bf16& operator=(const fx_bf16& x) { bits = x.bits; return *this; }
};

// to_float.bf16: exact
FX_INLINE float fx_to_float(fx_bf16 x) { return fx_from_bits((uint32_t)x.bits << 16); }

// to_bf16.f32: to nearest, ties to even; one quiet NaN for all; exact rounding
FX_INLINE fx_bf16 fx_to_bf16(float x)
{
    uint32_t bits = fx_bits(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return fx_bf16{(uint16_t)(x != x ? 0x7fc0u : rounded)};
}

// to_halves.bf16: sixteen at a time where the processor rounds them; any quiet NaN; exact rounding
FX_INLINE void fx_to_halves(fx_bf16* to, const float* from, int64_t count)
{
    int64_t k = 0;
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
    typedef short fx_sixteen_halves __attribute__((vector_size(32)));
    typedef float fx_sixteen_floats __attribute__((vector_size(64)));
    unsigned subnormal = 0;
    #pragma GCC unroll 4
    for (; k + 16 <= count; k += 16) {
        fx_sixteen_floats floats;
        __builtin_memcpy(&floats, from + k, sizeof floats);
        subnormal |= __builtin_ia32_fpclassps512_mask(floats, 0x20, -1);
        fx_sixteen_halves halves;
        asm("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(floats));
        __builtin_memcpy(to + k, &halves, sizeof halves);
    }
    // The instruction takes subnormals for zeros; a test for each sixteen takes twice as long.
    if (__builtin_expect(subnormal != 0, 0)) k = 0;
#endif
    for (; k < count; ++k) to[k] = fx_to_bf16(from[k]);
}
