// sum: sum over 3000 for each of 40.
//   reads x: 3000 x 40 float32
//   writes out: 40 float32
// line 1: total = x.sum(0)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t PIECES = 32; // tunable: 8 16 32 64 128 (parts of the rows for threads to share)

extern "C" int sum_columns(const float* __restrict__ x, float* __restrict__ out, int64_t threads)
{
    // line 1: total = x.sum(0)
    double column_total[40] = {};
    float piece_sum[PIECES][40];
    const int64_t rows = (3000 + PIECES - 1) / PIECES;
    #pragma omp parallel for num_threads(threads)
    for (int64_t piece = 0; piece < PIECES; ++piece) {
        const int64_t r0_begin = piece * rows;
        const int64_t r0_end = at_most(r0_begin + rows, 3000);
        for (int64_t c = 0; c < 40; ++c) {
            piece_sum[piece][c] = 0.0f;
        }
        for (int64_t r0 = r0_begin; r0 < r0_end; ++r0) {
            #pragma omp simd
            for (int64_t i0 = 0; i0 < 40; ++i0) {
                piece_sum[piece][i0] += x[r0 * 40 + i0];
            }
        }
    }
    for (int64_t piece = 0; piece < PIECES; ++piece) {
        #pragma omp simd
        for (int64_t i0 = 0; i0 < 40; ++i0) {
            column_total[i0] += piece_sum[piece][i0];
        }
    }
    #pragma omp simd
    for (int64_t i0 = 0; i0 < 40; ++i0) {
        out[i0] = (float)column_total[i0];
    }
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

static inline int64_t at_most(int64_t x, int64_t limit)
{
    return x < limit ? x : limit;
}
