// running sum: running sum over 3000 for each of 9.
//   reads x: 9 x 3000 bfloat16
//   writes sum_out: 9 x 3000 bfloat16
// line 2: y = running(x)
#include <stdint.h>

// Defined below the kernel.
#define FX_INLINE static inline __attribute__((always_inline))
struct fx_bf16 {
    uint16_t bits;
};
FX_INLINE uint32_t fx_bits(float x);
FX_INLINE float fx_from_bits(uint32_t x);
FX_INLINE fx_bf16 fx_to_bf16(float x);
FX_INLINE float fx_to_float(fx_bf16 x);
static inline int64_t at_most(int64_t x, int64_t limit);

constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int scans(const fx_bf16* __restrict__ x, fx_bf16* __restrict__ sum_out, int64_t threads)
{
    for (int64_t i0 = 0; i0 < 9; ++i0) {
        // line 2: y = running(x)
        double running_sum = 0.0;
        for (int64_t r0_block = 0; r0_block < 3000; r0_block += 512) {
            const int64_t r0_end = at_most(r0_block + 512, 3000);
            // line 2: y = running(x)
            float product_block[512];
            float sum_so_far_block[512];
            #pragma GCC unroll UNROLL
            #pragma GCC ivdep
            for (int64_t r0 = r0_block; r0 < r0_end; ++r0) {
                // line 2: y = running(x)
                const float product = fx_to_float(x[i0 * 3000 + r0]) * 0.5f;
                product_block[r0 - r0_block] = product;
            }
            for (int64_t r0 = r0_block; r0 < r0_end; ++r0) {
                // line 2: y = running(x)
                running_sum += (double)product_block[r0 - r0_block];
                const float sum_so_far = (float)running_sum;
                sum_so_far_block[r0 - r0_block] = sum_so_far;
            }
            #pragma GCC unroll UNROLL
            #pragma GCC ivdep
            for (int64_t r0 = r0_block; r0 < r0_end; ++r0) {
                // line 2: y = running(x)
                const float total = sum_so_far_block[r0 - r0_block] + product_block[r0 - r0_block];
                sum_out[i0 * 3000 + r0] = fx_to_bf16(total);
            }
        }
    }
    return 0;
}

FX_INLINE uint32_t fx_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
FX_INLINE float fx_from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

// to_bf16.f32: to nearest, ties to even; one quiet NaN for all; exact rounding
FX_INLINE fx_bf16 fx_to_bf16(float x)
{
    uint32_t bits = fx_bits(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return fx_bf16{(uint16_t)(x != x ? 0x7fc0u : rounded)};
}

// to_float.bf16: exact
FX_INLINE float fx_to_float(fx_bf16 x) { return fx_from_bits((uint32_t)x.bits << 16); }

static inline int64_t at_most(int64_t x, int64_t limit)
{
    return x < limit ? x : limit;
}
