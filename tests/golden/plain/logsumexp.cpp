// masked_fill, logsumexp: largest, sum over 300 for each of 9.
//   reads keep: 9 x 300 bool
//   reads x: 9 x 300 float16
//   writes out: 9 float16
// line 2: scores = x.masked_fill(~keep, -float("inf"))
// line 3: y = scores.logsumexp(-1)
#include <cmath>
#include <cstdint>

// The number that 16 bits of half precision stand for.
static float from_half(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size;
    if (exponent == 31)
        size = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        size = std::ldexp((float)fraction, -24);
    else
        size = std::ldexp((float)(fraction + 1024), exponent - 25);
    return bits >> 15 ? -size : size;
}

// The 16 bits of half precision that are nearest to a number; of two as near, the even ones.
static uint16_t to_half(float x)
{
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const float size = std::fabs(x);
    if (x != x) return sign | 0x7e00;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < std::ldexp(1.0f, -14)) return sign | (uint16_t)std::nearbyint(std::ldexp(size, 24));
    int exponent;
    std::frexp(size, &exponent); // size is below 2 to the power of it, not below half of that
    const int units = (int)std::nearbyint(std::ldexp(size, 11 - exponent));
    return sign | (uint16_t)(((exponent + 13) << 10) + units);
}

extern "C" int logsumexp(const uint8_t* keep, const uint16_t* x, uint16_t* out, int64_t threads)
{
    for (int64_t i = 0; i < 9; ++i) {
        // line 3: y = scores.logsumexp(-1)
        float largest = -INFINITY;
        for (int64_t j = 0; j < 300; ++j) {
            const float value = keep[i * 300 + j] != 0 ? from_half(x[i * 300 + j]) : -INFINITY;
            if (value > largest || value != value) largest = value;
        }
        const float chosen = std::isinf(largest) ? 0.0f : largest;
        double sum = 0.0;
        for (int64_t j = 0; j < 300; ++j) {
            // line 2: scores = x.masked_fill(~keep, -float("inf"))
            const float scores = keep[i * 300 + j] != 0 ? from_half(x[i * 300 + j]) : -INFINITY;
            // line 3: y = scores.logsumexp(-1)
            sum += std::exp(scores - chosen);
        }
        const uint16_t value2 = to_half(std::log((float)sum) + chosen);
        out[i] = value2;
    }
    return 0;
}
