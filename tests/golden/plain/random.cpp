// dropout: each of 30 x 33.
//   reads seed: a number int64
//   reads x: 30 x 33 float32
//   writes out: 30 x 33 float32
// line 1: y = F.dropout(x, 0.25)
#include <cmath>
#include <cstdint>

// 32 random bits: a word of Philox 4x32-7 (Salmon et al. 2011) of a position in a stream.
static int32_t random_bits(int64_t seed, int64_t position, int64_t stream, int64_t word)
{
    uint32_t c[4] = {(uint32_t)position, (uint32_t)((uint64_t)position >> 32), (uint32_t)stream, 0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)((uint64_t)seed >> 32);
    for (int round = 0; round < 7; ++round) {
        const uint64_t p0 = (uint64_t)c[0] * 0xD2511F53u, p2 = (uint64_t)c[2] * 0xCD9E8D57u;
        c[0] = (uint32_t)(p2 >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)p2;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (int32_t)c[word];
}

extern "C" int random_kept(const int64_t* seed, const float* x, float* out, int64_t threads)
{
    for (int64_t i = 0; i < 30; ++i) {
        for (int64_t j = 0; j < 33; ++j) {
            // line 1: y = F.dropout(x, 0.25)
            const int32_t bitwise_and_value = random_bits(seed[0], i * 33 + j, 3, 0) & 16777215;
            const bool is_less = (float)bitwise_and_value * 5.9604645e-08f < 0.75f;
            out[i * 33 + j] = is_less ? x[i * 33 + j] * 1.3333334f : 0.0f;
        }
    }
    return 0;
}
