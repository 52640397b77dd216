// softmax: max, sum over 24 for each of 601.
//   reads x: 601 x 24 float32
//   writes out: 601 x 24 float32
// line 4: y = torch.softmax(x, -1)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t COLUMNS = 64; // tunable: 16 32 64 128 256 (columns side by side)

extern "C" int softmax(const float* __restrict__ x, float* __restrict__ out, int64_t threads)
{
    for (int64_t i0_tile = 0; i0_tile < 601; i0_tile += COLUMNS) {
        const int64_t i0_end = at_most(i0_tile + COLUMNS, 601);
        // line 4: y = torch.softmax(x, -1)
        alignas(64) float x_turned[24][COLUMNS];
        turn_over_32(&x_turned[0][0], COLUMNS, &x[i0_tile * 24], 24, 24, i0_end - i0_tile);
        float column_max[COLUMNS];
        for (int64_t c = 0; c < COLUMNS; ++c) {
            column_max[c] = -INFINITY;
        }
        for (int64_t r0 = 0; r0 < 24; ++r0) {
            #pragma omp simd
            for (int64_t i0 = i0_tile; i0 < i0_end; ++i0) {
                column_max[i0 - i0_tile] = number_max(x_turned[r0][i0 - i0_tile],
                    column_max[i0 - i0_tile]);
            }
        }
        float column_sum[COLUMNS] = {};
        for (int64_t r0 = 0; r0 < 24; ++r0) {
            prefetch<COLUMNS>(&x[i0_tile * 24] + (24 + r0) * COLUMNS);
            prefetch_to_write<COLUMNS>(&out[i0_tile * 24] + r0 * COLUMNS);
            #pragma omp simd
            for (int64_t i0 = i0_tile; i0 < i0_end; ++i0) {
                const float x_val = x_turned[r0][i0 - i0_tile];
                const float exponential = fx_exp_nonpositive(x_val - column_max[i0 - i0_tile]);
                column_sum[i0 - i0_tile] += exponential;
                x_turned[r0][i0 - i0_tile] = exponential;
            }
        }
        for (int64_t r0 = 0; r0 < 24; ++r0) {
            #pragma omp simd
            for (int64_t i0 = i0_tile; i0 < i0_end; ++i0) {
                const float exponential = x_turned[r0][i0 - i0_tile];
                x_turned[r0][i0 - i0_tile] = exponential / column_sum[i0 - i0_tile];
            }
        }
        turn_over_32(&out[i0_tile * 24], 24, &x_turned[0][0], COLUMNS, i0_end - i0_tile, 24);
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

// Copies turned over, from[column * from_step + row] to to[row * to_step + column]: eight by eight
// elements in registers, in three rounds of interleaving, while the rows to come are fetched.
template <typename T>
static inline void turn_over_32(
    T* to, int64_t to_step, const T* from, int64_t from_step, int64_t rows, int64_t columns)
{
    typedef uint32_t eight __attribute__((vector_size(32)));
    constexpr int64_t ahead = 32;
    for (int64_t column = 0; column < columns; column += 8) {
        int64_t row = 0;
        if (column + 8 <= columns) {
            for (int k = 0; k < 8; ++k) __builtin_prefetch(from + (column + ahead + k) * from_step);
            for (; row + 8 <= rows; row += 8) {
                eight a[8], b[8];
                for (int k = 0; k < 8; ++k) {
                    const T* place = from + (column + k) * from_step + row;
                    __builtin_memcpy(&a[k], place, sizeof(eight));
                }
                for (int round = 0; round < 3; ++round) {
                    for (int k = 0; k < 4; ++k) {
                        b[2 * k] =
                            __builtin_shufflevector(a[k], a[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
                        b[2 * k + 1] =
                            __builtin_shufflevector(a[k], a[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
                    }
                    for (int k = 0; k < 8; ++k) a[k] = b[k];
                }
                for (int k = 0; k < 8; ++k) {
                    __builtin_memcpy(to + (row + k) * to_step + column, &a[k], sizeof(eight));
                }
            }
        }
        const int64_t end = column + 8 < columns ? column + 8 : columns;
        const int64_t left = rows - row;
        for (int64_t j = 0; j < left; ++j, ++row) {
            T* line = to + row * to_step;
            const T* place = from + row;
            for (int64_t k = column; k < end; ++k) line[k] = place[k * from_step];
        }
    }
}
