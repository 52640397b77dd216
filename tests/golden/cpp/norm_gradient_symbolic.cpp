// norm backward: sum over 200 for each of s0, and sums of the columns.
//   reads dy: s0 x 200 float32
//   reads w: 200 float32
//   reads x: s0 x 200 float32
//   reads scale: s0 x 1 float32
//   writes dx: s0 x 200 float32
//   writes dw_parts: ((s0 + 63) // 64) x 200 float32
//   writes db_parts: ((s0 + 63) // 64) x 200 float32
// line 1: n = x * scale
// line 2: dn = dy * w
// line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
// line 4: dw, db = (dy * n).sum(0), dy.sum(0)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t GRAIN = 32768; // tunable: 4096 8192 16384 32768 65536 (elements worth threads)
constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int norm_gradient(const float* __restrict__ dy, const float* __restrict__ w,
    const float* __restrict__ x, const float* __restrict__ scale, float* __restrict__ dx,
    float* __restrict__ dw_parts, float* __restrict__ db_parts, int64_t s0, int64_t threads)
{
    #pragma omp parallel for num_threads(threads) if (s0 * 200 >= GRAIN)
    for (int64_t piece = 0; piece < ((s0 + 63) / 64); ++piece) {
        for (int64_t c = 0; c < 200; ++c) {
            // line 4: dw, db = (dy * n).sum(0), dy.sum(0)
            dw_parts[piece * 200 + c] = 0.0f;
            db_parts[piece * 200 + c] = 0.0f;
        }
        const int64_t i0_begin = piece * 64;
        const int64_t i0_end = at_most(i0_begin + 64, s0);
        for (int64_t i0 = i0_begin; i0 < i0_end; ++i0) {
            const float scale_val = scale[i0];
            // line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
            float row_sum = 0.0f;
            #pragma omp simd reduction(+ : row_sum)
            for (int64_t r0 = 0; r0 < 200; ++r0) {
                const float dy_val = dy[i0 * 200 + r0];
                // line 2: dn = dy * w
                const float dn = dy_val * w[r0];
                // line 1: n = x * scale
                const float n = x[i0 * 200 + r0] * scale_val;
                // line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
                row_sum += dn * n;
                // line 4: dw, db = (dy * n).sum(0), dy.sum(0)
                dw_parts[piece * 200 + r0] += dy_val * n;
                db_parts[piece * 200 + r0] += dy_val;
            }
            // line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
            const float mean = row_sum / 200.0f;
            prefetch<200>(&dy[i0 * 200 + 600]);
            prefetch<200>(&x[i0 * 200 + 600]);
            prefetch_to_write<200>(&dx[i0 * 200 + 600]);
            #pragma GCC unroll UNROLL
            #pragma GCC ivdep
            for (int64_t r0 = 0; r0 < 200; ++r0) {
                // line 2: dn = dy * w
                const float dn = dy[i0 * 200 + r0] * w[r0];
                // line 1: n = x * scale
                const float n = x[i0 * 200 + r0] * scale_val;
                // line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
                dx[i0 * 200 + r0] = (dn - n * mean) * scale_val;
            }
        }
    }
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

static inline int64_t at_most(int64_t x, int64_t limit)
{
    return x < limit ? x : limit;
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
