// dropout: pointwise over 300 x 333.
//   reads seed: scalar int64
//   reads x: 300 x 333 float32
//   writes out: 300 x 333 float32
// line 1: y = F.dropout(x, 0.25)
#include <stdint.h>
#include "helpers.h" // at the end of this file

constexpr int64_t LINE = 64; // elements asked for at a time
constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int random_kept(const int64_t* __restrict__ seed, const float* __restrict__ x,
    float* __restrict__ out, int64_t threads)
{
    // line 1: y = F.dropout(x, 0.25)
    const int64_t seed_val = seed[0];
    #pragma omp parallel for num_threads(threads)
    for (int64_t i0 = 0; i0 < 300; ++i0) {
        for (int64_t i1_line = 0; i1_line < 333; i1_line += LINE) {
            const int64_t i1_stop = at_most(i1_line + LINE, 333);
            alignas(64) int32_t words[LINE];
            random_words(words, seed_val, i0 * 333 + i1_line, 3, i1_stop - i1_line);
            #pragma GCC unroll UNROLL
            #pragma GCC ivdep
            for (int64_t i1 = i1_line; i1 < i1_stop; ++i1) {
                const float product = (float)(words[i1 - i1_line] & 16777215) * 5.9604645e-08f;
                const float product2 = x[i0 * 333 + i1] * 1.3333334f;
                out[i0 * 333 + i1] = product < 0.75f ? product2 : 0.0f;
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

// Writes the random words of the 64 positions from 64 * group on: those of 16 Philox numbers, even
// ones in the low halves of one vector, odd ones in those of another. The low half of a product is
// a word of the next round where it stands.
static inline void random_group(int32_t* to, int64_t seed, int64_t group, int64_t stream)
{
#if defined(__AVX512F__)
    constexpr int bytes = 64;
#else
    constexpr int bytes = 32;
#endif
    typedef uint64_t numbers __attribute__((vector_size(bytes)));
    constexpr int lanes = bytes / 8;
    const auto product = [](numbers x, uint64_t by) __attribute__((always_inline)) {
        const numbers y = numbers{} + by;
#if defined(__AVX512F__) && !defined(__clang__)
        typedef int halves __attribute__((vector_size(bytes)));
        typedef long long wide __attribute__((vector_size(bytes)));
        return (numbers)__builtin_ia32_pmuludq512_mask((halves)x, (halves)y, wide{}, -1);
#elif defined(__AVX2__) && !defined(__clang__)
        typedef int halves __attribute__((vector_size(bytes)));
        return (numbers)__builtin_ia32_pmuludq256((halves)x, (halves)y);
#else
        return (x & 0xffffffffu) * y;
#endif
    };
    #pragma GCC unroll 2
    for (int part = 0; part < 16; part += 2 * lanes) {
        numbers c0[2], c1[2], c2[2], c3[2];
        for (int odd = 0; odd < 2; ++odd) {
            numbers number;
            for (int k = 0; k < lanes; ++k) number[k] = 2 * k;
            number += (uint64_t)group * 16 + part + odd;
            c0[odd] = number, c1[odd] = number >> 32;
            c2[odd] = numbers{} + (uint32_t)stream, c3[odd] = numbers{};
        }
        uint64_t k0 = (uint32_t)seed, k1 = (uint64_t)seed >> 32;
        #pragma GCC unroll 7
        for (int round = 0; round < 7; ++round) {
            for (int odd = 0; odd < 2; ++odd) {
                const numbers p0 = product(c0[odd], 0xD2511F53u);
                const numbers p2 = product(c2[odd], 0xCD9E8D57u);
                c0[odd] = p2 >> 32 ^ c1[odd] ^ k0;
                c1[odd] = p2;
                c2[odd] = p0 >> 32 ^ c3[odd] ^ k1;
                c3[odd] = p0;
            }
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        const numbers words[4] = {
            (c0[0] & 0xffffffffu) | c0[1] << 32,
            (c1[0] & 0xffffffffu) | c1[1] << 32,
            (c2[0] & 0xffffffffu) | c2[1] << 32,
            (c3[0] & 0xffffffffu) | c3[1] << 32,
        };
        for (int k = 0; k < 4; ++k) __builtin_memcpy(to + 16 * k + part, &words[k], bytes);
    }
}

// Writes the random words of `count` positions from `first` on.
static inline void random_words(
    int32_t* to, int64_t seed, int64_t first, int64_t stream, int64_t count)
{
    for (int64_t done = 0; done < count;) {
        const int64_t skipped = (first + done) & 63, group = (first + done) >> 6;
        if (skipped == 0 && count - done >= 64) {
            random_group(to + done, seed, group, stream);
            done += 64;
            continue;
        }
        int32_t all[64];
        random_group(all, seed, group, stream);
        const int64_t left = 64 - skipped < count - done ? 64 - skipped : count - done;
        for (int64_t k = 0; k < left; ++k) to[done + k] = all[skipped + k];
        done += left;
    }
}
