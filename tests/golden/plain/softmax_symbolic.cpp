// softmax: largest, sum over s1 for each of s0.
//   reads x: s0 x s1 float32
//   writes out: s0 x s1 float32
// line 4: y = torch.softmax(x, -1)
#include <cmath>
#include <cstdint>

extern "C" int softmax(const float* x, float* out, int64_t s0, int64_t s1, int64_t threads)
{
    for (int64_t i = 0; i < s0; ++i) {
        // line 4: y = torch.softmax(x, -1)
        float largest = -INFINITY;
        for (int64_t j = 0; j < s1; ++j) {
            const float value = x[s1 * i + j];
            if (value > largest || value != value) largest = value;
        }
        double sum = 0.0;
        for (int64_t j = 0; j < s1; ++j) {
            sum += std::exp(x[s1 * i + j] - largest);
        }
        for (int64_t j = 0; j < s1; ++j) {
            out[s1 * i + j] = std::exp(x[s1 * i + j] - largest) / (float)sum;
        }
    }
    return 0;
}
