// index_put: updates at 400 x 700.
//   reads grad: 400 x 700 float32
//   reads which: 400 int64
//   updates table_grad: 50 x 700 float32
// line 1: table_grad[which] += grad
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t BLOCK = 128; // tunable: 32 64 128 256 512 1024 (elements of a row, at least)

extern "C" int scatter_add(const float* __restrict__ grad, const int64_t* __restrict__ which,
    float* table_grad, int64_t threads)
{
    int failed = 0; // the number of a check that failed
    const int64_t share = (700 + threads - 1) / threads;
    const int64_t block = share > BLOCK ? (share + 15) / 16 * 16 : BLOCK;
    #pragma omp parallel for num_threads(threads) reduction(max : failed)
    for (int64_t i1_block = 0; i1_block < 700; i1_block += block) {
        const int64_t i1_end = at_most(i1_block + block, 700);
        for (int64_t i0 = 0; i0 < 400; ++i0) {
            // line 1: table_grad[which] += grad
            const int64_t which_val = which[i0];
            const int64_t wrapped = which_val < 0 ? wrap_add(which_val, 50) : which_val;
            const bool valid = (wrapped >= 0) & (wrapped < 50);
            if (!valid) failed = 1;
            const int64_t checked = valid ? wrapped : 0;
            #pragma omp simd
            for (int64_t i1 = i1_block; i1 < i1_end; ++i1) {
                table_grad[checked * 700 + i1] += grad[i0 * 700 + i1];
            }
        }
    }
    return failed;
}

// ---- helpers.h: the functions that the kernel calls ----

static inline int64_t at_most(int64_t x, int64_t limit)
{
    return x < limit ? x : limit;
}

// Wraps around where it overflows, as eager does.
static inline int64_t wrap_add(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x + (uint64_t)y);
}
