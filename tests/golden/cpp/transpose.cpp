// add: pointwise over 300 x 200.
//   reads a: 300 x 200 float32
//   reads b: 200 x 300 float32
//   writes out: 300 x 200 float32
// line 1: y = a + b.T
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t TILE_ROWS = 64; // tunable: 8 16 32 64 128 256 512 (rows of a turned tile)
constexpr int64_t TILE_COLUMNS = 64; // tunable: 8 16 32 64 128 256 512 (elements of a row)
constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int transpose_add(const float* __restrict__ a, const float* __restrict__ b,
    float* __restrict__ out, int64_t threads)
{
    #pragma omp parallel for collapse(2) num_threads(threads)
    for (int64_t i0_tile = 0; i0_tile < 300; i0_tile += TILE_ROWS) {
        for (int64_t i1_tile = 0; i1_tile < 200; i1_tile += TILE_COLUMNS) {
            const int64_t i0_end = at_most(i0_tile + TILE_ROWS, 300);
            const int64_t i1_end = at_most(i1_tile + TILE_COLUMNS, 200);
            // line 1: y = a + b.T
            float b_tile[TILE_ROWS][TILE_COLUMNS];
            turn_over_32(&b_tile[0][0], TILE_COLUMNS, &b[i1_tile * 300 + i0_tile], 300,
                i0_end - i0_tile, i1_end - i1_tile);
            for (int64_t i0 = i0_tile; i0 < i0_end; ++i0) {
                #pragma GCC unroll UNROLL
                #pragma GCC ivdep
                for (int64_t i1 = i1_tile; i1 < i1_end; ++i1) {
                    out[i0 * 200 + i1] = a[i0 * 200 + i1] + b_tile[i0 - i0_tile][i1 - i1_tile];
                }
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
