// running sum: running sum over 1000 for each of 40.
//   reads x: 40 x 1000 float32
//   writes sum_out: 40 x 1000 float32
// line 2: y = running(x)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t LINE = 64; // elements asked for at a time
constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int scans(const float* __restrict__ x, float* __restrict__ sum_out, int64_t threads)
{
    #pragma omp parallel for num_threads(threads)
    for (int64_t i0 = 0; i0 < 40; ++i0) {
        // line 2: y = running(x)
        double running_sum = 0.0;
        for (int64_t r0_line = 0; r0_line < 1000; r0_line += LINE) {
            const int64_t r0_stop = at_most(r0_line + LINE, 1000);
            alignas(64) float product_block[LINE];
            alignas(64) double sum_so_far_block[LINE];
            #pragma GCC unroll UNROLL
            #pragma GCC ivdep
            for (int64_t r0 = r0_line; r0 < r0_stop; ++r0) {
                product_block[r0 - r0_line] = x[i0 * 1000 + r0] * 0.5f;
            }
            running_sum = running_sums(sum_so_far_block, product_block, r0_stop - r0_line,
                running_sum);
            #pragma GCC unroll UNROLL
            #pragma GCC ivdep
            for (int64_t r0 = r0_line; r0 < r0_stop; ++r0) {
                sum_out[i0 * 1000 + r0] = (float)sum_so_far_block[r0 - r0_line]
                    + product_block[r0 - r0_line];
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
