// running sum: running sum over 3000 for each of 9.
//   reads x: 9 x 3000 bfloat16
//   writes sum_out: 9 x 3000 bfloat16
// line 2: y = running(x)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t LINE = 64; // elements asked for at a time
constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int scans(const fx_bf16* __restrict__ x, fx_bf16* __restrict__ sum_out, int64_t threads)
{
    for (int64_t i0 = 0; i0 < 9; ++i0) {
        // line 2: y = running(x)
        double running_sum = 0.0;
        for (int64_t r0_line = 0; r0_line < 3000; r0_line += LINE) {
            const int64_t r0_stop = at_most(r0_line + LINE, 3000);
            alignas(64) float sum_out_f32[LINE];
            alignas(64) float product_block[LINE];
            alignas(64) double sum_so_far_block[LINE];
            #pragma GCC unroll UNROLL
            #pragma GCC ivdep
            for (int64_t r0 = r0_line; r0 < r0_stop; ++r0) {
                product_block[r0 - r0_line] = fx_to_float(x[i0 * 3000 + r0]) * 0.5f;
            }
            running_sum = running_sums(sum_so_far_block, product_block, r0_stop - r0_line,
                running_sum);
            #pragma GCC unroll UNROLL
            #pragma GCC ivdep
            for (int64_t r0 = r0_line; r0 < r0_stop; ++r0) {
                sum_out_f32[r0 - r0_line] = (float)sum_so_far_block[r0 - r0_line]
                    + product_block[r0 - r0_line];
            }
            fx_to_halves(&sum_out[i0 * 3000 + r0_line], sum_out_f32, r0_stop - r0_line);
        }
    }
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

#define FX_INLINE static inline __attribute__((always_inline))

struct fx_bf16 {
    uint16_t bits;
    // g++ 12 leaves a loop that copies the whole of a struct as it is: no vectors.
    fx_bf16& operator=(const fx_bf16& x) { bits = x.bits; return *this; }
};

FX_INLINE uint32_t fx_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
FX_INLINE float fx_from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

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

static inline int64_t at_most(int64_t x, int64_t limit)
{
    return x < limit ? x : limit;
}

// Writes the sums of `before` and the first values so far, for `count` values; returns the last.
// A vector's own sums take three steps; from vector to vector only the last one is added.
template <typename T>
static inline double running_sums(double* to, const T* from, int64_t count, double before)
{
#if defined(__AVX512F__)
    constexpr int lanes = 8;
#else
    constexpr int lanes = 4;
#endif
    typedef double sums __attribute__((vector_size(8 * lanes)));
    typedef T values __attribute__((vector_size(sizeof(T) * lanes)));
    const sums zeros = {};
    sums carry = zeros + before;
    int64_t k = 0;
    for (; k + lanes <= count; k += lanes) {
        values given;
        __builtin_memcpy(&given, from + k, sizeof given);
        sums x = __builtin_convertvector(given, sums);
#if defined(__AVX512F__)
        x += __builtin_shufflevector(x, zeros, 8, 0, 1, 2, 3, 4, 5, 6);
        x += __builtin_shufflevector(x, zeros, 8, 8, 0, 1, 2, 3, 4, 5);
        x += __builtin_shufflevector(x, zeros, 8, 8, 8, 8, 0, 1, 2, 3);
        const sums last = __builtin_shufflevector(x, x, 7, 7, 7, 7, 7, 7, 7, 7);
#else
        x += __builtin_shufflevector(x, zeros, 4, 0, 1, 2);
        x += __builtin_shufflevector(x, zeros, 4, 4, 0, 1);
        const sums last = __builtin_shufflevector(x, x, 3, 3, 3, 3);
#endif
        x += carry;
        carry += last;
        __builtin_memcpy(to + k, &x, sizeof x);
    }
    double sum = carry[0];
    for (; k < count; ++k) {
        sum += from[k];
        to[k] = sum;
    }
    return sum;
}
