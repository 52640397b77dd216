// norm backward: sum over 320 for each of 512, and sums of the columns.
//   reads dy: 512 x 320 bfloat16
//   reads w: 320 bfloat16
//   reads x: 512 x 320 bfloat16
//   reads scale: 512 x 1 float32
//   writes dx: 512 x 320 bfloat16
//   writes dw_parts: 8 x 320 float32
//   writes db_parts: 8 x 320 float32
// line 1: n = x * scale
// line 2: dn = dy * w
// line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
// line 4: dw, db = (dy * n).sum(0), dy.sum(0)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t LINE = 64; // elements asked for at a time

extern "C" int norm_gradient(const fx_bf16* __restrict__ dy, const fx_bf16* __restrict__ w,
    const fx_bf16* __restrict__ x, const float* __restrict__ scale, fx_bf16* __restrict__ dx,
    float* __restrict__ dw_parts, float* __restrict__ db_parts, int64_t threads)
{
    #pragma omp parallel for num_threads(threads)
    for (int64_t piece = 0; piece < 8; ++piece) {
        for (int64_t c = 0; c < 320; ++c) {
            // line 4: dw, db = (dy * n).sum(0), dy.sum(0)
            dw_parts[piece * 320 + c] = 0.0f;
            db_parts[piece * 320 + c] = 0.0f;
        }
        const int64_t i0_begin = piece * 64;
        const int64_t i0_end = i0_begin + 64;
        for (int64_t i0 = i0_begin; i0 < i0_end; ++i0) {
            const float scale_val = scale[i0];
            // line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
            float row_sum = 0.0f;
            alignas(64) float row_sum_lanes[LINE] = {};
            for (int64_t r0_line = 0; r0_line < 320; r0_line += LINE) {
                #pragma GCC ivdep
                for (int64_t lane = 0; lane < LINE; ++lane) {
                    const int64_t r0 = r0_line + lane;
                    // line 1: n = x * scale
                    const float value_f32 = fx_to_float(dy[i0 * 320 + r0]);
                    // line 2: dn = dy * w
                    const float dn = value_f32 * fx_to_float(w[r0]);
                    // line 1: n = x * scale
                    const float n = fx_to_float(x[i0 * 320 + r0]) * scale_val;
                    // line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
                    row_sum_lanes[lane] += dn * n;
                    // line 4: dw, db = (dy * n).sum(0), dy.sum(0)
                    dw_parts[piece * 320 + r0] += value_f32 * n;
                    db_parts[piece * 320 + r0] += value_f32;
                }
            }
            #pragma omp simd reduction(+ : row_sum)
            for (int64_t lane = 0; lane < LINE; ++lane) {
                // line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
                row_sum += row_sum_lanes[lane];
            }
            const float mean = row_sum / 320.0f;
            for (int64_t r0_line = 0; r0_line < 320; r0_line += LINE) {
                alignas(64) float dx_f32[LINE];
                #pragma GCC ivdep
                for (int64_t lane = 0; lane < LINE; ++lane) {
                    const int64_t r0 = r0_line + lane;
                    // line 2: dn = dy * w
                    const float dn = fx_to_float(dy[i0 * 320 + r0]) * fx_to_float(w[r0]);
                    // line 1: n = x * scale
                    const float n = fx_to_float(x[i0 * 320 + r0]) * scale_val;
                    // line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
                    dx_f32[lane] = (dn - n * mean) * scale_val;
                }
                fx_to_halves(&dx[i0 * 320 + r0_line], dx_f32, LINE);
            }
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
