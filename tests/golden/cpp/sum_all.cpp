// sum: sum over 300 x 400.
//   reads x: 300 x 400 float32
//   writes out: scalar float32
// line 1: total = x.sum()
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t PIECES = 32; // tunable: 8 16 32 64 128 (parts of a row for threads to share)
constexpr int64_t LINE = 64; // elements asked for at a time

extern "C" int sum_all(const float* __restrict__ x, float* __restrict__ out, int64_t threads)
{
    // line 1: total = x.sum()
    double piece_total[PIECES];
    #pragma omp parallel for num_threads(threads)
    for (int64_t piece = 0; piece < PIECES; ++piece) {
        const int64_t length = (300 + PIECES - 1) / PIECES;
        const int64_t r0_begin = piece * length;
        const int64_t r0_stop = at_most(r0_begin + length, 300);
        double row_total = 0.0;
        for (int64_t r0 = r0_begin; r0 < r0_stop; ++r0) {
            float chunk_sum = 0.0f;
            alignas(64) float chunk_sum_lanes[LINE] = {};
            {
                const auto block = [&](int64_t r1_line, int64_t count)
                    __attribute__((always_inline)) {
                    #pragma GCC ivdep
                    for (int64_t lane = 0; lane < count; ++lane) {
                        const int64_t r1 = r1_line + lane;
                        chunk_sum_lanes[lane] += x[r0 * 400 + r1];
                    }
                };
                int64_t r1_at = 0;
                for (; r1_at + LINE <= 400; r1_at += LINE) block(r1_at, LINE);
                if (r1_at < 400) block(r1_at, 400 - r1_at);
            }
            #pragma omp simd reduction(+ : chunk_sum)
            for (int64_t lane = 0; lane < LINE; ++lane) {
                chunk_sum += chunk_sum_lanes[lane];
            }
            row_total += chunk_sum;
        }
        piece_total[piece] = row_total;
    }
    double row_total = 0.0;
    for (int64_t piece = 0; piece < PIECES; ++piece) {
        row_total += piece_total[piece];
    }
    const float row_sum = (float)row_total;
    out[0] = row_sum;
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

static inline int64_t at_most(int64_t x, int64_t limit)
{
    return x < limit ? x : limit;
}
