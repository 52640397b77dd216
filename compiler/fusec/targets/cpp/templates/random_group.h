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
