// dropout: pointwise over 300 x 333.
//   reads seed: scalar int64
//   reads x: 300 x 333 float32
//   writes out: 300 x 333 float32
// line 1: y = F.dropout(x, 0.25)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int random_kept(const int64_t* __restrict__ seed, const float* __restrict__ x,
    float* __restrict__ out, int64_t threads)
{
    // line 1: y = F.dropout(x, 0.25)
    const int64_t seed_val = seed[0];
    #pragma omp parallel for num_threads(threads)
    for (int64_t i0 = 0; i0 < 300; ++i0) {
        #pragma GCC unroll UNROLL
        #pragma GCC ivdep
        for (int64_t i1 = 0; i1 < 333; ++i1) {
            const int32_t random_bits_val = random_bits(seed_val, i0 * 333 + i1, 3, 0);
            const float product = (float)(random_bits_val & 16777215) * 5.9604645e-08f;
            const float product2 = x[i0 * 333 + i1] * 1.3333334f;
            out[i0 * 333 + i1] = product < 0.75f ? product2 : 0.0f;
        }
    }
    return 0;
}

// ---- helpers.h: the functions that the kernel calls ----

// Returns 32 random bits: a word of Philox 4x32-7 (Salmon et al. 2011) of a position in a stream.
static inline int32_t random_bits(int64_t seed, int64_t position, int64_t stream, int64_t word)
{
    uint32_t c0 = (uint32_t)position, c1 = (uint32_t)((uint64_t)position >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)((uint64_t)seed >> 32);
    #pragma GCC unroll 7
    for (int round = 0; round < 7; ++round) {
        const uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p2 = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(p2 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p2;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (int32_t)(word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3);
}
